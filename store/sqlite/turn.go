package sqlite

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Class is a kind of reads. Each class has connections of its own, so a read never waits
// for one of another class.
type Class int

// The classes.
const (
	Service Class = iota // work of the service itself, such as deliveries; the default
	Lookup               // single records
	List                 // lists, searches and counts
	classes
)

// maxWaiting is the maximum number of requests of one reader that wait for a connection of
// [List].
const maxWaiting = 64

// ErrBusy reports that a read was rejected because the maximum number of requests of its
// reader wait for a connection.
var ErrBusy = errors.New("sqlite: too many requests of this reader are waiting")

// reader identifies the reader of a context.
type reader struct {
	class    Class
	name     string
	admitted bool // a read of the context was not rejected; guarded by turns.mu of its class
}

type readerKey struct{}

// WithReader returns a context for the reads of one request in a class. Requests with the same
// name share their turns. If maxWaiting of them wait, the first read of another request returns
// [ErrBusy]; later reads of a request do not.
func WithReader(ctx context.Context, class Class, name string) context.Context {
	return context.WithValue(ctx, readerKey{}, &reader{class: class, name: name})
}

// WithClass returns a context that reads in another class, for the same reader.
func WithClass(ctx context.Context, class Class) context.Context {
	r := readerOf(ctx)
	if r.class == class {
		return ctx
	}
	return WithReader(ctx, class, r.name)
}

func readerOf(ctx context.Context) *reader {
	if r, ok := ctx.Value(readerKey{}).(*reader); ok {
		return r
	}
	return new(reader)
}

// turns gives the connections of one class to reads. While reads wait, readers take turns: each
// connection that is released goes to the next reader, and within a reader to the read that
// has waited longest. No reader has more than share connections, even if others are free.
type turns struct {
	mu    sync.Mutex
	share int
	free  int              // connections that no read uses
	lines map[string]*line // by name of the reader
	next  []*line          // those that wait and have less than their share, in the order of their turns
}

// line is a reader that has a connection or waits for one.
type line struct {
	name  string
	held  int             // connections
	reads []chan struct{} // that wait; closed when the read has a connection
}

// newTurns returns the turns for a number of connections.
func newTurns(connections, share int) *turns {
	return &turns{share: share, free: connections, lines: make(map[string]*line)}
}

// take waits for a connection, which the caller must return with give. The error is [ErrBusy] or
// that of ctx.
func (t *turns) take(ctx context.Context, r *reader) error {
	t.mu.Lock()
	l := t.lines[r.name]
	if l == nil {
		l = &line{name: r.name}
		t.lines[r.name] = l
	}
	if r.class == List && !r.admitted && len(l.reads) >= maxWaiting {
		t.mu.Unlock()
		return ErrBusy
	}
	r.admitted = true
	if t.free > 0 && l.held < t.share {
		t.free--
		l.held++
		t.mu.Unlock()
		return nil
	}
	ready := make(chan struct{})
	if l.reads = append(l.reads, ready); len(l.reads) == 1 && l.held < t.share {
		t.next = append(t.next, l)
	}
	t.mu.Unlock()

	select {
	case <-ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-ready: // it has a connection nevertheless
		t.release(l)
	default:
		l.reads = slices.DeleteFunc(l.reads, func(c chan struct{}) bool { return c == ready })
		if len(l.reads) == 0 {
			t.next = slices.DeleteFunc(t.next, func(other *line) bool { return other == l })
			t.forget(l)
		}
	}
	return ctx.Err()
}

// give returns a connection of a reader.
func (t *turns) give(r *reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.release(t.lines[r.name])
}

// release returns a connection of a line, and passes it on. The caller holds t.mu.
func (t *turns) release(l *line) {
	t.free++
	if l.held--; l.held == t.share-1 && len(l.reads) > 0 {
		t.next = append(t.next, l)
	}
	t.forget(l)
	t.pass()
}

// pass passes free connections on to the reads whose turn it is. The caller holds t.mu.
func (t *turns) pass() {
	for t.free > 0 && len(t.next) > 0 {
		l := t.next[0]
		t.next = t.next[1:]
		t.free--
		l.held++
		close(l.reads[0])
		if l.reads = l.reads[1:]; len(l.reads) > 0 && l.held < t.share {
			t.next = append(t.next, l)
		}
	}
}

// forget drops a line without connections and waiting reads. The caller holds t.mu.
func (t *turns) forget(l *line) {
	if l.held == 0 && len(l.reads) == 0 {
		delete(t.lines, l.name)
	}
}

// turn waits for a connection for a read with ctx. The caller must call end once it has read.
func (db *DB) turn(ctx context.Context) (end func(), err error) {
	r := readerOf(ctx)
	t := db.turns[r.class]
	if err := t.take(ctx, r); err != nil {
		return nil, err
	}
	return func() { t.give(r) }, nil
}
