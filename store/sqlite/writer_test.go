package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// testSchema has items, and refs that reference them.
var testSchema = &Schema{Version: 7, Script: `
	CREATE TABLE items (id TEXT PRIMARY KEY, body BLOB) STRICT;
	CREATE TABLE refs (item TEXT NOT NULL REFERENCES items (id)) STRICT;`}

// open opens a new database and closes it at the end of the test.
func open(t *testing.T, hooks Hooks) *DB {
	t.Helper()
	db := openPath(t, filepath.Join(t.TempDir(), "test.db"), hooks)
	t.Cleanup(func() { db.Close(nil) })
	return db
}

func openPath(t *testing.T, path string, hooks Hooks) *DB {
	t.Helper()
	db, err := Open(t.Context(), Config{
		Path: path, Schema: testSchema, Readers: [...]int{2, 1, 1}, Hooks: hooks, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	return db
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that err is want, nil for no error.
func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func insertItem(id string) func(*Tx) error {
	return func(t *Tx) error { return t.Exec("INSERT INTO items (id) VALUES (?)", id) }
}

// items returns the IDs of the items, sorted.
func items(t *testing.T, db *DB) (ids []string) {
	t.Helper()
	err := db.Each(context.Background(), "SELECT id FROM items ORDER BY id", nil, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	must(t, err)
	return ids
}

// blockWriter keeps the writer busy until release is called, so that all writes that
// are submitted until then share a commit.
func blockWriter(w *Writer) (release func()) {
	unblock, running := make(chan struct{}), make(chan struct{})
	op := w.Submit(func(*Tx) error { close(running); <-unblock; return nil }, true)
	go w.Wait(op)
	<-running
	return func() { close(unblock) }
}

func TestGroupCommit(t *testing.T) {
	for _, repeatable := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeatable=%t", repeatable), func(t *testing.T) {
			db := open(t, Hooks{})
			errs, after := writeTogether(db.Writer(), 400, repeatable, func(i int) bool { return i%4 != 3 })
			for i, err := range errs {
				if bad := i%4 == 3; bad != (err != nil) || bad == (after[i] == 1) {
					t.Errorf("write %d: got error %v and %d calls after the commit, want an error: %t", i, err, after[i], bad)
				}
			}
			stored := items(t, db)
			if len(stored) != 300 {
				t.Fatalf("got %d items, want 300", len(stored))
			}
			for _, id := range stored {
				if strings.HasPrefix(id, "bad") {
					t.Errorf("%s was stored although its write failed", id)
				}
			}
		})
	}
}

// writeTogether submits n writes for one commit. Each inserts an item; if it is not
// good, it then fails. writeTogether returns the error of each write and how often
// its AfterCommit function ran.
func writeTogether(w *Writer, n int, repeatable bool, good func(int) bool) (errs []error, after []int) {
	var wg sync.WaitGroup
	errs, after = make([]error, n), make([]int, n)
	release := blockWriter(w)
	for i := range errs {
		op := w.Submit(func(t *Tx) error {
			t.AfterCommit(func() { after[i]++ })
			if good(i) {
				return insertItem(fmt.Sprint("good-", i))(t)
			}
			return errors.Join(insertItem(fmt.Sprint("bad-", i))(t), errors.New("refused"))
		}, repeatable)
		wg.Go(func() { errs[i] = w.Wait(op) })
	}
	release()
	wg.Wait()
	return errs, after
}

// Repeatable writes run a second time, in savepoints, only if one of them fails after
// it may have changed the database.
func TestRepeatableWrites(t *testing.T) {
	const succeeds = "succeeds"
	for name, test := range map[string]struct {
		second func(*Tx) error
		runs   int // how often the first write of the commit runs
	}{
		succeeds:                {insertItem("second"), 1},
		"fails without writing": {func(*Tx) error { return errors.New("refused") }, 1},
		"fails after a statement that changed nothing": {func(t *Tx) error {
			return errors.Join(t.Exec("DELETE FROM items WHERE id = 'missing'"), errors.New("refused"))
		}, 1},
		"fails after an insert": {func(t *Tx) error {
			return errors.Join(insertItem("second")(t), errors.New("refused"))
		}, 2},
		"fails after an insert that returns a row": {func(t *Tx) error {
			var id string
			err := t.Scan("INSERT INTO items (id) VALUES ('second') RETURNING id", nil, &id)
			return errors.Join(err, errors.New("refused"))
		}, 2},
		"statement fails": {func(t *Tx) error {
			return t.Exec("INSERT INTO refs (item) VALUES ('missing')")
		}, 2},
		"panics": {func(t *Tx) error {
			if err := insertItem("second")(t); err != nil {
				return err
			}
			panic("test")
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, Hooks{})
			w := db.Writer()
			release := blockWriter(w)
			runs, after := 0, 0
			first := w.Submit(func(t *Tx) error {
				runs++
				t.AfterCommit(func() { after++ })
				return insertItem("first")(t)
			}, true)
			second := w.Submit(test.second, true)
			release()
			var wg sync.WaitGroup
			wg.Go(func() {
				wantError(t, "first write", w.Wait(first), nil)
			})
			err := w.Wait(second)
			wg.Wait()
			stored := items(t, db)
			want := 1
			if name == succeeds {
				want = 2
			}
			if (err == nil) != (want == 2) || len(stored) != want {
				t.Errorf("second write: got %v and items %q, want %d items", err, stored, want)
			}
			if runs != test.runs || after != 1 {
				t.Errorf("first write: got %d runs and %d calls after the commit, want %d and 1", runs, after, test.runs)
			}
		})
	}
}

func TestPanicFailsOnlyItsWrite(t *testing.T) {
	w := open(t, Hooks{}).Writer()
	err := w.Do(func(*Tx) error { panic("test") })
	if err == nil || !strings.Contains(err.Error(), "test") {
		t.Errorf("got %v, want the panic as an error", err)
	}
	wantError(t, "next write", w.Do(insertItem("p")), nil)
}

func TestWritesRunInOrderOfSubmission(t *testing.T) {
	w := open(t, Hooks{}).Writer()
	var got []int
	var ops []*Op
	release := blockWriter(w)
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
			t.Fatalf("write %d: got write number %d", i, n)
		}
	}
	if len(got) != 1000 {
		t.Errorf("got %d writes, want 1000", len(got))
	}
}

func TestClosedWriter(t *testing.T) {
	db := open(t, Hooks{})
	must(t, db.Close(nil))
	if err := db.Writer().Do(insertItem("p")); !errors.Is(err, ErrClosed) || !Unavailable(err) {
		t.Errorf("got %v, want %v", err, ErrClosed)
	}
	if !db.Writer().Closed() {
		t.Error("Closed: got false, want true")
	}
}

// If COMMIT fails, all writes of the commit fail, and the next commit succeeds.
func TestCommitFails(t *testing.T) {
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
	after := false
	err := w.Do(func(t *Tx) error {
		t.AfterCommit(func() { after = true })
		// COMMIT checks a deferred foreign key.
		return errors.Join(insertItem("a")(t), t.Exec("PRAGMA defer_foreign_keys = ON"), t.Exec("INSERT INTO refs (item) VALUES ('missing')"))
	})
	if !errors.Is(err, ErrUnavailable) || after || !errors.Is(undone, ErrUnavailable) || !w.Failed() {
		t.Errorf("got %v, AfterCommit ran: %t, rolled back with %v; want %v without AfterCommit", err, after, undone, ErrUnavailable)
	}
	if want := []string{"measure", "rollback"}; !slices.Equal(calls, want) {
		t.Errorf("got calls %q, want %q", calls, want)
	}
	if err := w.Do(insertItem("b")); err != nil {
		t.Error(err)
	}
	if got := items(t, db); !slices.Equal(got, []string{"b"}) {
		t.Errorf("got items %q, want b", got)
	}
	if err := w.EndOutage(); err != nil || w.Failed() {
		t.Errorf("EndOutage: got %v and Failed %t, want nil and false", err, w.Failed())
	}
}

// What remembers the number of the transaction that wrote it finds out whether that one was rolled back.
func TestTransactionNumbers(t *testing.T) {
	db := open(t, Hooks{})
	seen := make(map[uint64]bool)
	for i := range 9 {
		err := db.Writer().Do(func(t *Tx) error {
			seen[t.Number()] = true
			return map[bool]error{true: errors.New("failed")}[i%3 == 0]
		})
		if (err != nil) != (i%3 == 0) {
			t.Error(err)
		}
	}
	if len(seen) != 9 || seen[0] {
		t.Errorf("9 transactions have the numbers %v", seen)
	}
}

// A panic after the commit reaches the leader's caller, and the writer continues.
func TestPanicAfterCommit(t *testing.T) {
	var undone []error
	w := open(t, Hooks{Rollback: func(err error) { undone = append(undone, err) }}).Writer()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("got no panic, want one")
			}
		}()
		w.Do(func(t *Tx) error { t.AfterCommit(func() { panic("after") }); return nil })
	}()
	if len(undone) != 1 || Unavailable(undone[0]) {
		t.Errorf("rolled back with %v, want one error other than %v", undone, ErrUnavailable)
	}
	wantError(t, "next write", w.Do(insertItem("p")), nil)
}

// After a panic between the first statement of a commit and COMMIT, no write of it succeeds, and
// the next commit does.
func TestPanicInCommit(t *testing.T) {
	armed := false
	var undone []error
	db := open(t, Hooks{
		Stamp: func(*Tx) error {
			if armed {
				armed = false
				panic("stamp")
			}
			return nil
		},
		Rollback: func(err error) { undone = append(undone, err) },
	})
	w := db.Writer()
	release := blockWriter(w)
	leader, follower := w.Submit(insertItem("leader"), true), w.Submit(insertItem("follower"), true)
	armed = true
	var wg sync.WaitGroup
	wg.Go(func() {
		defer func() {
			if p := recover(); p != "stamp" {
				t.Errorf("the leader: got panic %v, want stamp", p)
			}
		}()
		err := w.Wait(leader)
		t.Errorf("the leader: got %v, want a panic", err)
	})
	release()
	if err := w.Wait(follower); !errors.Is(err, errPanic) || Unavailable(err) {
		t.Errorf("the follower: got %v, want %v", err, errPanic)
	}
	wg.Wait()
	if !slices.Equal(undone, []error{errPanic}) {
		t.Errorf("rolled back with %v, want %v", undone, errPanic)
	}
	wantError(t, "next write", w.Do(insertItem("next")), nil)
	if got := items(t, db); !slices.Equal(got, []string{"next"}) {
		t.Errorf("got items %q, want next", got)
	}
}

// A write that ignores a storage error fails, and nothing of it is stored, even if SQLite has
// ended the transaction and would commit each later statement by itself.
func TestIgnoredStorageError(t *testing.T) {
	for _, fault := range []Fault{FaultStatement, FaultTransaction} {
		for _, repeatable := range []bool{false, true} {
			for _, alone := range []bool{false, true} {
				t.Run(fmt.Sprintf("fault=%d/repeatable=%t/alone=%t", fault, repeatable, alone), func(t *testing.T) {
					ignoreStorageError(t, fault, repeatable, alone)
				})
			}
		}
	}
}

// ignoreStorageError ignores a fault of a statement in a write, with another write in the same commit
// unless it is alone.
func ignoreStorageError(t *testing.T, fault Fault, repeatable, alone bool) {
	t.Helper()
	db, err := Open(t.Context(), Config{
		Path: filepath.Join(t.TempDir(), "test.db"), Schema: testSchema, Readers: [...]int{2, 1, 1}, Logger: slog.New(slog.DiscardHandler),
		Fault: func(query string, _ bool) Fault {
			if strings.HasPrefix(query, "INSERT INTO refs") {
				return fault
			}
			return NoFault
		},
	})
	must(t, err)
	defer db.Close(nil)
	w := db.Writer()
	release := blockWriter(w)
	after, other := false, error(nil)
	op := w.Submit(func(t *Tx) error {
		t.AfterCommit(func() { after = true })
		_ = insertItem("before")(t)
		_ = t.Exec("INSERT INTO refs (item) VALUES ('before')")
		_ = insertItem("after")(t)
		var id string
		_ = t.Scan("INSERT INTO items (id) VALUES ('returned') RETURNING id", nil, &id)
		return nil
	}, repeatable)
	var wg sync.WaitGroup
	if !alone {
		good := w.Submit(insertItem("good"), repeatable)
		wg.Go(func() { other = w.Wait(good) })
	}
	release()
	if err := w.Wait(op); !errors.Is(err, ErrUnavailable) || after {
		t.Errorf("got %v, AfterCommit ran: %t; want %v without AfterCommit", err, after, ErrUnavailable)
	}
	wg.Wait()
	want := 0
	if !alone && other == nil {
		want = 1
	}
	if got := items(t, db); len(got) != want || want == 1 && got[0] != "good" {
		t.Errorf("got items %q with error %v of the other write", got, other)
	}
	if fault == FaultStatement && other != nil {
		t.Errorf("the other write: got %v, want no error", other)
	}
}

// Rows removed from a table of Config.Overwrite are not in the file either.
func TestOverwrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := Open(t.Context(), Config{Path: path, Schema: testSchema, Overwrite: []string{"items"}, Readers: [...]int{2, 1, 1},
		Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	pragma := func() (mode int) {
		if err := db.writer.conn.QueryRowContext(t.Context(), "PRAGMA secure_delete").Scan(&mode); err != nil {
			t.Error(err)
		}
		return mode
	}
	exec := func(want int, query string, args ...any) error {
		return db.Writer().Do(func(tx *Tx) error {
			err := tx.Exec(query, args...)
			if mode := pragma(); mode != want {
				t.Errorf("during %s: secure_delete is %d, want %d", query, mode, want)
			}
			return err
		})
	}
	text := strings.Repeat("a text of several pages. ", 1000)
	wrong := errors.New("no")
	err = errors.Join(
		exec(1, "INSERT INTO items (id, body) VALUES (?, ?)", "a", []byte(text)),
		exec(1, "INSERT OR REPLACE INTO items (id, body) VALUES (?, ?)", "b", []byte(text)),
		exec(1, "UPDATE items SET body = NULL WHERE id = 'a'"),
		exec(1, "DELETE FROM items WHERE id = 'b'"),
		exec(2, "INSERT INTO refs (item) SELECT id FROM items"),
	)
	if err != nil || pragma() != 2 {
		t.Errorf("got %v, secure_delete %d", err, pragma())
	}
	err = db.Writer().Do(func(tx *Tx) error { return errors.Join(tx.Exec("DELETE FROM items WHERE id = 'c'"), wrong) })
	if !errors.Is(err, wrong) || pragma() != 2 {
		t.Errorf("after a rollback: %v, secure_delete %d", err, pragma())
	}
	must(t, db.Close(nil))
	file, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(file), "several pages") {
		t.Errorf("the text is still in the file, %v", err)
	}
}

// What a reader sees is among VisibleCommits, even between a COMMIT and its count.
func TestVisibleCommits(t *testing.T) {
	var w *Writer
	began, counted := make(chan struct{}), make(chan int64, 1)
	db, err := Open(t.Context(), Config{
		Path: filepath.Join(t.TempDir(), "test.db"), Schema: testSchema, Readers: [...]int{2, 1, 1}, Logger: slog.New(slog.DiscardHandler),
		Fault: func(query string, _ bool) Fault {
			if query == "COMMIT" && w != nil {
				if w.committing.TryLock() {
					w.committing.Unlock()
					t.Error("a COMMIT can be seen before it is counted")
				}
				go func() {
					close(began)
					counted <- w.VisibleCommits()
				}()
				<-began
				for range 100 {
					runtime.Gosched()
				}
			}
			return NoFault
		},
	})
	must(t, err)
	t.Cleanup(func() { db.Close(nil) })
	w = db.Writer()
	must(t, w.Do(insertItem("a")))
	if got, want := <-counted, w.Commits(); got != want {
		t.Errorf("during the COMMIT of transaction %d: got %d", want, got)
	}
}
