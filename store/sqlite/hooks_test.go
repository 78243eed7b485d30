package sqlite

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// record returns hooks that note their calls.
func record(calls *[]string) Hooks {
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
			if errors.Is(err, ErrUndone) {
				note("repeat")
				return
			}
			note("rollback")
		},
		Measure: func(int, time.Duration, bool) { note("measure") },
	}
}

func TestHooks(t *testing.T) {
	var calls []string
	w := open(t, record(&calls)).Writer()
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
		{"a repeatable write", insert("a", nil), true, false, []string{"write", "before commit", "measure", "after a", "after hook", "after commit"}},
		{"one that is not", insert("b", nil), false, false, []string{"measure", "after b", "after commit"}},
		{"a repeatable write that fails", insert("c", refused), true, true, []string{"undo", "repeat", "write", "chore", "write", "undo", "measure", "after commit"}},
		{"one that is not, with a savepoint", insert("d", refused), false, true, []string{"undo", "measure", "after commit"}},
	} {
		calls = nil
		var err error
		if test.repeatable {
			err = w.DoRepeatable(test.run)
		} else {
			err = w.Do(test.run)
		}
		if (err != nil) != test.fails {
			t.Errorf("%s: got %v", test.name, err)
		}
		if want := slices.Concat(before, test.want); !slices.Equal(calls, want) {
			t.Errorf("%s: got %q, want %q", test.name, calls, want)
		}
	}
}

// A hook before the commit that fails costs the writes nothing, and a panic in
// it neither.
func TestBeforeCommitFails(t *testing.T) {
	for name, fail := range map[string]func(*Tx) error{
		"an error": func(t *Tx) error { return errors.Join(insertItem("hook")(t), errors.New("refused")) },
		"a panic":  func(*Tx) error { panic("poison") },
	} {
		t.Run(name, func(t *testing.T) {
			var undone []error
			db := open(t, Hooks{BeforeCommit: fail, Rollback: func(err error) { undone = append(undone, err) }})
			runs := 0
			err := db.Writer().DoRepeatable(func(t *Tx) error { runs++; return insertItem("a")(t) })
			if err != nil || runs != 2 || len(undone) != 1 || !errors.Is(undone[0], ErrUndone) {
				t.Errorf("got %v after %d runs, rolled back with %v", err, runs, undone)
			}
			if got := items(t, db); !slices.Equal(got, []string{"a"}) {
				t.Errorf("stored are %q, want a", got)
			}
		})
	}
}

// Without a permit nothing is written, and it is no outage.
func TestPermit(t *testing.T) {
	var refusal error
	checks := 0
	db := open(t, Hooks{Permit: func() error { checks++; return refusal }})
	w := db.Writer()
	if err := w.Do(insertItem("a")); err != nil || checks != 2 {
		t.Errorf("got %v after %d checks, want one before the transaction and one before its commit", err, checks)
	}
	refusal = errors.New("the lease has ended")
	if err := w.Do(insertItem("b")); !errors.Is(err, refusal) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v, want %v", err, refusal)
	}
	refusal = nil
	err := w.Do(func(t *Tx) error { refusal = errors.New("in between"); return insertItem("c")(t) })
	if !errors.Is(err, refusal) || !w.outage.began.IsZero() {
		t.Errorf("got %v and the outage %+v, want %v and none", err, w.outage, refusal)
	}
	if got := items(t, db); !slices.Equal(got, []string{"a"}) {
		t.Errorf("stored are %q, want a", got)
	}
}

// A commit allocates nothing for its hooks.
func TestHooksAllocateNothing(t *testing.T) {
	measure := func(hooks Hooks) float64 {
		w := open(t, hooks).Writer()
		run := func(*Tx) error { return nil }
		return testing.AllocsPerRun(100, func() {
			if err := w.DoRepeatable(run); err != nil {
				t.Fatal(err)
			}
		})
	}
	with := measure(Hooks{
		Permit: func() error { return nil }, BeforeBatch: func(*Tx) {}, BeforeWrite: func(*Tx) {}, BeforeCommit: func(*Tx) error { return nil },
		AfterCommit: func() {}, Measure: func(int, time.Duration, bool) {},
	})
	if without := measure(Hooks{}); with > without {
		t.Errorf("a commit allocates %v times with hooks, %v without", with, without)
	}
}
