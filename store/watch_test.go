package store

import (
	"testing"

	"service/store/watch"
)

// A watcher that begins while a write changes a delivery is notified: it may have read the delivery
// before the commit.
func TestWatchDuringWrite(t *testing.T) {
	s := openProgram(t)
	var late *watch.Watcher
	must(t, s.writer.do(func(t *tx) error {
		for num := range int64(watch.MaxChanged + 1) {
			t.deliveryChanged(1 + num)
		}
		late = s.WatchDeliveries()
		return nil
	}))
	defer late.Close()
	select {
	case <-late.C:
	default:
		t.Fatal("the watcher was not notified")
	}
	changed := late.Take().Deliveries
	_, first := changed[1]
	_, unnamed := changed[0]
	if !first || !unnamed || len(changed) != watch.MaxChanged {
		t.Errorf("got %d changes, the first: %t, unnamed ones: %t", len(changed), first, unnamed)
	}
	must(t, s.writer.do(func(*tx) error { return nil }))
	if len(late.C) != 0 {
		t.Error("the watcher was notified of a commit without changes of deliveries")
	}
}
