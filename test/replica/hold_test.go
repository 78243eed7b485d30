package replica

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// TestReplicaHeld restores a service with a delivery that has not ended: only
// pings are sent until the operator releases the deliveries.
func TestReplicaHeld(t *testing.T) {
	harness.Long(t)
	// The receiver does not answer an event, so that the attempt is interrupted
	// by the end of the service, and the delivery is due at its next start.
	arrivals := make(chan string, 100) // the names of what arrives
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
	in := harness.NewInstance(t, harness.Build(t), data, "--litestream", writeReplica(t, data, "50ms", "path: "+replica),
		"--restore-hold", "1h", "--retry-schedule", "1h,1h,1h,1h", "--attempt-timeout", "5m", "--grace", "200ms")
	token := in.Token("acme")
	run := in.MustStart()
	subscription := in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events("content_updated")})
	arrival("ping")
	in.Publish(token, map[string]any{"name": "content_updated", "version": "1", "content_id": 7})
	arrival("event")
	in.MustStop(run)
	if err := os.Remove(filepath.Join(data, "service.db")); err != nil {
		t.Fatal(err)
	}
	run = in.MustStart()
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions/"+subscription+"/ping", nil, nil); err != nil || status != http.StatusOK {
		t.Errorf("ping: status %d, %v", status, err)
	}
	arrival("ping")
	select {
	case got := <-arrivals:
		t.Errorf("a delivery that is held has arrived: %s", got)
	case <-time.After(time.Second): // without the hold it is sent before the service is ready
	}
	if out, err := in.Command("release", "--data", data); err != nil {
		t.Fatalf("release: %v\n%s", err, out)
	}
	arrival("event")
	in.MustStop(run)
	if log := run.Log.String(); !strings.Contains(log, "1 delivery") && !strings.Contains(log, "deliveries=1") {
		t.Errorf("the log does not say how many deliveries may be sent again:\n%s", log)
	}
}
