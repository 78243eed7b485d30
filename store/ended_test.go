//go:build unix

package store

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"service/store/datadir"
	"service/webhook"
)

// commitWithFailedRead runs, in one commit, a write that fills SQLite's cache, a write whose
// read finds the disk full when SQLite spills the cache into the WAL, and then, with space
// again, the write last. It returns the result of last.
func commitWithFailedRead(t *testing.T, s *Store, again bool, last func(*tx) error,
	also ...func(*tx) error) (runs int, firstErr, lastErr error) {
	t.Helper()
	program(t, s, "q")
	for i := range 200 {
		e := event("content_updated")
		err := s.writer.do(func(t *tx) error {
			return t.Exec("INSERT INTO events (program_id, seq, id, name, received_at, json) VALUES ('q', ?, ?, 'content_updated', 1, ?)",
				i+1, e.ID, []byte(`{"id":"`+e.ID+`","x":"`+strings.Repeat("x", 6000)+`"}`))
		})
		must(t, err)
	}
	_, err := s.db.Writer().Conn().ExecContext(t.Context(), "PRAGMA cache_size = 20")
	must(t, err)
	var busy, frames, moved int
	must(t, s.db.Writer().Conn().QueryRowContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved))
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old))
	room := func() { syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old) }
	t.Cleanup(func() { room(); signal.Reset(syscall.SIGXFSZ) })

	release := lead(s)
	first := s.writer.submit(func(tx *tx) error {
		for i := range 40 {
			if err := tx.Exec("INSERT INTO settings (name, value) VALUES (?, ?)", fmt.Sprintf("first-%d", i),
				[]byte(strings.Repeat("x", 3000))); err != nil {
				return err
			}
		}
		for _, fn := range also {
			if err := fn(tx); err != nil {
				return err
			}
		}
		st, err := os.Stat(filepath.Join(s.dir, datadir.Database+"-wal"))
		if err != nil {
			return err
		}
		return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(st.Size()), Max: old.Max})
	}, true)
	second := s.writer.submit(func(t *tx) error {
		defer room()
		runs++
		var n int
		return t.Scan("SELECT coalesce(sum(instr(json, 'zz')), 0) FROM events WHERE program_id = 'q'", nil, &n)
	}, again)
	third := s.writer.submit(last, true)
	release()
	var wg sync.WaitGroup
	var secondErr error
	wg.Go(func() { firstErr = s.writer.Wait(first) })
	wg.Go(func() { secondErr = s.writer.Wait(second) })
	wg.Go(func() { lastErr = s.writer.Wait(third) })
	wg.Wait()
	t.Logf("%d runs of the read\nfirst: %v\nread: %v\nlast: %v", runs, firstErr, secondErr, lastErr)
	return runs, firstErr, lastErr
}

// If SQLite cannot spill its cache, it rolls back the whole transaction, although a read
// failed. The following writes of the commit must not be stored alone.
func TestFailedReadRollsBackCommit(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("again=%t", again), func(t *testing.T) {
			s := openProgram(t)
			l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
			publish(t, s, "p", "content_updated")
			waiting, err := s.Queues().waiting(t.Context(), l, 1, 100, 1<<20)
			if err != nil || len(waiting.Seqs) != 1 {
				t.Fatal(waiting, err)
			}
			f := s.writer.newForming(l, &waiting)
			_, firstErr, lastErr := commitWithFailedRead(t, s, again, f.store)
			var cursor, deliveries, rows int64
			err = s.db.Scan(t.Context(),
				"SELECT (SELECT seq FROM cursors), (SELECT count(*) FROM deliveries WHERE ping IS NULL "+
					"AND claimed_at IS NOT NULL), (SELECT count(*) FROM settings WHERE name LIKE 'first-%')", nil, &cursor, &deliveries, &rows)
			must(t, err)
			if (lastErr != nil) != (deliveries == 0) || (lastErr != nil) != (cursor == 0) {
				t.Errorf("got %v, %d deliveries, cursor %d; want nothing stored", lastErr, deliveries, cursor)
			}
			if (firstErr != nil) != (rows == 0) {
				t.Errorf("first write: got %v, and %d of its rows are stored", firstErr, rows)
			}
		})
	}
}

func TestSeqsAfterFailedRead(t *testing.T) {
	s := openProgram(t)
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	publish(t, s, "p", "content_updated")
	_, _, lastErr := commitWithFailedRead(t, s, true, func(t *tx) error {
		_, err := Write{t}.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	_, err := s.db.Writer().Conn().ExecContext(t.Context(), "PRAGMA cache_size = -16000")
	must(t, err)
	after := publish(t, s, "p", "content_updated")
	var stored int
	must(t, s.db.Scan(t.Context(), "SELECT count(*) FROM events WHERE program_id = 'p'", nil, &stored))
	t.Logf("last: %v; %d events stored; the next one has seq %d", lastErr, stored, after[0].Seq)
	w, err := s.Queues().waiting(t.Context(), l, after[0].Seq, 100, 1<<20)
	must(t, err)
	for i, seq := range w.Seqs {
		var id string
		var body []byte
		err := s.db.Scan(t.Context(), "SELECT id, json FROM events WHERE program_id = 'p' AND seq = ?", []any{seq}, &id, &body)
		must(t, err)
		body, err = s.dictionaries.Unpack(id, body)
		must(t, err)
		if string(body) != string(w.Bodies[i]) {
			t.Errorf("event %d:\n  stored    %s\n  in memory %s", seq, body, w.Bodies[i])
		}
	}
	if n := len(w.Seqs); n != stored {
		t.Errorf("%d events wait for the queue, %d are stored", n, stored)
	}
}

// The same for an inline delivery whose events were rolled back.
func TestNoInlineDeliveryAfterFailedRead(t *testing.T) {
	s := openProgram(t)
	l := queue(t, s, subscribe(t, s, "p", "content_updated").ID)
	credits := offer(s, l)
	_, _, lastErr := commitWithFailedRead(t, s, true, func(*tx) error { return nil }, func(t *tx) error {
		_, err := Write{t}.Publish("p", []webhook.Event{event("content_updated")})
		return err
	})
	_, err := s.db.Writer().Conn().ExecContext(t.Context(), "PRAGMA cache_size = -16000")
	must(t, err)
	credits.Close()
	for f := range credits.C {
		t.Logf("inline delivery: %+v", f)
	}
	t.Logf("last: %v", lastErr)
	published := publish(t, s, "p", "content_updated") // acknowledged
	fresh := queue(t, s, l.SubscriptionID)
	w, err := s.Queues().waiting(t.Context(), fresh, published[0].Seq, 100, 1<<20)
	must(t, err)
	if len(w.Seqs) == 0 {
		t.Errorf("acknowledged event %d does not wait for the queue with cursor %d", published[0].Seq, fresh.Cursor)
	}
}
