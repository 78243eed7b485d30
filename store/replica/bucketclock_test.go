package replica

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A difference between the clocks is logged once and does not affect the lease.
func TestBucketClock(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	behind, err := url.Parse(b.url)
	must(t, err)
	var shift time.Duration
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.ModifyResponse = func(r *http.Response) error {
		r.Header.Set("Date", time.Now().Add(shift).UTC().Format(http.TimeFormat))
		return nil
	}
	server := httptest.NewServer(proxy)
	defer server.Close()
	b.url = server.URL
	dir := t.TempDir()
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.config(t, dir), Dir: dir, TTL: time.Hour, Logger: logger})
	must(t, err)
	must(t, l.Acquire(t.Context(), 0))
	renew := func(by time.Duration) string {
		t.Helper()
		log.Reset()
		shift = by
		if err := l.renewOrLose(t.Context()); err != nil || !l.Valid() {
			t.Fatalf("difference of %s: got %v, valid %t, want the lease renewed", by, err, l.Valid())
		}
		ahead, err := BucketClock(t.Context(), b.config(t, dir))
		if err != nil || (ahead+by).Abs() > 2*time.Second {
			t.Errorf("got a clock %s ahead, %v, want %s", ahead, err, -by)
		}
		return log.String()
	}
	if got := renew(2 * time.Second); got != "" {
		t.Errorf("2 s behind: got %q, want no log", got)
	}
	ahead := regexp.MustCompile(`differs from the bucket's.* ahead=(9m59s|10m0s|10m1s)`)
	if got := renew(-10 * time.Minute); !ahead.MatchString(got) {
		t.Errorf("10 min ahead: got %q, want %s", got, ahead)
	}
	if got := renew(10 * time.Minute); got != "" {
		t.Errorf("10 min behind: got %q, want no second warning", got)
	}
	if got := renew(0); !strings.Contains(got, "agrees with the bucket's clock again") {
		t.Errorf("clock set: got %q, want that the clocks agree", got)
	}
	server.Close()
	if _, err := BucketClock(t.Context(), b.config(t, dir)); err == nil {
		t.Error("unreachable bucket: got no error")
	}
}
