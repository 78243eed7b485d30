package replica

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/superfly/ltx"

	"service/store/sqlite"
)

// verified is a replicated database whose replica is compared on demand.
type verified struct {
	*replicated
	cfg *Config

	mu       sync.Mutex
	results  []Verification
	statuses []Status // after each comparison
}

// openVerified opens a database whose replica is not compacted automatically.
func openVerified(t *testing.T) *verified {
	dir := t.TempDir()
	v := &verified{cfg: stillConfig(t, dir)}
	v.replicated = openReplicatedWith(t, dir, v.cfg, func(r *Replication) {
		r.VerifyContent(time.Hour, Verification{}, func(y Verification) {
			status := r.Status()
			v.mu.Lock()
			defer v.mu.Unlock()
			v.results, v.statuses = append(v.results, y), append(v.statuses, status)
		})
	})
	v.await("up to date", upToDate)
	return v
}

// last returns the last result.
func (v *verified) last() Verification {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.results) == 0 {
		v.t.Fatal("got no result, want one")
	}
	return v.results[len(v.results)-1]
}

// keepWriting inserts and deletes rows until stop is called. No checkpoint can run during a
// comparison, which takes as long as the machine needs, so it writes a number of rows per call of
// more.
func (v *verified) keepWriting() (more, stop func()) {
	const rows = 500
	done, permits := make(chan struct{}), make(chan struct{}, rows)
	var writing sync.WaitGroup
	writing.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-permits:
			}
			<-tick.C
			v.write("INSERT INTO data (value) VALUES (randomblob(?))", 100+n%50*400)
			if n%40 == 39 {
				v.write("DELETE FROM data WHERE id % 3 = 0")
			}
		}
	})
	more = func() {
		for len(permits) < rows {
			permits <- struct{}{}
		}
	}
	return more, func() { close(done); writing.Wait() }
}

// TestContentEqual compares a replica with a database that grows and shrinks under load.
// They are equal each time.
func TestContentEqual(t *testing.T) {
	t.Parallel()
	v := openVerified(t)
	s := v.current()
	more, stop := v.keepWriting()
	defer stop()
	for n := range 12 {
		more()
		must(t, v.content.verify(t.Context(), s))
		switch n {
		case 3:
			v.insert(1)
			v.awaitSent(s) // gives the compaction something to merge
			s.compact(t)
		case 5:
			db, err := sqlite.OpenWritable(v.path)
			if err == nil {
				_, err = db.Exec("VACUUM")
			}
			must(t, errors.Join(err, db.Close()))
		case 7:
			_, err := s.db.Snapshot(t.Context())
			must(t, err)
		}
		if y := v.last(); y.Failing || y.Time.IsZero() || y.TXID == "" || y.Bytes == 0 {
			t.Errorf("got %+v, want an equal replica", y)
		}
	}
	if s := v.Status(); s.Verified.Time.IsZero() || s.Verified.Failing {
		t.Errorf("got status %+v, want a verified replica", s)
	}
}

// TestContentDamaged damages an object that a restore of the newest state needs. A
// comparison names it, and a new snapshot repairs the newest state.
func TestContentDamaged(t *testing.T) {
	v := openVerified(t)
	s := v.current()
	v.insert(10_000)
	v.awaitSent(s)
	name := damageNext(t, v.replicated, v.cfg)
	must(t, v.content.verify(t.Context(), s))
	v.mu.Lock()
	results := v.results
	v.mu.Unlock()
	if len(results) != 2 || !results[0].Failing || !strings.Contains(results[0].Err, name) {
		t.Fatalf("got results %+v, want 2, the first with %s", results, name)
	}
	if s := v.statuses[0]; s.State != StateFailing || s.Err != results[0].Err {
		t.Errorf("got status %+v, want a failing replica", s)
	}
	if s := v.statuses[1]; s.State != StateRunning {
		t.Errorf("after a new snapshot: got status %+v, want a running replica", s)
	}
	if y := results[1]; y.Failing || !y.Time.After(y.Failed) || y.Err != results[0].Err {
		t.Errorf("after a new snapshot: got %+v, want an equal replica", y)
	}
	wantNumber(t, "rows restored", restoredRows(t, v.cfg), 3)
}

// TestContentDiffers compares a replica whose objects are intact, but differ from the
// database.
func TestContentDiffers(t *testing.T) {
	v := openVerified(t)
	s := v.current()
	v.insert(10_000)
	v.awaitSent(s)
	name, path := planned(t, v.cfg, 0)
	forge(t, path)
	v.Fence(func() bool { return false }) // no snapshot can be uploaded
	if err := v.content.verify(t.Context(), s); err == nil {
		t.Fatal("replica with other content: got no error")
	}
	if y := v.last(); !y.Failing || !strings.Contains(y.Err, "differ from the database") || !strings.Contains(y.Err, name) {
		t.Errorf("got %+v, want pages that differ in %s", y, name)
	}
}

// forge changes a page of an object and recomputes its checksums.
func forge(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	var forged bytes.Buffer
	enc, err := ltx.NewEncoder(&forged)
	must(t, err)
	dec := ltx.NewDecoder(bytes.NewReader(content))
	must(t, errors.Join(dec.DecodeHeader(), enc.EncodeHeader(dec.Header())))
	page := make([]byte, dec.Header().PageSize)
	for {
		var p ltx.PageHeader
		if err := dec.DecodePage(&p, page); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		page[len(page)-1] ^= 1
		must(t, enc.EncodePage(ltx.PageHeader{Pgno: p.Pgno}, page))
	}
	must(t, enc.Close())
	replaceContent(t, path, forged.Bytes())
}
