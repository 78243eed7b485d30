package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/benbjohnson/litestream/file"
	"github.com/superfly/ltx"
)

// damages are ways in which an object can be damaged.
var damages = []struct {
	name string
	do   func(content []byte) []byte
}{
	// One bit could be of a compressed byte that has several values with the same meaning.
	{"inverted bytes", func(b []byte) []byte {
		b = bytes.Clone(b)
		for i := range b[len(b)/2:][:64] {
			b[len(b)/2+i] ^= 0xff
		}
		return b
	}},
	{"a flipped bit in the header", func(b []byte) []byte { b = bytes.Clone(b); b[13] ^= 0x40; return b }},
	{"a flipped bit at the end", func(b []byte) []byte { b = bytes.Clone(b); b[len(b)-1] ^= 1; return b }},
	{"half of it", func(b []byte) []byte { return b[:len(b)/2] }},
	{"all but a byte", func(b []byte) []byte { return b[:len(b)-1] }},
	{"nothing", func([]byte) []byte { return nil }},
	{"another object", func([]byte) []byte { return bytes.Repeat([]byte("another "), 100) }},
}

// stillConfig configures a replica in a directory that is not compacted automatically.
func stillConfig(t *testing.T, dir string) *Config {
	cfg := fileConfig(t, dir, t.TempDir())
	cfg.CompactionIntervals = []time.Duration{1000 * time.Hour, 2000 * time.Hour}
	return cfg
}

// levels fills a replica with objects of the levels 0, 1 and 2 and snapshots, so that each
// change is in several objects. It returns the configuration and the number of rows.
func levels(t *testing.T) (cfg *Config, rows int) {
	t.Helper()
	dir := t.TempDir()
	cfg = stillConfig(t, dir)
	r := openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	s := r.current()
	add := func() {
		r.insert(10_000)
		rows++
		r.awaitSent(s)
	}
	ctx := context.Background()
	do := func(_ *ltx.FileInfo, err error) {
		t.Helper()
		must(t, err)
	}
	add()
	do(s.db.Snapshot(ctx))
	for range 2 {
		add()
		add()
		do(s.db.Compact(ctx, 1))
	}
	do(s.db.Compact(ctx, 2))
	add()
	do(s.db.Compact(ctx, 1))
	add()
	r.mustClose()
	return cfg, rows
}

// planned returns the name and path of the object of a level in the plan of the newest
// state.
func planned(t *testing.T, cfg *Config, level int) (name, path string) {
	t.Helper()
	source, err := openSource(t.Context(), cfg, noTime, false)
	must(t, err)
	client := source.client.ReplicaClient
	plan, err := (&intactClient{ReplicaClient: client}).longest(t.Context())
	must(t, err)
	for _, f := range plan {
		if f.Level == level {
			return objectName(f), objectPath(client, f)
		}
	}
	t.Fatalf("got plan %v, want an object of level %d", plan, level)
	return "", ""
}

// objectPath returns the path of an object in a directory.
func objectPath(client litestream.ReplicaClient, f *ltx.FileInfo) string {
	return client.(*file.ReplicaClient).LTXFilePath(f.Level, f.MinTXID, f.MaxTXID)
}

// replaceContent replaces the content of a file and keeps its modification time.
func replaceContent(t *testing.T, path string, content []byte) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.WriteFile(path, content, 0o600)
	}
	if err == nil {
		err = os.Chtimes(path, info.ModTime(), info.ModTime())
	}
	must(t, err)
}

// TestDamagedObject damages one object of a level at a time. A restore gets the same state
// from others and reports the damaged object.
func TestDamagedObject(t *testing.T) {
	t.Parallel()
	cfg, rows := levels(t)
	for _, level := range []int{1, 2, litestream.SnapshotLevel} {
		name, path := planned(t, cfg, level)
		content, err := os.ReadFile(path)
		must(t, err)
		for _, damage := range damages {
			t.Run(fmt.Sprintf("level %d/%s", level, damage.name), func(t *testing.T) {
				replaceContent(t, path, damage.do(content))
				defer replaceContent(t, path, content)
				restored := filepath.Join(t.TempDir(), "restored.db")
				got, err := Restore(t.Context(), cfg, restored, time.Time{})
				must(t, err)
				wantNumber(t, "rows restored", countRows(t, restored), rows)
				if len(got.Damaged) != 1 || !strings.Contains(got.Damaged[0], name) {
					t.Errorf("got damaged objects %q, want %s", got.Damaged, name)
				}
			})
		}
	}
}

// TestDamagedNewest damages an object with changes that no other object contains. The
// restore fails and names the object and a command, which restores the newest intact state.
func TestDamagedNewest(t *testing.T) {
	t.Parallel()
	cfg, rows := levels(t)
	name, path := planned(t, cfg, 0)
	content, err := os.ReadFile(path)
	must(t, err)
	for _, damage := range damages {
		t.Run(damage.name, func(t *testing.T) {
			replaceContent(t, path, damage.do(content))
			defer replaceContent(t, path, content)
			restored := filepath.Join(t.TempDir(), "restored.db")
			_, err := Restore(t.Context(), cfg, restored, time.Time{})
			if err == nil || errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), name) {
				t.Fatalf("got %v, want an error with %s", err, name)
			}
			command := regexp.MustCompile(`service restore --at (\S+)$`).FindStringSubmatch(err.Error())
			if command == nil {
				t.Fatalf("got %v, want an error with a command", err)
			}
			at, timeErr := time.Parse(time.RFC3339, command[1])
			must(t, errors.Join(timeErr, RemoveDatabase(restored)))
			_, err = Restore(t.Context(), cfg, restored, at)
			must(t, err)
			wantNumber(t, "rows restored", countRows(t, restored), rows-1)
		})
	}
}

// A replica in which every object is damaged does not count as empty.
func TestDamagedEverything(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	cfg := fileConfig(t, dir, target)
	r := openReplicated(t, dir, cfg)
	r.insert(1)
	r.await("up to date", upToDate)
	r.mustClose()
	err := filepath.WalkDir(target, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".ltx") {
			replaceContent(t, path, nil)
		}
		return err
	})
	must(t, err)
	_, err = Restore(t.Context(), cfg, filepath.Join(t.TempDir(), "restored.db"), time.Time{})
	if err == nil || errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), "no other state can be restored") {
		t.Errorf("got %v, want an error other than %v", err, ErrEmpty)
	}
}

// TestEveryDamage truncates an object at each length, and flips a bit of each byte.
func TestEveryDamage(t *testing.T) {
	t.Parallel()
	cfg, _ := levels(t)
	_, path := planned(t, cfg, 0)
	content, err := os.ReadFile(path)
	must(t, err)
	first, last, err := ltx.ParseFilename(filepath.Base(path))
	must(t, err)
	pages := func(content []byte) (all []byte, err error) {
		info := &ltx.FileInfo{MinTXID: first, MaxTXID: last, Size: int64(len(content))}
		err = decodeObject(info, bytes.NewReader(content), objectSink{noSink.header, func(_ *ltx.FileInfo, _ uint32, data []byte) error {
			all = append(all, data...)
			return nil
		}})
		return all, err
	}
	want, err := pages(content)
	must(t, err)
	var damaged *damagedError
	for n := range len(content) {
		if _, err := pages(content[:n]); !errors.As(err, &damaged) {
			t.Errorf("first %d of %d bytes: got %v, want a damaged object", n, len(content), err)
		}
	}
	for i := range content {
		content[i] ^= 4
		// Some compressed bytes have several values with the same meaning.
		if got, err := pages(content); err == nil && !bytes.Equal(got, want) || err != nil && !errors.As(err, &damaged) {
			t.Errorf("flipped bit in byte %d: got %v, want a damaged object or the same content", i, err)
		}
		content[i] ^= 4
	}
}

// TestDamagedCopy damages an object that a term has copied from its parent. A restore uses
// the parent's object.
func TestDamagedCopy(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	cfg := stillConfig(t, one)
	r := openReplicated(t, one, cfg)
	r.insert(10_000)
	r.settle()
	r.mustClose()
	restoreTo(t, cfg, two)
	r = openReplicated(t, two, cfg)
	r.settle()
	own := r.current().own
	r.await("complete", func(Status) bool {
		current, err := newestTerm(context.Background(), own.at)
		return err == nil && current.Number == 2 && current.Complete
	})
	r.mustClose()
	name, copied := planned(t, cfg, litestream.SnapshotLevel)
	content, err := os.ReadFile(copied)
	must(t, err)
	// The copy is a hard link.
	must(t, errors.Join(os.Remove(copied), os.WriteFile(copied, damages[0].do(content), 0o600)))
	if found := compare(t, "with a damaged copy", cfg, two); len(found.Damaged) != 1 || !strings.Contains(found.Damaged[0], name) {
		t.Errorf("got damaged objects %q, want %s", found.Damaged, name)
	}
}

// TestDamagedRecord damages the record of a term. The error names it, and the term can be
// restored from its own path.
func TestDamagedRecord(t *testing.T) {
	cfg, rows := levels(t)
	_, object := planned(t, cfg, 0)
	own := filepath.Dir(filepath.Dir(filepath.Dir(object)))
	record := filepath.Join(own, termName)
	for _, content := range []string{"", "{", "\x00\x00", `{"term": "x"}`, `{"term": 7, "parent": 9}`} {
		replaceContent(t, record, []byte(content))
		_, err := Restore(t.Context(), cfg, filepath.Join(t.TempDir(), "restored.db"), time.Time{})
		if err == nil || errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), "terms/0001/term.json") ||
			!strings.Contains(err.Error(), "damaged") {
			t.Errorf("%q: got %v, want an error with the damaged record", content, err)
		}
	}
	alone, err := ParseURL("file://" + own)
	must(t, err)
	wantNumber(t, "rows restored from the term's own path", restoredRows(t, alone), rows)
}
