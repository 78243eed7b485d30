package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

// migrations make a schema of items, and of refs that refer to them.
var migrations = fstest.MapFS{"migrations/0001.sql": {Data: []byte("CREATE TABLE items (id TEXT PRIMARY KEY, body BLOB) STRICT; CREATE TABLE refs (item TEXT NOT NULL REFERENCES items (id)) STRICT;")}}

// open opens a new database, which is closed with the test.
func open(t *testing.T, hooks Hooks) *DB {
	t.Helper()
	db := openPath(t, filepath.Join(t.TempDir(), "test.db"), hooks)
	t.Cleanup(func() { db.Close(nil) })
	return db
}

func openPath(t *testing.T, path string, hooks Hooks) *DB {
	t.Helper()
	db, err := Open(t.Context(), Config{Path: path, Migrations: migrations, Readers: 2, Hooks: hooks, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func insertItem(id string) func(*Tx) error {
	return func(t *Tx) error { return t.Exec("INSERT INTO items (id) VALUES (?)", id) }
}

// items returns the ids of the items in their order.
func items(t *testing.T, db *DB) (ids []string) {
	t.Helper()
	err := db.Each(context.Background(), "SELECT id FROM items ORDER BY id", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// lead holds leadership of the writer until what it returns is called, so that
// what is submitted until then shares a commit.
func lead(w *Writer) (release func()) {
	hold, held := make(chan struct{}), make(chan struct{})
	op := w.Submit(func(*Tx) error { close(held); <-hold; return nil }, true)
	go w.Wait(op)
	<-held
	return func() { close(hold) }
}

func TestConcurrentWritesShareCommits(t *testing.T) {
	for _, repeatable := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeatable=%t", repeatable), func(t *testing.T) {
			db := open(t, Hooks{})
			errs, told := writeTogether(db.Writer(), 400, repeatable, func(i int) bool { return i%4 != 3 })
			for i, err := range errs {
				if bad := i%4 == 3; bad != (err != nil) || bad == (told[i] == 1) {
					t.Errorf("write %d: error %v, and it was told %d times", i, err, told[i])
				}
			}
			stored := items(t, db)
			if len(stored) != 300 {
				t.Fatalf("got %d items, want 300", len(stored))
			}
			for _, id := range stored {
				if strings.HasPrefix(id, "bad") {
					t.Errorf("%s was stored by a write that failed", id)
				}
			}
		})
	}
}

// writeTogether makes n writes in one commit. Those that are not good write, and
// then fail. It returns the error of each, and how often its AfterCommit ran.
func writeTogether(w *Writer, n int, repeatable bool, good func(int) bool) (errs []error, told []int) {
	var wg sync.WaitGroup
	errs, told = make([]error, n), make([]int, n)
	release := lead(w)
	for i := range errs {
		op := w.Submit(func(t *Tx) error {
			t.AfterCommit(func() { told[i]++ })
			if good(i) {
				return insertItem(fmt.Sprint("good-", i))(t)
			}
			return errors.Join(insertItem(fmt.Sprint("bad-", i))(t), errors.New("refused"))
		}, repeatable)
		wg.Go(func() { errs[i] = w.Wait(op) })
	}
	release()
	wg.Wait()
	return errs, told
}

// Writes that may be run again have no savepoint until one of them fails that
// has written something; they are run once unless one does.
func TestWritesAreRepeatedOnlyWhenOneMustBeUndone(t *testing.T) {
	for name, test := range map[string]struct {
		last func(*Tx) error
		runs int // of another write of the same commit
	}{
		"all go well":      {insertItem("last"), 1},
		"it wrote nothing": {func(*Tx) error { return errors.New("refused") }, 1},
		"it changed nothing": {func(t *Tx) error {
			return errors.Join(t.Exec("DELETE FROM items WHERE id = 'nobody'"), errors.New("refused"))
		}, 1},
		"it wrote": {func(t *Tx) error {
			return errors.Join(insertItem("last")(t), errors.New("refused"))
		}, 2},
		"it wrote and read": {func(t *Tx) error {
			var id string
			err := t.Scan("INSERT INTO items (id) VALUES ('last') RETURNING id", nil, &id)
			return errors.Join(err, errors.New("refused"))
		}, 2},
		"its statement failed": {func(t *Tx) error {
			return t.Exec("INSERT INTO refs (item) VALUES ('nobody')")
		}, 2},
		"it panicked": {func(t *Tx) error {
			if err := insertItem("last")(t); err != nil {
				return err
			}
			panic("poison")
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, Hooks{})
			w := db.Writer()
			release := lead(w)
			runs, told := 0, 0
			first := w.Submit(func(t *Tx) error {
				runs++
				t.AfterCommit(func() { told++ })
				return insertItem("first")(t)
			}, true)
			last := w.Submit(test.last, true)
			release()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := w.Wait(first); err != nil {
					t.Errorf("the other write failed: %v", err)
				}
			})
			err := w.Wait(last)
			wg.Wait()
			stored := items(t, db)
			want := 1
			if name == "all go well" {
				want = 2
			}
			if (err == nil) != (want == 2) || len(stored) != want {
				t.Errorf("the last write: %v; the items are %q, want %d", err, stored, want)
			}
			if runs != test.runs || told != 1 {
				t.Errorf("the other write was run %d times and told %d times, want %d and 1", runs, told, test.runs)
			}
		})
	}
}

func TestAPanicCostsItsOwnWriteAlone(t *testing.T) {
	w := open(t, Hooks{}).Writer()
	err := w.Do(func(*Tx) error { panic("poison") })
	if err == nil || !strings.Contains(err.Error(), "poison") {
		t.Errorf("got %v, want the panic as an error", err)
	}
	if err := w.Do(insertItem("p")); err != nil {
		t.Errorf("the writer did not survive: %v", err)
	}
}

func TestWritesAreRunInTheOrderOfTheirSubmission(t *testing.T) {
	w := open(t, Hooks{}).Writer()
	var got []int
	var ops []*Op
	release := lead(w)
	var wg sync.WaitGroup
	for i := range 1000 {
		ops = append(ops, w.Submit(func(*Tx) error { got = append(got, i); return nil }, false))
	}
	release()
	for _, op := range ops {
		wg.Go(func() { w.Wait(op) })
	}
	wg.Wait()
	for i, n := range got {
		if i != n {
			t.Fatalf("write %d came in place %d", n, i)
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d writes were run, want 1000", len(got))
	}
}

func TestAClosedWriterRefusesWrites(t *testing.T) {
	db := open(t, Hooks{})
	if err := db.Close(nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Writer().Do(insertItem("p")); !errors.Is(err, ErrClosed) || !Unavailable(err) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
	if !db.Writer().Closed() {
		t.Error("Closed is false")
	}
}

// When the commit itself fails, every write in it has failed, and the next
// commit is sound.
func TestAFailedCommitFailsAllItsWrites(t *testing.T) {
	var calls []string
	var undone error
	var w *Writer
	db := open(t, Hooks{
		Measure: func(int, time.Duration, bool) { calls = append(calls, "measure") },
		Rollback: func(err error) {
			calls = append(calls, "rollback")
			if undone = err; !w.Failed() {
				t.Error("Rollback was called before the failure was recorded")
			}
		},
	})
	w = db.Writer()
	told := false
	err := w.Do(func(t *Tx) error {
		t.AfterCommit(func() { told = true })
		// A deferred foreign key is checked by COMMIT.
		return errors.Join(insertItem("a")(t), t.Exec("PRAGMA defer_foreign_keys = ON"), t.Exec("INSERT INTO refs (item) VALUES ('nobody')"))
	})
	if !errors.Is(err, ErrUnavailable) || told || !errors.Is(undone, ErrUnavailable) || !w.Failed() {
		t.Errorf("got %v, told %t, rolled back with %v; want a failed commit that tells nobody", err, told, undone)
	}
	if want := []string{"measure", "rollback"}; !slices.Equal(calls, want) {
		t.Errorf("the calls are %q, want %q", calls, want)
	}
	if err := w.Do(insertItem("b")); err != nil {
		t.Error(err)
	}
	if got := items(t, db); !slices.Equal(got, []string{"b"}) {
		t.Errorf("stored are %q, want b", got)
	}
	if err := w.EndOutage(); err != nil || w.Failed() {
		t.Errorf("EndOutage: %v, and Failed is %t", err, w.Failed())
	}
}

// A panic after the commit takes down its own caller, and not the writer.
func TestAPanicAfterTheCommitPassesLeadershipOn(t *testing.T) {
	var undone []error
	w := open(t, Hooks{Rollback: func(err error) { undone = append(undone, err) }}).Writer()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		w.Do(func(t *Tx) error { t.AfterCommit(func() { panic("after") }); return nil })
	}()
	if len(undone) != 1 || Unavailable(undone[0]) {
		t.Errorf("rolled back with %v, want one error that does not promise that nothing is stored", undone)
	}
	if err := w.Do(insertItem("p")); err != nil {
		t.Errorf("the writer did not survive: %v", err)
	}
}
