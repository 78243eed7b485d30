package sqlite

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// recordHooks returns hooks that append their calls to calls.
func recordHooks(calls *[]string) Hooks {
	note := func(call string) { *calls = append(*calls, call) }
	return Hooks{
		Chores:      []Chore{{Due: func() bool { return true }, Run: func(*Tx) error { note("chore"); return nil }}},
		BeforeBatch: func(*Tx) { note("batch") },
		BeforeWrite: func(*Tx) { note("write") },
		UndoWrite:   func() { note("undo") },
		BeforeCommit: func(t *Tx) error {
			note("before commit")
			t.AfterCommit(func() { note("after hook") })
			return nil
		},
		AfterCommit: func() { note("after commit") },
		Rollback: func(err error) {
			if errors.Is(err, ErrRolledBack) {
				note("rerun")
				return
			}
			note("rollback")
		},
		Measure: func(int, time.Duration, bool) { note("measure") },
	}
}

func TestHooks(t *testing.T) {
	var calls []string
	w := open(t, recordHooks(&calls)).Writer()
	refused := errors.New("refused")
	insert := func(id string, err error) func(*Tx) error {
		return func(t *Tx) error {
			t.AfterCommit(func() { calls = append(calls, "after "+id) })
			return errors.Join(insertItem(id)(t), err)
		}
	}
	before := []string{"batch", "write", "chore", "write"}
	for _, test := range []struct {
		name       string
		run        func(*Tx) error
		repeatable bool
		fails      bool
		want       []string
	}{
		{"repeatable write", insert("a", nil), true, false, []string{
			"write", "before commit", "measure", "after a", "after hook", "after commit"}},
		{"other write", insert("b", nil), false, false, []string{"measure", "after b", "after commit"}},
		{"repeatable write that fails", insert("c", refused), true, true, []string{
			"undo", "rerun", "write", "chore", "write", "undo", "measure", "after commit"}},
		{"other write that fails", insert("d", refused), false, true, []string{"undo", "measure", "after commit"}},
	} {
		calls = nil
		var err error
		if test.repeatable {
			err = w.DoRepeatable(test.run)
		} else {
			err = w.Do(test.run)
		}
		if (err != nil) != test.fails {
			t.Errorf("%s: got error %v, want an error: %t", test.name, err, test.fails)
		}
		if want := slices.Concat(before, test.want); !slices.Equal(calls, want) {
			t.Errorf("%s: got calls %q, want %q", test.name, calls, want)
		}
	}
}

// If BeforeCommit fails or panics, the writes of the commit are stored without it.
func TestBeforeCommitFails(t *testing.T) {
	for name, fail := range map[string]func(*Tx) error{
		"error": func(t *Tx) error { return errors.Join(insertItem("hook")(t), errors.New("refused")) },
		"panic": func(*Tx) error { panic("test") },
	} {
		t.Run(name, func(t *testing.T) {
			var undone []error
			db := open(t, Hooks{BeforeCommit: fail, Rollback: func(err error) { undone = append(undone, err) }})
			runs := 0
			err := db.Writer().DoRepeatable(func(t *Tx) error { runs++; return insertItem("a")(t) })
			if err != nil || runs != 2 || len(undone) != 1 || !errors.Is(undone[0], ErrRolledBack) {
				t.Errorf("got %v after %d runs, rolled back with %v; want nil after 2 runs and one rollback", err, runs, undone)
			}
			if got := items(t, db); !slices.Equal(got, []string{"a"}) {
				t.Errorf("got items %q, want a", got)
			}
		})
	}
}

// While Permit returns an error, nothing is written, and it does not count as an
// outage.
func TestPermit(t *testing.T) {
	var refusal error
	checks := 0
	db := open(t, Hooks{Permit: func() error { checks++; return refusal }})
	w := db.Writer()
	if err := w.Do(insertItem("a")); err != nil || checks != 2 {
		t.Errorf("got %v after %d calls of Permit, want one before the transaction and one before COMMIT", err, checks)
	}
	refusal = errors.New("the lease has ended")
	if err := w.Do(insertItem("b")); !errors.Is(err, refusal) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, refusal)
	}
	refusal = nil
	err := w.Do(func(t *Tx) error { refusal = errors.New("before COMMIT"); return insertItem("c")(t) })
	if !errors.Is(err, refusal) || !w.outage.began.IsZero() {
		t.Errorf("got %v and outage %+v, want %v and no outage", err, w.outage, refusal)
	}
	if got := items(t, db); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got items %q, want a", got)
	}
}

// Hooks cost a commit no allocations.
func TestHooksAllocateNothing(t *testing.T) {
	measure := func(hooks Hooks) float64 {
		w := open(t, hooks).Writer()
		run := func(*Tx) error { return nil }
		return testing.AllocsPerRun(100, func() {
			must(t, w.DoRepeatable(run))
		})
	}
	with := measure(Hooks{
		Permit: func() error { return nil }, BeforeBatch: func(*Tx) {}, BeforeWrite: func(*Tx) {}, BeforeCommit: func(*Tx) error { return nil },
		AfterCommit: func() {}, Measure: func(int, time.Duration, bool) {},
	})
	if without := measure(Hooks{}); with > without {
		t.Errorf("got %v allocations for a commit with hooks, want %v as without", with, without)
	}
}
