package store

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// While the disk is nearly full, events are refused and everything else works. Afterwards
// publishing resumes.
func TestLowDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(t.Context(), Config{Dir: dir, MinFreeDisk: AutoFreeDisk})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")

		s.disk.min = math.MaxInt64
		publish(t, s, "p", "content_updated") // the last check is still used
		time.Sleep(diskCheckInterval)
		if _, err := s.Events().Publish(t.Context(), "p", []webhook.Event{event("content_updated")}); err == nil {
			t.Error("an event was accepted on a full disk")
		} else {
			wantCode(t, err, webhook.CodeUnavailable)
		}
		wantCode(t, s.Check(t.Context()), webhook.CodeUnavailable)
		if d, err := s.Figures().Disk(); err != nil || !d.Low || d.Free <= 0 || d.Size < d.Free {
			t.Errorf("got %+v, %v, want Low", d, err)
		}
		if c := send(t, s, queue(t, s, sub.ID), 200); len(c.Events) != 2 {
			t.Errorf("a delivery of %d events, want 2", len(c.Events))
		}
		subscribe(t, s, "p", "content_updated")

		s.disk.min = 1
		time.Sleep(diskCheckInterval)
		publish(t, s, "p", "content_updated")
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Free pages of the database count as free space, as long as the WAL has space too.
func TestTooFull(t *testing.T) {
	for _, c := range []struct {
		room, unused, least int64
		want                bool
	}{
		{100, 0, 100, false}, {99, 0, 100, true}, {99, 1, 100, false}, {25, 75, 100, false}, {25, 74, 100, true}, {24, 1000, 100, true},
	} {
		if got := tooFull(c.room, c.unused, c.least); got != c.want {
			t.Errorf("%d free, %d unused, minimum %d: got %v, want %v", c.room, c.unused, c.least, got, c.want)
		}
	}
	inBubble(t, func(t *testing.T, s *Store) {
		subscribe(t, s, "p", "content_deleted")
		for range 500 {
			publish(t, s, "p", "content_updated")
		}
		unused := func() (n int64) {
			if err := s.scanNow(selectUnused, nil, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := unused()
		time.Sleep(time.Hour)
		sweepAt(t, s, time.Now().Add(-time.Minute))
		if after := unused(); after < before+20_000 {
			t.Errorf("%d bytes unused, and %d after 499 events were removed", before, after)
		}
	})
}
