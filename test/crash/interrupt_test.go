package crash

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"service/test/harness"
	"service/test/harness/chaos"
	"service/webhook"
)

// request is a delivery as a receiver saw it.
type request struct {
	id   string
	body []byte
	at   time.Time
}

// TestInterrupted kills the service during each attempt of one delivery. Each time
// the service sends the delivery again with the same ID and bytes; after the fifth
// attempt the delivery has failed.
func TestInterrupted(t *testing.T) {
	harness.Long(t)
	arrived := make(chan request)
	hold := make(chan struct{})
	receiver := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || harness.IsPing(body) {
			return
		}
		select {
		case arrived <- request{r.Header.Get("X-Service-Delivery"), body, time.Now()}:
		case <-hold:
		}
		select {
		case <-r.Context().Done():
		case <-hold:
		}
	}))
	t.Cleanup(func() { close(hold) })

	// Only the end of the process ends an attempt: the timeout is longer than the test. The first
	// interruption is followed by no wait, later ones by that of a failure.
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--retry-schedule", "1h,10ms,10ms,10ms", "--attempt-timeout", "5m",
		"--log-level", "warn")
	token := in.Token("acme")
	run := in.MustStart()
	subscription := in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events("content_updated")})
	in.Publish(token, map[string]any{"name": "content_updated", "version": "1", "content_id": 7})

	var first request
	var slowest time.Duration // from the service being ready to the next attempt
	for attempt := 1; attempt <= webhook.MaxAttempts; attempt++ {
		r := harness.Receive(t, "an interrupted attempt to be made again", arrived)
		if attempt == 1 {
			first = r
		} else {
			slowest = max(slowest, r.at.Sub(run.Ready))
		}
		if r.id != first.id || !bytes.Equal(r.body, first.body) {
			t.Errorf("attempt %d: got delivery %s\n%s\nwant %s\n%s", attempt, r.id, r.body, first.id, first.body)
		}
		in.Kill(run)
		run = in.MustStart()
	}
	t.Logf("after each restart the next attempt arrived within %s", slowest.Round(time.Millisecond))
	if slowest > chaos.ResumeWithin() {
		t.Errorf("after the restart: got the next attempt within %s, want within %s", slowest, chaos.ResumeWithin())
	}
	checkExhausted(t, in, token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries/"+first.id)
	// The delivery has failed; a sixth attempt would arrive before this restart ends.
	in.MustStop(run)
	select {
	case r := <-arrived:
		t.Errorf("delivery %s arrived a sixth time", r.id)
	default:
	}
}

// checkExhausted checks that a delivery failed after five interrupted attempts.
func checkExhausted(t *testing.T, in *harness.Instance, token, path string) {
	t.Helper()
	d, _, err := harness.Get[harness.Delivery](in, token, path)
	if err != nil {
		t.Fatal(err)
	}
	if d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureAttemptsExhausted || len(d.Attempts) != webhook.MaxAttempts {
		t.Errorf("after %d interrupted attempts: got status %s (%s), %d attempts; want failed (attempts_exhausted), %[1]d attempts",
			webhook.MaxAttempts, d.Status, d.FailureReason, len(d.Attempts))
	}
	for i, a := range d.Attempts {
		if a.Number != i+1 || a.Error.Code != webhook.ErrorInterrupted || a.ResponseStatus != 0 {
			t.Errorf("attempt %d: got %+v, want it interrupted", i+1, a)
		}
	}
}
