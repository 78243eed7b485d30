package replica

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"hash"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"

	"service/store/sqlite"

	"service/test/seed"
)

// simulation is a sequence of services on one replica. Each begins with the database of the
// previous one or with the replica. One serves at a time, but a replaced service may continue
// without knowing.
type simulation struct {
	t       *testing.T
	rand    *rand.Rand
	target  string
	dir     string // of the service
	serving *replicated
	zombies []*replicated
	trace   []string
}

// simulatedSteps is the length of a sequence.
const simulatedSteps = 12

// TestTermSimulation runs random sequences of writes, compactions, snapshots,
// crashes, copies, restores and takeovers. After each step that uploads everything, the
// replica must restore to exactly the current database.
func TestTermSimulation(t *testing.T) {
	seeds := 24
	if testing.Short() {
		seeds = 6
	}
	seed.Each(t, seeds, func(t *testing.T, n uint64) {
		t.Parallel()
		m := &simulation{t: t, rand: seed.New(n), target: t.TempDir(), dir: t.TempDir()}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("steps: %q", m.trace)
			}
		})
		m.open()
		m.write(m.serving)
		for range simulatedSteps {
			m.step()
		}
		m.check()
	})
}

// step performs a random step.
func (m *simulation) step() {
	steps := []struct {
		name string
		run  func()
	}{
		{"write", func() { m.write(m.serving) }},
		{"write", func() { m.write(m.serving) }},
		{"upload", m.check},
		{"upload", m.check},
		{"compact", func() { m.maintain(m.serving) }},
		{"compact", func() { m.maintain(m.serving) }},
		{"zombies", m.goOn},
		{"close", m.restart},
		{"crash", m.crash},
		{"crash", m.crash},
		{"other program", m.otherProgram},
		{"put back", m.putBack},
		{"copy", m.copyData},
		{"restore", m.restore},
		{"restore", m.restore},
	}
	s := steps[m.rand.IntN(len(steps))]
	m.trace = append(m.trace, s.name)
	s.run()
}

func (m *simulation) config(dir string) *Config {
	cfg := fileConfig(m.t, dir, m.target)
	// Compaction and retention run as steps: without a lease, a service may otherwise
	// delete files that another is about to continue.
	cfg.CompactionIntervals = []time.Duration{time.Hour, time.Hour}
	cfg.SnapshotRetention = time.Hour
	cfg.L0Retention, cfg.L0RetentionInterval = 50*time.Millisecond, 0
	return cfg
}

func (m *simulation) open() { m.serving = openReplicated(m.t, m.dir, m.config(m.dir)) }

// write changes rows of a database.
func (m *simulation) write(r *replicated) {
	for range 1 + m.rand.IntN(4) {
		size := 1 + m.rand.IntN(30_000)
		switch m.rand.IntN(4) {
		case 0:
			r.write("UPDATE data SET value = randomblob(?) WHERE id % 3 = ?", size/4, m.rand.IntN(3))
		case 1:
			r.write("DELETE FROM data WHERE id = (SELECT max(id) FROM data)")
		default:
			r.write("INSERT INTO data (value) VALUES (randomblob(?))", size)
		}
		if s := r.current(); s != nil && m.rand.IntN(3) == 0 {
			s.db.Sync(m.t.Context()) // for several files; may fail, as while it is closed
		}
	}
}

// maintain compacts, takes a snapshot and removes old objects.
func (m *simulation) maintain(r *replicated) {
	s := r.current()
	if s == nil || s.snapshot.Load() {
		return
	}
	for level := range 2 {
		r.compact(m.t.Context(), s, &litestream.CompactionLevel{Level: level + 1, Interval: time.Millisecond})
	}
	if m.rand.IntN(2) == 0 {
		if _, err := s.db.Snapshot(m.t.Context()); err != nil {
			m.t.Logf("snapshot: %v", err)
		}
	}
	ctx := m.t.Context()
	for _, err := range []error{
		r.completeTerm(ctx, s), r.enforceL0Retention(ctx, s), r.enforceSnapshotRetention(ctx, s, 300*time.Millisecond),
	} {
		if err != nil {
			m.t.Logf("maintain: %v", err)
		}
	}
}

// check uploads everything and compares the restored database with the current one.
func (m *simulation) check() {
	m.t.Helper()
	m.serving.settle()
	path := filepath.Join(m.t.TempDir(), "restored.db")
	if _, err := Restore(m.t.Context(), m.config(m.dir), path, time.Time{}); err != nil {
		m.t.Fatalf("restore: %v", err)
	}
	countRows(m.t, path) // also checks the pages
	if got, want := contentOf(m.t, path), contentOf(m.t, filepath.Join(m.dir, "service.db")); got != want {
		m.t.Fatalf("restored database: got %s, want %s", got, want)
	}
}

// contentOf returns the number of rows of a database and their checksum.
func contentOf(t *testing.T, path string) string {
	t.Helper()
	db, err := sqlite.OpenReadOnly(path)
	must(t, err)
	defer db.Close()
	rows, err := db.Query("SELECT id, value FROM data ORDER BY id")
	must(t, err)
	defer rows.Close()
	sum, n := sha256.New(), 0
	for ; rows.Next(); n++ {
		must(t, addRow(sum, rows))
	}
	must(t, rows.Err())
	return fmt.Sprintf("%d rows %.8x", n, sum.Sum(nil))
}

func addRow(sum hash.Hash, rows *sql.Rows) error {
	var id int64
	var value []byte
	err := rows.Scan(&id, &value)
	fmt.Fprintln(sum, id, len(value))
	sum.Write(value)
	return err
}

// goOn lets replaced services continue.
func (m *simulation) goOn() {
	for _, z := range m.zombies {
		m.write(z)
		m.maintain(z)
	}
}

// replace starts a service in dir and lets the current one continue without knowing.
func (m *simulation) replace(dir string) {
	if m.rand.IntN(2) == 0 {
		m.end(m.serving)
	} else {
		m.serving.awaitSession() // otherwise it would begin a later term
		m.zombies = append(m.zombies, m.serving)
	}
	m.dir = dir
	m.open()
}

// end ends a service like kill -9, without an upload or a checkpoint.
func (m *simulation) end(r *replicated) {
	r.stop()
	<-r.done
	if s := r.current(); s != nil {
		r.abandon(s, errors.New("killed"))
	}
	if err := r.db.Close(func() error { return nil }); err != nil {
		m.t.Error(err)
	}
}

func (m *simulation) restart() {
	if err := m.serving.close(); err != nil && !errors.Is(err, errTermEnded) {
		m.t.Errorf("close: %v", err)
	}
	m.open()
}

func (m *simulation) crash() {
	m.end(m.serving)
	m.open()
}

// otherProgram ends the service, and has another program write to the database.
func (m *simulation) otherProgram() {
	m.end(m.serving)
	execute(m.t, m.dir, nil, "INSERT INTO data (value) VALUES (randomblob(20000))", "DELETE FROM data WHERE id = 2")
	m.open()
}

// putBack puts the data directory back to an older state, as a snapshot of a file
// system does.
func (m *simulation) putBack() {
	m.end(m.serving)
	older := m.t.TempDir()
	copyDir(m.t, m.dir, older)
	m.open()
	m.write(m.serving)
	if m.rand.IntN(2) == 0 {
		m.serving.settle()
		m.maintain(m.serving)
	}
	m.end(m.serving)
	entries, err := os.ReadDir(m.dir)
	must(m.t, err)
	for _, e := range entries {
		must(m.t, os.RemoveAll(filepath.Join(m.dir, e.Name())))
	}
	copyDir(m.t, older, m.dir)
	m.open()
}

// copyData ends the service for a copy of its data directory, which serves after that.
func (m *simulation) copyData() {
	m.end(m.serving)
	to := m.t.TempDir()
	copyDir(m.t, m.dir, to)
	m.open() // the old one begins again, and may go on
	m.write(m.serving)
	m.replace(to)
}

// restore restores the replica to another directory, which serves after that.
func (m *simulation) restore() {
	to := m.t.TempDir()
	if position := m.newest(); position == 0 {
		return
	}
	restoreTo(m.t, m.config(to), to)
	m.replace(to)
}

// newest returns the newest transaction in the replica.
func (m *simulation) newest() uint64 {
	source, err := openSource(context.Background(), m.config(m.dir), noTime, false)
	if errors.Is(err, ErrEmpty) {
		return 0
	} else if err != nil {
		m.t.Fatal(err)
	}
	newest, _, err := position(context.Background(), source.client)
	must(m.t, err)
	return uint64(newest)
}
