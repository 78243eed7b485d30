package sqlite

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An outage ends when all writes have succeeded for outageQuiet.
func TestOutageEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		var o outage
		record := func(failures int) { o.record(failures, ErrUnavailable, time.Now(), logger) }
		record(0)
		record(3)
		time.Sleep(time.Second)
		record(0)
		time.Sleep(4 * time.Second)
		record(2)
		time.Sleep(4 * time.Second)
		record(0)
		if got := strings.Count(log.String(), "\n"); got != 1 {
			t.Errorf("got %d lines, want 1:\n%s", got, &log)
		}
		time.Sleep(time.Second)
		record(0)
		record(0)
		if got := strings.Count(log.String(), "\n"); got != 2 || !strings.Contains(log.String(), "failed_writes=5 lasted=10s") {
			t.Errorf("got %d lines, want 2, the last with failed_writes=5 lasted=10s:\n%s", got, &log)
		}
		record(1)
		if got := strings.Count(log.String(), "level=ERROR"); got != 2 {
			t.Errorf("got %d errors, want 2, one for each outage:\n%s", got, &log)
		}
	})
}
