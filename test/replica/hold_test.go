package replica

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// TestRestoreHold restores a service with a pending delivery: the service sends only
// pings until the operator runs service release.
func TestRestoreHold(t *testing.T) {
	harness.Long(t)
	// The receiver does not respond to an event, so the end of the service interrupts
	// the attempt, and the delivery is due at the next start.
	arrivals := make(chan string, 100) // "ping" or "event"
	receiver := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil:
		case harness.IsPing(body):
			arrivals <- "ping"
		default:
			arrivals <- "event"
			<-r.Context().Done()
		}
	}))
	arrival := func(want string) {
		t.Helper()
		if got := harness.Receive(t, want, arrivals); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	data, replica := t.TempDir(), t.TempDir()
	config := writeReplica(t, data, "50ms", "path: "+replica)
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", config,
		"--retry-schedule", "1h,1h,1h,1h", "--attempt-timeout", "5m", "--grace", "200ms")
	token := in.Token("acme")
	run := in.MustStart()
	subscription := in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events("content_updated")})
	arrival("ping")
	in.Publish(token, map[string]any{"name": "content_updated", "version": "1", "content_id": 7})
	arrival("event")
	in.MustStop(run)
	out, err := in.Command("restore", "--data", data, "--litestream", config, "--force")
	if err != nil || !strings.Contains(out, "service release") {
		t.Fatalf("restore: %v, want how to resume deliveries\n%s", err, out)
	}
	run = in.MustStart()
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions/"+subscription+"/ping", nil, nil); err != nil ||
		status != http.StatusOK {
		t.Errorf("ping: status %d, %v", status, err)
	}
	arrival("ping")
	select {
	case got := <-arrivals:
		t.Errorf("during the hold: got a delivery of %s", got)
	case <-time.After(time.Second): // without the hold the event arrives before the service is ready
	}
	if out, err := in.Command("release", "--data", data); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
	arrival("event")
	in.MustStop(run)
	if log := run.Log.String(); !strings.Contains(log, "1 delivery") && !strings.Contains(log, "deliveries=1") {
		t.Errorf("log: want how many deliveries may be sent again:\n%s", log)
	}
}
