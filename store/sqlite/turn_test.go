package sqlite

import (
	"context"
	"testing"
	"testing/synctest"
)

// turnsTest takes connections in a bubble.
type turnsTest struct {
	*testing.T
	*turns
}

// begin takes a connection for a reader. The error is on the channel once take returns.
func (t *turnsTest) begin(ctx context.Context, r *reader) <-chan error {
	taken := make(chan error, 1)
	go func() { taken <- t.take(ctx, r) }()
	synctest.Wait()
	return taken
}

// has checks whether take has returned nil.
func (t *turnsTest) has(what string, taken <-chan error, want bool) {
	t.Helper()
	synctest.Wait()
	select {
	case err := <-taken:
		if err != nil || !want {
			t.Errorf("%s: got %v, want a connection: %t", what, err, want)
		}
	default:
		if want {
			t.Errorf("%s: still waits", what)
		}
	}
}

// unused checks that all connections are free and no line remains.
func (t *turnsTest) unused(connections int) {
	t.Helper()
	if t.free != connections || len(t.next)+len(t.lines) != 0 {
		t.Errorf("in the end: got %d free connections and %d lines, want %d and none", t.free, len(t.next)+len(t.lines), connections)
	}
}

func named(name string) *reader { return &reader{name: name} }

// Readers take turns, however many reads of one wait, and each reader's reads keep their order.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := &turnsTest{t, newTurns(1, 1)}
		current := "a0"
		test.has(current, test.begin(t.Context(), named("a")), true)
		waiting := make(map[string]<-chan error)
		for _, id := range []string{"a1", "a2", "a3", "b1", "c1", "b2"} {
			waiting[id] = test.begin(t.Context(), named(id[:1]))
		}
		for _, id := range []string{"b1", "c1", "a1", "b2", "a2", "a3"} {
			test.has(id+" before its turn", waiting[id], false)
			test.give(named(current[:1]))
			test.has(id, waiting[id], true)
			current = id
		}
		test.give(named("a"))
		test.unused(1)
	})
}

// No reader takes more than its share.
func TestTurnsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := &turnsTest{t, newTurns(4, 2)}
		for _, id := range []string{"a1", "a2"} {
			test.has(id, test.begin(t.Context(), named("a")), true)
		}
		more := test.begin(t.Context(), named("a"))
		test.has("a3", more, false)
		test.has("b1", test.begin(t.Context(), named("b")), true)
		test.give(named("b"))
		test.has("a3", more, false)
		test.give(named("a"))
		test.has("a3", more, true)
		test.give(named("a"))
		test.give(named("a"))
		test.unused(4)
	})
}

// A read whose context ends leaves its line, and a connection that it gets at the same time
// goes to the next read.
func TestTurnsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := &turnsTest{t, newTurns(1, 1)}
		test.has("a", test.begin(t.Context(), named("a")), true)
		ctx, cancel := context.WithCancel(t.Context())
		first, second := test.begin(ctx, named("b")), test.begin(t.Context(), named("b"))
		only := test.begin(ctx, named("c"))
		cancel()
		for _, left := range []<-chan error{first, only} {
			wantError(t, "a read whose context has ended", <-left, context.Canceled)
		}
		ctx, cancel = context.WithCancel(t.Context())
		both, last := test.begin(ctx, named("c")), test.begin(t.Context(), named("d"))
		test.give(named("a"))
		test.has("b, which waited longest", second, true)
		test.mu.Lock() // the read finds both a connection and the end of its context
		test.release(test.lines["b"])
		cancel()
		test.mu.Unlock()
		if err := <-both; err == nil {
			test.give(named("c"))
		}
		test.has("d", last, true)
		test.give(named("d"))
		test.unused(1)
	})
}

// A reader may have maxWaiting requests that wait for lists. A request that was admitted is not
// rejected later, and other readers are not affected.
func TestTurnsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		test := &turnsTest{t, newTurns(2, 1)}
		a := func() *reader { return &reader{class: List, name: "a"} }
		admitted := a()
		test.has("the first", test.begin(t.Context(), admitted), true)
		ctx, cancel := context.WithCancel(t.Context())
		for range maxWaiting {
			test.begin(ctx, a())
		}
		wantError(t, "a request too many", test.take(ctx, a()), ErrBusy)
		test.has("another reader", test.begin(t.Context(), &reader{class: List, name: "b"}), true)
		again, lookup := test.begin(ctx, admitted), test.begin(ctx, &reader{class: Lookup, name: "a"})
		cancel()
		for _, waiting := range []<-chan error{again, lookup} {
			wantError(t, "a read that waits until its context ends", <-waiting, context.Canceled)
		}
		synctest.Wait()
		test.give(a())
		test.give(named("b"))
		test.unused(2)
	})
}

// A read waits for no read of another class.
func TestClasses(t *testing.T) {
	db := open(t, Hooks{}) // one connection for each class but Service
	name := func(ctx context.Context) {
		t.Helper()
		var one int
		if err := db.Scan(ctx, "SELECT 1", nil, &one); err != nil {
			t.Error(err)
		}
	}
	list := WithReader(t.Context(), List, "a")
	err := db.View(list, func(*View) error {
		return db.View(WithClass(list, Lookup), func(*View) error {
			name(t.Context())
			ctx, cancel := context.WithCancel(WithReader(t.Context(), List, "b"))
			cancel()
			wantError(t, "a second list, which waits until its context ends", db.Scan(ctx, "SELECT 1", nil, new(int)), context.Canceled)
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
	name(list)
}
