package certificate_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"service/store"
	"service/store/certificate"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/sqlite"
	"service/store/sqlite/sqlitetest"
)

func opened(t *testing.T, cfg store.Config) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), cfg)
	must(t, err)
	return s
}

// must fails the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFiles(t *testing.T) {
	now := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	s := opened(t, store.Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	defer s.Close()
	c, ctx := s.Certificates(), t.Context()
	if _, err := c.List(ctx, "", true); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("list of an empty store: got %v, want fs.ErrNotExist", err)
	}
	// "a" is the folder of "a/b", but not of "ab/c" or "a.b".
	for _, path := range []string{"a/b/one.key", "a/b/one.crt", "a/two", "ab/c", "a.b", "a/b0"} {
		must(t, c.Store(ctx, path, []byte("content of "+path)))
	}
	must(t, c.Store(ctx, "a/two", []byte("next")))
	if b, err := c.Load(ctx, "a/two"); err != nil || string(b) != "next" {
		t.Errorf("got %q, %v; want the last content", b, err)
	}
	if _, err := c.Load(ctx, "a/b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load of a folder: got %v, want fs.ErrNotExist", err)
	}
	for _, test := range []struct {
		folder    string
		recursive bool
		want      string // "" for fs.ErrNotExist
	}{
		{"", false, "a a.b ab"},
		{"", true, "a a.b a/b a/b/one.crt a/b/one.key a/b0 a/two ab ab/c"},
		{"a", false, "a/b a/b0 a/two"},
		{"a", true, "a/b a/b/one.crt a/b/one.key a/b0 a/two"},
		{"a/b", false, "a/b/one.crt a/b/one.key"},
		{"a/two", false, ""},
		{"b", true, ""},
	} {
		got, err := c.List(ctx, test.folder, test.recursive)
		if (test.want == "") != errors.Is(err, fs.ErrNotExist) || strings.Join(got,
			" ") != strings.Join(slices.Sorted(slices.Values(strings.Fields(test.want))), " ") {
			t.Errorf("list of %q, recursive %t: got %v, %v; want %s", test.folder, test.recursive, got, err, test.want)
		}
	}
	if f, err := c.Stat(ctx, "a/two"); err != nil || f != (certificate.File{Path: "a/two", Size: 4, Changed: now}) {
		t.Errorf("got %+v, %v", f, err)
	}
	if f, err := c.Stat(ctx, "a/b"); err != nil || f != (certificate.File{Path: "a/b", Folder: true, Changed: now}) {
		t.Errorf("got %+v, %v", f, err)
	}
	for path, want := range map[string]bool{"a": true, "a/b": true, "a/b/one.crt": true, "a/b/one": false, "": true} {
		if got := c.Exists(ctx, path); got != want {
			t.Errorf("%q exists: got %t, want %t", path, got, want)
		}
	}
	if err := errors.Join(c.Delete(ctx, "a"), c.Delete(ctx, "nothing")); err != nil {
		t.Error(err)
	}
	if got, err := c.List(ctx, "", true); err != nil || strings.Join(got, " ") != "a.b ab ab/c" {
		t.Errorf("after a folder was removed: got %v, %v", got, err)
	}
	sqlitetest.CheckPlan(t, certificate.DB(c), certificate.SelectFiles, 3, "sqlite_autoindex_certificate_files_1 (path>? AND path<?)")
	if err := c.Store(ctx, "big", make([]byte, certificate.MaxFile+1)); err == nil {
		t.Error("a file above the maximum size was stored")
	}
}

// No file of the data directory contains the plain content.
func TestFilesAreEncrypted(t *testing.T) {
	dir := t.TempDir()
	s := opened(t, store.Config{Dir: dir})
	c := s.Certificates()
	must(t, c.Store(t.Context(), "certificates/ca/name.key", []byte("canary-93fe1c")))
	s.Close()
	seen := 0
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	for _, name := range files {
		b, err := os.ReadFile(name)
		must(t, err)
		if bytes.Contains(b, []byte("certificates/ca/name.key")) {
			seen++
		}
		if bytes.Contains(b, []byte("canary-93fe1c")) {
			t.Errorf("%s contains the plain content", name)
		}
	}
	if seen == 0 {
		t.Error("no file contains the path: the test reads the wrong files")
	}
	// The path is authenticated with the content.
	db, err := sqlite.OpenWritable(filepath.Join(dir, datadir.Database))
	if err == nil {
		_, err = db.Exec("UPDATE certificate_files SET path = 'elsewhere'")
		err = errors.Join(err, db.Close())
	}
	must(t, err)
	s = opened(t, store.Config{Dir: dir})
	defer s.Close()
	if b, err := s.Certificates().Load(t.Context(), "elsewhere"); !errors.Is(err, keyring.ErrDecrypt) {
		t.Errorf("a moved file: got %q, %v; want an error", b, err)
	}
}

func TestLocks(t *testing.T) {
	dir := t.TempDir()
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := opened(t, store.Config{Dir: dir, Now: clock})
	c, ctx := s.Certificates(), t.Context()
	must(t, c.Lock(ctx, "one"))
	if ok, err := c.TryLock(ctx, "two"); err != nil || !ok {
		t.Errorf("lock of another name: got %t, %v; want true", ok, err)
	}
	if ok, err := c.TryLock(ctx, "one"); err != nil || ok {
		t.Errorf("lock already taken: got %t, %v; want false", ok, err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := c.Lock(short, "one"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with an expired context: got %v", err)
	}
	// The lock is exclusive.
	var inside, most atomic.Int64
	done := make(chan error)
	for range 4 {
		go func() {
			err := c.Lock(ctx, "one")
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			inside.Add(-1)
			done <- errors.Join(err, c.Unlock(ctx, "one"))
		}()
	}
	must(t, c.Unlock(ctx, "one"))
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d goroutines had the lock at the same time", most.Load())
	}

	// A lock that was not released expires.
	if ok, _ := c.TryLock(ctx, "one"); !ok {
		t.Fatal("the lock is free, want it taken")
	}
	must(t, c.RenewLockLease(ctx, "one", time.Hour))
	ahead.Store(int64(time.Hour))
	if ok, _ := c.TryLock(ctx, "one"); ok {
		t.Error("the lock expired although it was renewed")
	}
	ahead.Store(int64(time.Hour + certificate.LockLease + time.Second))
	if ok, _ := c.TryLock(ctx, "one"); !ok {
		t.Error("the lock did not expire")
	}
	c.Close()
	if err := c.Unlock(ctx, "one"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("after Close: got %v", err)
	}
	s.Close()

	// The locks of an ended process are free.
	s = opened(t, store.Config{Dir: dir, Now: clock})
	defer s.Close()
	if ok, err := s.Certificates().TryLock(ctx, "one"); err != nil || !ok {
		t.Errorf("a lock of a process that has ended: got %t, %v", ok, err)
	}
}
