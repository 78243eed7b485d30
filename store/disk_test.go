package store

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"service/store/doctor"
	"service/webhook"
)

// While the disk is nearly full, events are refused and everything else works. Publishing
// resumes once the disk has space.
func TestLowDisk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, Config{Dir: dir, MinFreeDisk: doctor.AutoFreeDisk})
		defer s.Close()
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		publish(t, s, "p", "content_updated")

		s.disk.Min = math.MaxInt64
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

		s.disk.Min = 1
		time.Sleep(diskCheckInterval)
		publish(t, s, "p", "content_updated")
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Rows removed by retention become free pages of the database.
func TestUnusedPages(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		subscribe(t, s, "p", "content_deleted")
		for range 500 {
			publish(t, s, "p", "content_updated")
		}
		unused := func() (n int64) {
			must(t, s.scanNow("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size", nil, &n))
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
