package replica

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestBucketClock has the clock of the bucket differ. It is logged once, and
// decides nothing.
func TestBucketClock(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	behind, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
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
	l, err := NewLease(t.Context(), LeaseConfig{Replica: b.config(t, dir), Dir: dir, TTL: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Acquire(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	renew := func(by time.Duration) string {
		t.Helper()
		log.Reset()
		shift = by
		if err := l.renewOrLose(t.Context()); err != nil || !l.Valid() {
			t.Fatalf("with a difference of %s the lease is renewed: %v, valid: %t", by, err, l.Valid())
		}
		ahead, err := BucketClock(t.Context(), b.config(t, dir))
		if err != nil || (ahead+by).Abs() > 2*time.Second {
			t.Errorf("the clock is %s ahead (%v), want %s", ahead, err, -by)
		}
		return log.String()
	}
	if said := renew(2 * time.Second); said != "" {
		t.Errorf("a small difference: %s", said)
	}
	if said := renew(-10 * time.Minute); !strings.Contains(said, "differs from the bucket's") || !strings.Contains(said, "ahead=10m0s") && !strings.Contains(said, "ahead=9m59s") && !strings.Contains(said, "ahead=10m1s") {
		t.Errorf("ten minutes ahead: %s", said)
	}
	if said := renew(10 * time.Minute); said != "" {
		t.Errorf("it is reported again: %s", said)
	}
	if said := renew(0); !strings.Contains(said, "agrees with the bucket's again") {
		t.Errorf("the clock was set: %s", said)
	}
	server.Close()
	if _, err := BucketClock(t.Context(), b.config(t, dir)); err == nil {
		t.Error("a bucket that does not answer has a clock")
	}
}
