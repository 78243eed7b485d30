package replica

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/store/sqlite"
	"service/test/harness"
)

// uploads returns the number of bytes written to a replica in a directory. Hard links do not
// count.
func uploads(t *testing.T, target string) (bytes int64) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(target, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if inode := info.Sys().(*syscall.Stat_t).Ino; !seen[inode] {
			seen[inode] = true
			bytes += info.Size()
		}
		return nil
	})
	must(t, err)
	return bytes
}

// pages returns the content of a database and its WAL, without the counters in the first page.
func pages(t *testing.T, path string) []byte {
	t.Helper()
	to := filepath.Join(t.TempDir(), "pages.db")
	for _, suffix := range []string{"", "-wal"} {
		text, err := os.ReadFile(path + suffix)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err == nil {
			err = os.WriteFile(to+suffix, text, 0o600)
		}
		must(t, err)
	}
	db, err := sqlite.OpenWritable(to)
	if err == nil {
		_, err = db.Exec(sqlite.TruncateWAL)
	}
	if err == nil {
		err = db.Close()
	}
	must(t, err)
	text, err := os.ReadFile(to)
	must(t, err)
	clear(text[18:20])
	clear(text[24:28])
	clear(text[92:100])
	return text
}

// compare restores the newest state and compares it page by page with the closed database in
// dir.
func compare(t *testing.T, what string, cfg *Config, dir string) Result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "restored.db")
	found, err := Restore(t.Context(), cfg, path, time.Time{})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	got, want := pages(t, path), pages(t, filepath.Join(dir, "service.db"))
	if len(got) != len(want) {
		t.Fatalf("%s: got %d bytes restored, want %d", what, len(got), len(want))
	}
	for n := 0; n < len(got); n += 4096 {
		if !bytes.Equal(got[n:n+4096], want[n:n+4096]) {
			t.Errorf("%s: page %d differs", what, n/4096+1)
		}
	}
	return found
}

// random commits rows of random bytes.
func (r *replicated) random(rows int) {
	r.t.Helper()
	for range rows {
		value := make([]byte, 10_000)
		rand.Read(value)
		r.write("INSERT INTO data (value) VALUES (?)", value)
	}
}

// settle waits until everything is uploaded.
func (r *replicated) settle() {
	r.t.Helper()
	r.await("up to date", upToDate)
	r.awaitSent(r.current())
}

// compact compacts the new changes, unless the session does at the same time: then one of the two
// fails, because both write the same file.
func (s *session) compact(t *testing.T) {
	t.Helper()
	var err error
	for range 2 {
		if _, err = s.db.Compact(context.Background(), 1); err == nil || errors.Is(err, litestream.ErrNoCompaction) {
			return
		}
	}
	t.Error(err)
}

// TestTerms lets a second service take over without the knowledge of the first, which
// continues to upload, compact and take snapshots. A restore uses only the second.
func TestTerms(t *testing.T) {
	t.Parallel()
	t.Run("folder", func(t *testing.T) {
		target := t.TempDir()
		testTakeover(t, func(dir string) *Config { return fileConfig(t, dir, target) })
	})
	t.Run("bucket", func(t *testing.T) {
		b := newBucket(t)
		testTakeover(t, func(dir string) *Config { return b.config(t, dir) })
	})
}

func testTakeover(t *testing.T, config func(dir string) *Config) {
	one, two := t.TempDir(), t.TempDir()
	first := openReplicated(t, one, config(one))
	first.random(50)
	first.settle()
	restoreTo(t, config(two), two)
	second := openReplicated(t, two, config(two))
	second.settle()
	own := second.current().own
	if own.term.Snapshot || own.term.Parent != 1 || own.term.Number != 2 {
		t.Errorf("second service: got term %+v, want term 2 that continues term 1", own.term)
	}
	for range 5 {
		first.random(10)
		first.settle()
		s := first.current()
		ctx := context.Background()
		s.compact(t)
		if _, err := s.db.Snapshot(ctx); err != nil {
			t.Error(err)
		}
		second.random(3)
	}
	second.settle()
	second.current().compact(t)
	second.await("complete", func(Status) bool {
		current, err := newestTerm(context.Background(), own.at)
		return err == nil && current.Complete
	})
	second.mustClose()
	compare(t, "after the takeover", config(two), two)
	if err := first.close(); err != nil {
		t.Log(err)
	}
	compare(t, "after the end of the first", config(two), two)
	// The term can be restored alone.
	alone, err := own.at.client(2)
	if err == nil {
		err = alone.Init(t.Context())
	}
	if err == nil {
		_, err = litestream.CalcRestorePlan(t.Context(), alone, 0, noTime, quiet)
	}
	if err != nil {
		t.Errorf("term 2 alone: got %v, want no error", err)
	}
}

// TestStateOfAnEarlierTerm restores a state from before the current term began.
func TestStateOfAnEarlierTerm(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := fileConfig(t, two, target)
	r := openReplicated(t, one, fileConfig(t, one, target))
	r.random(20)
	r.settle()
	r.mustClose()
	old := compare(t, "term 1", cfg, one)
	harness.WaitForFileTime(t, old.State.Add(time.Millisecond))
	restoreTo(t, cfg, two)
	r = openReplicated(t, two, cfg)
	r.random(1)
	r.settle()
	r.mustClose()
	if now := compare(t, "term 2", cfg, two); now.Origin.term.Number != 2 {
		t.Errorf("newest state: got one of term %d, want 2", now.Origin.term.Number)
	}
	path := filepath.Join(t.TempDir(), "older.db")
	found, err := Restore(t.Context(), cfg, path, old.State.Add(time.Millisecond))
	if err != nil || !found.State.Equal(old.State) || found.Origin.term.Number != 1 {
		t.Fatalf("state of %s: got %s of term %d, %v", old.State, found.State, found.Origin.term.Number, err)
	}
	wantNumber(t, "rows of the older state", countRows(t, path), 20)
	_, err = Restore(t.Context(), cfg, filepath.Join(t.TempDir(), "none.db"), time.Unix(1, 0))
	if !errors.Is(err, ErrEmpty) || !strings.Contains(err.Error(), "no state before") {
		t.Errorf("before the first term: got %v", err)
	}
}

// TestUnreleasedReplica checks that a replica with files at its root and no term is neither
// restored nor written to, and that an empty one is.
func TestUnreleasedReplica(t *testing.T) {
	t.Parallel()
	t.Run("folder", func(t *testing.T) {
		target := t.TempDir()
		testUnreleased(t, func(dir string) *Config { return fileConfig(t, dir, target) }, func(file string, content []byte) {
			path := filepath.Join(target, "ltx", file)
			must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)))
		})
	})
	t.Run("bucket", func(t *testing.T) {
		b := newBucket(t)
		testUnreleased(t, func(dir string) *Config { return b.config(t, dir) }, func(file string, content []byte) {
			b.put(t, "000"+file, string(content))
		})
	})
}

func testUnreleased(t *testing.T, config func(dir string) *Config, put func(file string, content []byte)) {
	dir := t.TempDir()
	restore := func() error {
		_, err := Restore(t.Context(), config(dir), filepath.Join(t.TempDir(), "restored.db"), time.Time{})
		return err
	}
	wantError(t, "an empty replica", restore(), ErrEmpty)
	put("0/0000000000000001-0000000000000001.ltx", []byte("from an unreleased version"))
	wantError(t, "restore", restore(), ErrUnreleased)
	_, err := Restore(t.Context(), config(dir), filepath.Join(t.TempDir(), "restored.db"), time.Now())
	if !errors.Is(err, ErrUnreleased) {
		t.Errorf("restore of a time: got %v", err)
	}
	if _, err := Newest(t.Context(), config(dir)); !errors.Is(err, ErrUnreleased) {
		t.Errorf("newest state: got %v", err)
	}
	r := openReplicated(t, dir, config(dir))
	r.random(1)
	r.await("failing", func(s Status) bool { return s.State == StateFailing && strings.Contains(s.Err, "unreleased version") })
	if err := r.close(); err == nil {
		t.Error("closed without an error, although nothing is in the replica")
	}
	at, err := config(dir).location(t.Context())
	must(t, err)
	if numbers, err := at.terms(t.Context()); err != nil || len(numbers) > 0 {
		t.Errorf("got terms %v, %v; want none", numbers, err)
	}
}

// chain is a sequence of terms that continue each other. None is complete.
type chain struct {
	t  *testing.T
	at *folderLocation
}

// write writes a file of one page to a term.
func (c chain) write(number int64, level int, minTXID, maxTXID ltx.TXID) {
	c.t.Helper()
	client, err := c.at.client(number)
	must(c.t, err)
	var text bytes.Buffer
	enc, err := ltx.NewEncoder(&text)
	must(c.t, err)
	h := ltx.Header{
		Version: ltx.Version, Flags: ltx.HeaderFlagNoChecksum, PageSize: 512, Commit: 1,
		MinTXID: minTXID, MaxTXID: maxTXID, Timestamp: time.Now().UnixMilli(), NodeID: uint64(number),
	}
	page := bytes.Repeat([]byte{byte(number), byte(maxTXID)}, 256)
	must(c.t, errors.Join(enc.EncodeHeader(h), enc.EncodePage(ltx.PageHeader{Pgno: 1}, page), enc.Close()))
	_, err = client.WriteLTXFile(c.t.Context(), level, minTXID, maxTXID, &text)
	must(c.t, err)
}

func (c chain) begin(next term) {
	c.t.Helper()
	must(c.t, claim(c.t.Context(), c.at, next))
}

// files lists the files of a level, with the terms that they are read from.
func (c chain) files(client *termClient, level int) (names []string) {
	c.t.Helper()
	itr, err := client.LTXFiles(c.t.Context(), level, 0, false)
	must(c.t, err)
	files, err := ltx.SliceFileIterator(itr)
	must(c.t, err)
	for _, f := range files {
		from, err := client.source(c.t.Context(), f)
		must(c.t, err)
		r, err := client.OpenLTXFile(c.t.Context(), f.Level, f.MinTXID, f.MaxTXID, 0, 0)
		must(c.t, err)
		dec := ltx.NewDecoder(r)
		must(c.t, errors.Join(dec.Verify(), r.Close()))
		if int64(dec.Header().NodeID) != from {
			c.t.Errorf("file %d %d-%d: got term %d, want %d", f.Level, f.MinTXID, f.MaxTXID, dec.Header().NodeID, from)
		}
		names = append(names, fmt.Sprintf("%d/%d-%d of %d", f.Level, f.MinTXID, f.MaxTXID, from))
	}
	return names
}

// TestChain reads from terms that continue each other, none of them complete.
func TestChain(t *testing.T) {
	at := &folderLocation{t.TempDir()}
	terms := chain{t, at}
	terms.begin(term{Number: 1, Snapshot: true})
	terms.write(1, 9, 1, 3)
	for tx := ltx.TXID(4); tx <= 10; tx++ {
		terms.write(1, 0, tx, tx)
	}
	terms.write(1, 1, 4, 9)
	terms.begin(term{Number: 2, Parent: 1, ParentTXID: 6})
	for tx := ltx.TXID(7); tx <= 8; tx++ {
		terms.write(2, 0, tx, tx)
	}
	terms.begin(term{Number: 3, Parent: 2, ParentTXID: 7})
	terms.write(3, 0, 8, 8)
	terms.write(3, 0, 9, 9)
	terms.write(3, 1, 4, 9)
	current, err := newestTerm(t.Context(), at)
	if err != nil || current.Number != 3 {
		t.Fatalf("current term: got %+v, %v", current, err)
	}
	c, err := openTerm(t.Context(), at, current, false)
	must(t, err)
	got := slices.Concat(terms.files(c, 0), terms.files(c, 1), terms.files(c, 9))
	want := []string{"0/4-4 of 1", "0/5-5 of 1", "0/6-6 of 1", "0/7-7 of 2", "0/8-8 of 3", "0/9-9 of 3", "1/4-9 of 3", "9/1-3 of 1"}
	if !slices.Equal(got, want) {
		t.Errorf("files of term 3: got\n%q, want\n%q", got, want)
	}
	if _, err := c.OpenLTXFile(t.Context(), 0, 10, 10, 0, 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("file of the parent after ParentTXID: got %v, want %v", err, os.ErrNotExist)
	}
	must(t, c.DeleteLTXFiles(t.Context(), []*ltx.FileInfo{{Level: 0, MinTXID: 4, MaxTXID: 4}}))
	if r, err := c.OpenLTXFile(t.Context(), 0, 4, 4, 0, 0); err != nil {
		t.Errorf("file of the parent after a deletion: got %v, want no error", err)
	} else {
		_, _ = io.Copy(io.Discard, r)
		r.Close()
	}
	wantError(t, "existing term", claim(t.Context(), at, term{Number: 3}), errTermTaken)
}

// After another service has begun a later term in a replica without a lease, the first one
// reports it and stops writing.
func TestLaterTerm(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	r := openReplicated(t, dir, fileConfig(t, dir, target))
	r.random(1)
	r.settle()
	other := openReplicated(t, t.TempDir(), fileConfig(t, t.TempDir(), target))
	other.random(1)
	other.settle()
	if session := r.current(); session != nil { // nil if its first check was late enough to find it
		session.superseded.Store(true) // as the check every termInterval does
	}
	r.random(1)
	r.await("failing permanently", func(s Status) bool {
		return s.State == StateFailing && s.Err == errTermEnded.Error() && r.current() == nil
	})
	wantError(t, "Close", r.close(), errTermEnded)
	current, err := newestTerm(t.Context(), other.current().own.at)
	if err != nil || current.Number != 2 {
		t.Errorf("current term: got %+v, %v, want 2", current, err)
	}
}

// TestPlainBucket replicates to a bucket without conditional writes. It contains terms, but
// two services that begin one at the same moment are not detected.
func TestPlainBucket(t *testing.T) {
	b := newBucket(t)
	b.plain.Store(true)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	r := openReplicated(t, dir, cfg)
	r.random(1)
	r.settle()
	at := r.current().own.at
	r.mustClose()
	compare(t, "without conditional writes", cfg, dir)
	wantError(t, "existing term", claim(t.Context(), at, term{Number: 1, Nonce: "other"}), errTermTaken)
}

// TestEndAtOnce ends a service right after it has continued a restored copy. The replica must
// contain everything.
func TestEndAtOnce(t *testing.T) {
	target := t.TempDir()
	dir := t.TempDir()
	r := openReplicated(t, dir, fileConfig(t, dir, target))
	r.random(5)
	r.settle()
	r.mustClose()
	for n := range 8 {
		dir = t.TempDir()
		cfg := fileConfig(t, dir, target)
		restoreTo(t, cfg, dir)
		r := openReplicated(t, dir, cfg)
		for range 100 * n { // end at different moments of the start
			runtime.Gosched()
		}
		wantError(t, fmt.Sprintf("end %d", n), r.close(), nil)
		compare(t, fmt.Sprintf("end %d", n), cfg, dir)
	}
}
