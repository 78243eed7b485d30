package store

import (
	"testing"

	"service/webhook"
)

// A queue is done with its splits only when none has anything left to send: one may have more to send
// since they were read, because an earlier one has ended.
func TestSplitsLeft(t *testing.T) {
	s, sub := openSubscribed(t)
	want := func(at string, want bool) {
		t.Helper()
		if left, err := s.Queues().finishSplits(t.Context(), queue(t, s, sub.ID)); left != want || err != nil {
			t.Errorf("%s: splits are left: %t, %v; want %t", at, left, err, want)
		}
	}
	want("before", false)
	publish(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	end(t, s, form(t, s, queue(t, s, sub.ID), 2), webhook.StatusFailed)
	for range 2 {
		want("with events to send", true)
		one := formSplitOf(t, s, sub.ID)
		if one == nil {
			t.Fatal("the split sends nothing")
		}
		end(t, s, one, webhook.StatusSuccess)
	}
	want("in the end", false)
}
