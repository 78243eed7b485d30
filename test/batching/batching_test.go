package batching

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

// TestOutage takes down a receiver that limits the size of a body, with all defaults. Neither the
// outage nor the limit may cost an event, or alert an operator.
func TestOutage(t *testing.T) {
	t.Parallel()
	// Batches exceed the second limit.
	for limit, events := range map[int]int{100_000: 3000, 30_000: 1000} {
		t.Run(fmt.Sprintf("limit of %d bytes", limit), func(t *testing.T) {
			t.Parallel()
			down, seen := true, make(map[string]bool)
			r := newReceiver(func(r *request) int {
				// The outage lasts until the first retry.
				down = down && (len(r.numbers) == 0 || !seen[r.id])
				seen[r.id] = true
				switch {
				case len(r.numbers) == 0:
				case down:
					return http.StatusBadGateway
				case r.bytes > limit:
					return http.StatusRequestEntityTooLarge
				}
				return http.StatusOK
			})
			sc := newScenario(t, r, harness.Subscription{}, events, 2048)
			r.release()
			sc.awaitEnd(events)
			sc.checkFailed()
			if all := sc.incidents(); len(all) > 0 {
				t.Errorf("got the incidents %+v, want none", all)
			}
			if n := len(sc.alerts); n > 0 {
				t.Errorf("got %d alerts, want none", n)
			}
			t.Logf("%d requests of several events were refused", r.refusedTogether())
		})
	}
}

// TestRefusedEvents refuses four of many waiting events with 422. They fail, the others do not,
// even if the service is killed while it sends the others again.
func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		t.Run(fmt.Sprintf("kill %t", kill), func(t *testing.T) {
			t.Parallel()
			refusedEvents(t, kill)
		})
	}
}

func refusedEvents(t *testing.T, kill bool) {
	t.Helper()
	const events = 2000
	poison := []int{700, 701, 1200, 1990}
	middle := make(chan struct{}) // closed when an event was refused alone
	kills := kill
	var r *receiver
	r = newReceiver(func(req *request) int {
		if !req.hasOneOf(poison) {
			return http.StatusOK
		}
		if kill && len(req.numbers) == 1 {
			kill = false
			r.holdAgain()
			close(middle)
		}
		return http.StatusUnprocessableEntity
	})
	sc := newScenario(t, r, harness.Subscription{}, events, 200)
	r.release()
	if kills {
		harness.Receive(t, "an event refused alone", middle)
		sc.in.Kill(sc.process)
		r.release()
		sc.process = sc.in.MustStart()
	}
	sc.awaitEnd(events - len(poison))
	parents := sc.checkFailed(poison...)
	if got := r.refusedAlone(); !slices.Equal(got, poison) {
		t.Errorf("got the events %v refused alone, want %v", got, poison)
	}
	if n := r.refusedTogether(); len(parents) == 0 || len(parents) > n {
		t.Errorf("got %d failed deliveries of several events, want from 1 to %d, the requests refused", len(parents), n)
	}
	checkRefused(t, sc, poison, len(parents))
}

// checkRefused checks what an operator sees of failed events, in separate deliveries and in a
// number of deliveries with other events.
func checkRefused(t *testing.T, sc *scenario, poison []int, parents int) {
	t.Helper()
	failed := map[string]any{"action": "redeliver", "filter": map[string]string{"status": "failed"}, "dry_run": true}
	if run := post[bulkRun](sc, "/v2/bulk_runs", failed); run.Done != len(poison) || run.Skipped[webhook.SkipSentAgain] != parents {
		t.Errorf("bulk run over the failed deliveries: got %+v, want %d redeliveries, and %d skipped as sent again", run, len(poison),
			parents)
	}
	if all := sc.incidents(); len(all) != 1 || all[0].FailedDeliveries != len(poison) {
		t.Errorf("got the incidents %+v, want one with %d failed deliveries", all, len(poison))
	}
	if !testing.Short() { // it collects the failures of a minute
		if alert := harness.Receive(t, "the alert", sc.alerts); !strings.Contains(alert, `"failed_events":4`) {
			t.Errorf("got the alert %s, want one of 4 events", alert)
		}
	}
}

// TestPoison has a receiver that cannot process one event and answers 500. That event fails once
// its attempts are exhausted; the events that were sent with it do not.
func TestPoison(t *testing.T) {
	t.Parallel()
	const events, poison = 500, 250
	r := newReceiver(func(r *request) int {
		if r.hasOneOf([]int{poison}) {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	sc := newScenario(t, r, harness.Subscription{}, events, 200, "--retry-schedule", "10ms,10ms,10ms,10ms", "--retry-jitter", "0")
	r.release()
	sc.awaitEnd(events - 1)
	parents := sc.checkFailed(poison)
	if len(parents) != 1 {
		t.Errorf("got %d failed deliveries of several events, want 1", len(parents))
	}
	for _, d := range append(parents, sc.left()...) {
		if d.FailureReason != webhook.FailureAttemptsExhausted || d.AttemptsMade != webhook.MaxAttempts {
			t.Errorf("delivery of %d events: got %s after %d attempts, want %s after %d", len(d.Events), d.FailureReason, d.AttemptsMade,
				webhook.FailureAttemptsExhausted, webhook.MaxAttempts)
		}
	}
}

// bulkRun is a bulk run as the API returns it.
type bulkRun struct {
	ID, Status string
	Total      *int
	Done       int
	Skipped    map[webhook.BulkSkip]int
}

// TestWrongCredential makes a credential wrong for a while. At most four events fail, and once
// these are resent nothing is left to resend, by any query.
func TestWrongCredential(t *testing.T) {
	t.Parallel()
	for _, inFlight := range []int{8, 1} {
		t.Run(fmt.Sprintf("%d in flight", inFlight), func(t *testing.T) {
			t.Parallel()
			testWrongCredential(t, inFlight)
		})
	}
}

func testWrongCredential(t *testing.T, inFlight int) {
	const events, mostFailed = 2000, 4
	accept := func(*request) int { return http.StatusOK }
	r := newReceiver(accept)
	become := func(verdict func(*request) int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.verdict = verdict
	}
	since := time.Now().UTC()
	sc := newScenario(t, r, harness.Subscription{MaxInFlight: inFlight}, events, 200)
	page := sc.pages()
	// The first requests are accepted. Each later request contains a whole batch.
	harness.WaitForCount(t, "requests", inFlight, r.heldRequests)
	r.releaseHeld()
	harness.WaitForCount(t, "requests of batches", inFlight, r.heldRequests)
	become(func(*request) int { return http.StatusUnauthorized })
	r.release()
	subscription := "/v2/webhooks/subscriptions/" + sc.id
	awaitStatus := func(want string) {
		t.Helper()
		harness.WaitFor(t, "the subscription to be "+want, func() bool {
			got, _, err := harness.Get[struct{ Status string }](sc.in, sc.token, subscription)
			if err != nil {
				t.Fatal(err)
			}
			return got.Status == want
		})
	}
	awaitStatus("failing")
	failed := r.refusedAlone()
	t.Logf("%d requests of several events were refused, and the events %v", r.refusedTogether(), failed)
	if len(failed) > mostFailed {
		t.Errorf("got %d events that failed alone, want at most %d", len(failed), mostFailed)
	}

	become(accept)
	post[any](sc, subscription+"/ping", nil) // begins the next probe
	awaitStatus("healthy")
	sc.awaitEnd(events - len(failed))
	sc.checkFailed(failed...)
	all := sc.incidents()
	if len(all) != 1 || all[0].Status != "resolved" {
		t.Fatalf("got the incidents %+v, want a resolved one", all)
	}
	incidentPage := "/incidents/" + all[0].ID
	offers := func() bool { return strings.Contains(page(incidentPage), `data-key="resend"`) }
	if offers() != (len(failed) > 0) {
		t.Errorf("%d events have failed: the incident page offers to resend %t", len(failed), offers())
	}

	post[any](sc, subscription+"/replays", map[string]any{"only": "failed", "from": since.Format(time.RFC3339)})
	sc.awaitEnd(events)
	sc.checkFailed()
	if offers() || strings.Contains(page(incidentPage), "can be resent") {
		t.Error("everything is delivered, and the incident page offers to resend")
	}
	run := post[bulkRun](sc, "/v2/bulk_runs", map[string]any{"action": "redeliver", "filter": map[string]string{"status": "failed"}})
	harness.WaitFor(t, "the end of the bulk run", func() bool {
		var err error
		if run, _, err = harness.Get[bulkRun](sc.in, sc.token, "/v2/bulk_runs/"+run.ID); err != nil {
			t.Fatal(err)
		}
		return run.Status == "done"
	})
	if run.Total == nil || *run.Total == 0 || run.Done > 0 || run.Skipped[webhook.SkipRecovered] != *run.Total {
		t.Errorf("bulk run over the failed deliveries: got %+v, want all skipped as recovered", run)
	}
}
