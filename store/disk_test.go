package store

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// While there is too little room no event is accepted, and everything else
// goes on; when there is, publishing goes on by itself.
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

		s.disk.least = math.MaxInt64
		publish(t, s, "p", "content_updated") // the last look still holds
		time.Sleep(diskLooked)
		if _, err := s.Publish(t.Context(), "p", []webhook.Event{event("content_updated")}); err == nil {
			t.Error("an event was accepted without room")
		} else {
			wantCode(t, err, webhook.CodeUnavailable)
		}
		wantCode(t, s.Check(t.Context()), webhook.CodeUnavailable)
		if d, err := s.Disk(); err != nil || !d.Low || d.Free <= 0 || d.Size < d.Free {
			t.Errorf("the disk is %+v, %v, want low", d, err)
		}
		if c := send(t, s, lane(t, s, sub.ID), 200); len(c.Events) != 2 {
			t.Errorf("a delivery of %d events, want both that were accepted", len(c.Events))
		}
		subscribe(t, s, "p", "content_updated")

		s.disk.least = 1
		time.Sleep(diskLooked)
		publish(t, s, "p", "content_updated")
		if err := s.Check(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
