package store

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// A dry run ends after dryRunTime with its counts so far.
func TestDryRunTime(t *testing.T) {
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		slow := false
		s, err := Open(t.Context(), Config{Dir: dir, Fault: func(query string, _ bool) sqlite.Fault {
			if slow && strings.HasPrefix(query, countReplayed) {
				time.Sleep(dryRunTime)
			}
			return sqlite.NoFault
		}})
		must(t, err)
		defer s.Close()
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		names := slices.Repeat([]string{"content_updated"}, replayStep)
		publish(t, s, "p", names...)
		publish(t, s, "p", "content_updated")
		for claimed := 0; claimed <= replayStep; { // events that the subscription's own cursor has yet to reach are not replayed
			claimed += len(form(t, s, queue(t, s, sub.ID), replayStep).Events)
		}
		f := &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll}
		for _, want := range []ReplayCount{{replayStep + 1, 11, true}, {replayStep, 10, false}} {
			n, err := s.Replays().Count(t.Context(), "p", sub.ID, f, 100)
			if err != nil || n != want {
				t.Errorf("slow: %t: got %+v, %v; want %+v", slow, n, err, want)
			}
			slow = true
		}
	})
}

// A program has at most two dry runs of replays and bulk runs in progress. Other programs have
// their own limit.
func TestDryRunsOfProgram(t *testing.T) {
	s, sub := openSubscribed(t)
	count := func() error {
		_, err := s.Replays().Count(t.Context(), "p", sub.ID, &webhook.ReplayFields{From: time.Now().Add(-time.Hour), Only: webhook.ReplayAll}, 1)
		_, bulk := s.BulkRuns().DryRun(t.Context(), "p", webhook.BulkRedeliver, query(t, webhook.AllDeliveryList, ""))
		if !errors.Is(err, bulk) {
			t.Errorf("a replay: got %v; a bulk run: got %v", err, bulk)
		}
		return err
	}
	begin := func(program string) func() {
		end, err := s.beginDryRun(program)
		must(t, err)
		return end
	}
	end := begin("p")
	wantError(t, "the second", count(), nil)
	defer begin("p")()
	wantError(t, "the third", count(), ErrDryRuns)
	defer begin("q")()
	end()
	wantError(t, "after the end of one", count(), nil)
}
