package store

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"service/webhook"
)

// An outage of the disk is logged once, and its end once with the number of refused writes.
func TestOutageIsLoggedOnce(t *testing.T) {
	ctx := context.Background()
	var log bytes.Buffer
	s := opened(t, Config{Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	defer s.Close()
	program(t, s, "p")
	limit := func(pages string) {
		t.Helper()
		_, err := s.db.Writer().Conn().ExecContext(ctx, "PRAGMA max_page_count = "+pages)
		must(t, err)
	}
	want := func(when string, refusals, recoveries int) {
		t.Helper()
		if got := strings.Count(log.String(), "level=ERROR"); got != refusals {
			t.Errorf("%s: got %d lines about the outage, want %d:\n%s", when, got, refusals, &log)
		}
		if got := strings.Count(log.String(), "storage is writable again"); got != recoveries {
			t.Errorf("%s: got %d lines about the recovery, want %d:\n%s", when, got, recoveries, &log)
		}
	}
	limit("1") // rounded up to the current size
	refused := 0
	for range 2000 {
		if _, err := s.Events().Publish(ctx, "p", []webhook.Event{event("content_updated")}); Unavailable(err) {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused < 100 {
		t.Fatalf("%d writes were refused, want some", refused)
	}
	want("while it is full", 1, 0)
	limit("1000000")
	publishAll(t, s, "p", event("content_updated"))
	want("at once with room", 1, 0)
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
	want("after a check", 1, 1)
	if !strings.Contains(log.String(), " failed_writes=") || strings.Contains(log.String(), " failed_writes=1 ") {
		t.Errorf("the log lacks the number of refused writes:\n%s", &log)
	}
}
