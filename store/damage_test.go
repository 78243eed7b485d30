package store

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"service/store/datadir"
	"service/store/sqlite"
	"service/test/harness"
)

// killed returns a data directory after a process was killed, with all its commits in the WAL.
func killed(t *testing.T, commits int) string {
	t.Helper()
	s := openProgram(t)
	for range commits {
		publish(t, s, "p", "content_updated")
	}
	dir := filepath.Join(t.TempDir(), "data")
	harness.Copy(t, s.Dir(), dir)
	return dir
}

// filled returns a data directory with several pages, closed properly.
func filled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	for range 300 {
		publish(t, s, "p", "content_updated")
	}
	must(t, s.Close())
	return dir
}

// contents returns all files of a data directory that contain durable data.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(path, "-shm") || d.Name() == "lock" {
			return err
		}
		b, err := os.ReadFile(path)
		files[d.Name()] = string(b)
		return err
	})
	must(t, err)
	return files
}

// overwrite writes b into a file at an offset, from the end of the file if the offset is negative.
func overwrite(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	if at < 0 {
		info, err := f.Stat()
		must(t, err)
		at += info.Size()
	}
	_, err = f.WriteAt(b, at)
	must(t, errors.Join(err, f.Close()))
}

// flip changes one bit of a byte of a file, since any fixed value might already be there.
func flip(t *testing.T, path string, at int64) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	overwrite(t, path, at, []byte{b[at] ^ 1})
}

// Sizes in SQLite's WAL, in bytes.
const (
	walHeader      = 32
	walFrameHeader = 24
)

func TestOpenRefusesDamagedFiles(t *testing.T) {
	junk := bytes.Repeat([]byte("junk"), 1024)
	const frame = walFrameHeader + 4096
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, database, log string)
		want  string
	}{
		{"an empty database", func(t *testing.T, database, log string) {
			must(t, os.Truncate(database, 0))
		}, "service.db (the file is empty"},
		{"the log's header", func(t *testing.T, _, log string) { overwrite(t, log, 0, junk[:32]) }, "service.db-wal (the WAL header"},
		{"one bit of the log's header", func(t *testing.T, _, log string) { flip(t, log, 19) }, "service.db-wal (the WAL header"},
		{"the first frame", func(t *testing.T, _, log string) { overwrite(t, log, walHeader+100, junk[:1]) }, "a commit before frame"},
		{"the middle of the log", func(t *testing.T, _, log string) { overwrite(t, log, walHeader+20*frame, junk) }, "a commit before frame"},
		{"a frame's header", func(t *testing.T, _, log string) { overwrite(t, log, walHeader+20*frame, junk[:24]) }, "a commit before frame"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := killed(t, 20)
			database := filepath.Join(dir, datadir.Database)
			c.spoil(t, database, database+"-wal")
			before := contents(t, dir)
			err := openError(t, Config{Dir: dir})
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "restore") {
				t.Errorf("got %v, want ErrDamaged with %q and what to do", err, c.want)
			}
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Error("the refused files were changed")
			}
		})
	}
}

// A damaged database is refused with its intact WAL untouched: closing it must not checkpoint.
func TestDamagedDatabaseKeepsWAL(t *testing.T) {
	s := openDir(t, filled(t))
	publish(t, s, "p", "content_updated")
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, database string)
	}{
		{"header", func(t *testing.T, database string) {
			overwrite(t, database, 0, bytes.Repeat([]byte{7}, 64))
			// The WAL must not contain a copy of the first page.
			must(t, os.Truncate(database+"-wal", walHeader))
		}},
		{"middle", func(t *testing.T, database string) {
			for page := int64(2); page < 60; page++ {
				overwrite(t, database, page*4096, bytes.Repeat([]byte{0xee}, 4096))
			}
		}},
		{"truncated", func(t *testing.T, database string) {
			must(t, os.Truncate(database, 20*4096))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			harness.Copy(t, s.Dir(), dir)
			c.spoil(t, filepath.Join(dir, datadir.Database))
			before := contents(t, dir)
			wantError(t, "Open", openError(t, Config{Dir: dir}), ErrDamaged)
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Error("the refused files were changed")
			}
		})
	}
}

// Damage found by a read or a write stops all writing, is reported by Guard, and leaves the
// files unchanged.
func TestDamageWhileOpen(t *testing.T) {
	for _, c := range []struct {
		name   string
		notice func(t *testing.T, s *Store) error
	}{
		{"by a read", func(t *testing.T, s *Store) error {
			for seq := int64(1); seq <= 300; seq++ {
				var body []byte
				if err := s.db.Scan(t.Context(), "SELECT json FROM events WHERE program_id = ? AND seq = ?", []any{"p", seq}, &body); err != nil {
					return err
				}
			}
			return nil
		}},
		{"by a write", func(t *testing.T, s *Store) error {
			return s.writer.do(func(t *tx) error { return t.Exec("UPDATE events SET json = CAST(json || ' ' AS BLOB) WHERE seq < 300") })
		}},
	} {
		t.Run(c.name, func(t *testing.T) { checkNoticed(t, c.notice) })
	}
}

// checkNoticed damages an open store, and calls notice to run into the damage.
func checkNoticed(t *testing.T, notice func(t *testing.T, s *Store) error) {
	s := opened(t, Config{Dir: filled(t)})
	publish(t, s, "p", "content_updated")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "before", s.Guard(ctx), nil)
	database, spoiled := filepath.Join(s.Dir(), datadir.Database), filepath.Join(t.TempDir(), "spoiled")
	harness.Copy(t, database, spoiled)
	pages, err := os.ReadFile(spoiled)
	must(t, err)
	for at := 2 * 4096; at < len(pages); at += 4096 {
		copy(pages[at:], "junkjunkjunkjunk")
	}
	must(t, os.WriteFile(spoiled, pages, 0o600))
	harness.Copy(t, spoiled, database)
	before := contents(t, s.Dir())
	if err := notice(t, s); !sqlite.IsCorrupt(err) && !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v, want an error that reports the damage", err)
	}
	wantError(t, "Guard", s.Guard(t.Context()), ErrDamaged)
	if err := s.writer.do(insertProgram("q")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrDamaged) {
		t.Errorf("a write afterwards: got %v, want ErrUnavailable and ErrDamaged", err)
	}
	if err := s.Check(t.Context()); err == nil {
		t.Error("Check afterwards: got nil, want an error")
	}
	must(t, s.Close())
	if diff := cmp.Diff(before, contents(t, s.Dir())); diff != "" {
		t.Error("the damaged files were changed")
	}
}
