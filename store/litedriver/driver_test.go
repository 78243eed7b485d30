package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func openDB(t *testing.T, name string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", name)
	must(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPragmas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b.db")
	db := openDB(t, "file:"+path+"?_pragma=busy_timeout(1234)&_pragma=wal_autocheckpoint(0)&mode=rwc")
	db.SetMaxIdleConns(0) // every statement opens a new connection
	for pragma, want := range map[string]int{"busy_timeout": 1234, "wal_autocheckpoint": 0} {
		for range 2 {
			var got int
			if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
				t.Errorf("%s: got %d, %v; want %d", pragma, got, err, want)
			}
		}
	}
	var file string
	if err := db.QueryRow("SELECT file FROM pragma_database_list").Scan(&file); err != nil || file != path {
		t.Errorf("file: got %q, %v; want %q", file, err, path)
	}
}

func TestBadPragma(t *testing.T) {
	db := openDB(t, "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=no%20sense")
	if err := db.Ping(); err == nil || !strings.Contains(err.Error(), "no sense") {
		t.Errorf("got %v, want an error with the name of the pragma", err)
	}
	db = openDB(t, "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=%zz")
	if err := db.Ping(); err == nil {
		t.Error("invalid data source name: got no error")
	}
}

func TestOtherParametersReachSQLite(t *testing.T) {
	db := openDB(t, "file:"+filepath.Join(t.TempDir(), "none.db")+"?mode=ro&_pragma=busy_timeout(1)")
	if err := db.Ping(); err == nil {
		t.Error("mode=ro with a missing database: got no error")
	}
}

// The WAL outlives the last connection only in mode 1.
func TestPersistWAL(t *testing.T) {
	for mode, stays := range map[int]bool{1: true, 0: false} {
		path := filepath.Join(t.TempDir(), "db")
		db := openDB(t, "file:"+path+"?_pragma=journal_mode(wal)")
		db.SetMaxOpenConns(1)
		conn, err := db.Conn(context.Background())
		must(t, err)
		err = conn.Raw(func(c any) error {
			got, err := c.(FileControl).FileControlPersistWAL("main", mode)
			if got != mode {
				t.Errorf("got mode %d, want %d", got, mode)
			}
			return err
		})
		must(t, err)
		err = conn.Raw(func(c any) error {
			_, err := c.(FileControl).FileControlPersistWAL("main", 2)
			return err
		})
		if !errors.Is(err, errMode) {
			t.Errorf("mode 2: got %v, want %v", err, errMode)
		}
		if _, err := conn.ExecContext(context.Background(), "CREATE TABLE t (x); INSERT INTO t VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		must(t, db.Close())
		_, err = os.Stat(path + "-wal")
		if got := !errors.Is(err, fs.ErrNotExist); got != stays {
			t.Errorf("mode %d: WAL exists after Close: got %v, want %v", mode, got, stays)
		}
	}
}

// Transactions behave as Litestream needs them, in particular a long read during a
// write.
func TestTransactions(t *testing.T) {
	ctx := context.Background()
	const pragmas = "?_pragma=busy_timeout(50)&_pragma=journal_mode(wal)&_pragma=wal_autocheckpoint(0)"
	db := openDB(t, "file:"+filepath.Join(t.TempDir(), "db")+pragmas)
	if _, err := db.Exec("CREATE TABLE t (id INTEGER PRIMARY KEY, x)"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO t (x) VALUES (?)", []byte{0, 1}); err != nil {
		t.Fatal(err)
	}
	read, err := db.BeginTx(ctx, nil)
	must(t, err)
	count := func(q interface {
		QueryRowContext(context.Context, string, ...any) *sql.Row
	}) (n int) {
		must(t, q.QueryRowContext(ctx, "SELECT count(*) FROM t").Scan(&n))
		return n
	}
	if got := count(read); got != 1 {
		t.Fatalf("got %d rows, want 1", got)
	}
	if _, err := db.Exec("INSERT INTO t (x) VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	if got, all := count(read), count(db); got != 1 || all != 2 {
		t.Errorf("got %d rows inside the transaction and %d outside, want 1 and 2", got, all)
	}
	// Two writers exclude each other. Litestream recognizes the error by its text.
	write, err := db.BeginTx(ctx, nil)
	must(t, err)
	if _, err := write.Exec("INSERT INTO t (x) VALUES (3)"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO t (x) VALUES (4)"); err == nil || !strings.Contains(err.Error(), "database is locked") {
		t.Errorf("got %v, want: database is locked", err)
	}
	if err := write.Rollback(); err != nil {
		t.Error(err)
	}
	if err := read.Rollback(); err != nil {
		t.Error(err)
	}
	if got := count(db); got != 2 {
		t.Errorf("got %d rows, want 2", got)
	}
}
