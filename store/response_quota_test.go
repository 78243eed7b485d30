package store

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// respond records the attempt of a claim with a response of size bytes.
func respond(t *testing.T, s *Store, c *Claim, status, size int) {
	t.Helper()
	a := webhook.Attempt{
		Number: c.Number, StartedAt: time.Now(), ResponseStatus: status, Result: webhook.Classify(status, webhook.ErrorNone),
		ResponseHeader: "X-A: b\n", ResponseBody: bytes.Repeat([]byte("r"), size-len("X-A: b\n")),
	}
	recordResult(t, s, c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0), webhook.HealthPolicy{})
}

// attempt publishes an event, forms its delivery, and records a response.
func attempt(t *testing.T, s *Store, sub *webhook.Subscription, status, size int) *Claim {
	t.Helper()
	publish(t, s, sub.ProgramID, sub.Events[0])
	c := form(t, s, queue(t, s, sub.ID), 1)
	if c == nil {
		t.Fatal("nothing waits")
	}
	respond(t, s, c, status, size)
	return c
}

// stillStored reports whether the response of a delivery's only attempt is stored, and checks
// that it is shown accordingly.
func stillStored(t *testing.T, s *Store, c *Claim) bool {
	t.Helper()
	d, err := s.Deliveries().View(t.Context(), c.ID)
	if err != nil || len(d.Attempts) == 0 {
		t.Fatalf("got %d attempts, %v; want 1", len(d.Attempts), err)
	}
	a := d.Attempts[len(d.Attempts)-1]
	if a.ResponseRemoved != (a.ResponseHeader == "") || a.ResponseRemoved != (len(a.ResponseBody) == 0) || a.ResponseStatus == 0 {
		t.Fatalf("got %+v", a)
	}
	return !a.ResponseRemoved
}

func wantStored(t *testing.T, s *Store, claims []*Claim, newest int) {
	t.Helper()
	for i, c := range claims {
		if got, want := stillStored(t, s, c), i >= len(claims)-newest; got != want {
			t.Errorf("response of delivery %d of %d stored: got %v, want %v", i+1, len(claims), got, want)
		}
	}
}

// The newest responses of successful attempts are kept, by completion. The others are removed
// in steps, which the next process continues.
func TestResponsesOfSuccesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := memoryDir(t)
		s := openDir(t, dir)
		s.quotas.successes = 10
		program(t, s, "p")
		sub, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_deleted")
		publish(t, s, "p", "content_updated")
		late := form(t, s, queue(t, s, sub.ID), 1) // formed first, completed last
		var claims []*Claim
		for range 50 {
			claims = append(claims, attempt(t, s, &sub, 200, 300))
			attempt(t, s, &sub, 404, 300)    // not counted
			time.Sleep(2 * time.Millisecond) // responses of the same millisecond are kept together
		}
		few := attempt(t, s, &other, 200, 300)
		respond(t, s, late, 200, 300)
		claims = append(claims, late)

		s.housekeeping.trim[sub.ID] = struct{}{}
		if err := s.removeResponses(interruptedAt(t, s, 1)); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want context.Canceled", err)
		}
		const removed = "SELECT count(*) FROM deliveries d WHERE d.response = 1 AND NOT EXISTS (SELECT 1 FROM responses r " +
			"WHERE r.delivery = d.num)"
		if n := count(t, s, removed); n == 0 || n > firstStep+1 {
			t.Fatalf("one step removed %d responses", n)
		}
		must(t, s.Close())
		s = openDir(t, dir)
		s.quotas.successes = 10
		s.housekeeping.trim[sub.ID], s.housekeeping.trim[other.ID] = struct{}{}, struct{}{}
		must(t, s.removeResponses(t.Context()))
		wantStored(t, s, claims, 10)
		if n := count(t, s, "SELECT count(*) FROM attempts WHERE response_removed = 1"); n != 0 || !stillStored(t, s, few) {
			t.Errorf("%d other responses were removed", n)
		}
		claims = append(claims, attempt(t, s, &sub, 200, 300))
		s.housekeeping.trim[sub.ID] = struct{}{}
		must(t, s.removeResponses(t.Context()))
		wantStored(t, s, claims, 10)
	})
}

// Trimming is scheduled by counts in memory.
func TestResponseCounts(t *testing.T) {
	for _, c := range []struct {
		result      webhook.Result
		size, after int
		of          func(h *housekeeping) map[string]struct{}
	}{
		{webhook.ResultSuccess, 200, successesAtOnce, func(h *housekeeping) map[string]struct{} { return h.trim }},
		{webhook.ResultSuccess, webhook.MaxStoredBody, responsesAtOnce / webhook.MaxStoredBody,
			func(h *housekeeping) map[string]struct{} { return h.trim }},
		{webhook.ResultFailed, webhook.MaxStoredBody, responsesAtOnce / webhook.MaxStoredBody,
			func(h *housekeeping) map[string]struct{} { return h.prune }},
		{webhook.ResultRetryable, 0, 0, func(h *housekeeping) map[string]struct{} { return h.prune }},
	} {
		h := newHousekeeping()
		a := webhook.Attempt{Result: c.result, ResponseBody: make([]byte, c.size)}
		for i := range 2000 {
			h.recorded(&Claim{SubscriptionID: "s", ProgramID: "p"}, &a)
			if due := len(c.of(&h)) > 0; due != (c.after > 0 && i+1 >= c.after) {
				t.Fatalf("%s of %d bytes: due %v after %d", c.result, c.size, due, i+1)
			}
		}
	}
}

// The newest other responses of a program are kept, within its quota.
func TestResponsesOfAProgram(t *testing.T) {
	inBubble(t, func(t *testing.T, s *Store) {
		const size, kept = 1000, 10
		s.quotas.responses = kept*size + size/2
		program(t, s, "q")
		sub, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "q", "content_updated")
		strange := attempt(t, s, &other, 404, size)
		var claims []*Claim
		for i := range 3 * kept {
			claims = append(claims, attempt(t, s, &sub, []int{404, 403}[i%2], size))
			attempt(t, s, &sub, 200, size)
		}
		use := func(program string) int64 {
			return count(t, s, "SELECT coalesce((SELECT bytes FROM response_use WHERE program_id = ?), 0)", program)
		}
		if got := use("p"); got != 3*kept*size {
			t.Errorf("%d bytes are counted, want %d", got, 3*kept*size)
		}
		s.housekeeping.prune["p"], s.housekeeping.prune["q"] = struct{}{}, struct{}{}
		must(t, s.removeResponses(t.Context()))
		wantStored(t, s, claims, kept)
		if !stillStored(t, s, strange) || use("p") != kept*size || use("q") != size {
			t.Errorf("response of the other program stored: %v; counts %d and %d", stillStored(t, s, strange), use("p"), use("q"))
		}
		// Retention updates the counts.
		time.Sleep(time.Hour)
		last := attempt(t, s, &sub, 404, size)
		sweepAt(t, s, time.Now().Add(-time.Minute))
		if use("p") != size || use("q") != 0 || !stillStored(t, s, last) {
			t.Errorf("counts: got %d and %d", use("p"), use("q"))
		}
	})
}

// Responses above the quotas are removed in steps, which the next process continues.
func TestResponsesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, kept, all = 1000, 20, 100
		dir := memoryDir(t)
		small := quotas{successes: 10, responses: kept*size + size/2, redeliveries: 10}
		s := openDir(t, dir)
		program(t, s, "p")
		sub := subscribe(t, s, "p", "content_updated")
		var failed, good []*Claim
		for i := range all {
			failed = append(failed, attempt(t, s, &sub, 404, size))
			if i%2 == 0 {
				good = append(good, attempt(t, s, &sub, 200, size))
				time.Sleep(2 * time.Millisecond)
			}
		}
		for last := int64(0); ; {
			must(t, s.Close())
			s = openDir(t, dir)
			s.quotas = small
			err := s.removeResponses(interruptedAt(t, s, 3))
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			done := 1000 + count(t, s,
				"SELECT (SELECT count(*) FROM attempts WHERE response_removed = 1) - (SELECT count(*) FROM responses)")
			if done <= last {
				t.Fatalf("a process made no progress: %d after %d", done, last)
			}
			last = done
		}
		wantStored(t, s, failed, kept)
		wantStored(t, s, good, 10)
		wantNumber(t, "counted bytes", count(t, s, "SELECT sum(bytes) FROM response_use"), kept*size)
	})
}

// The details of errors count as responses of their program, and the oldest are removed.
func TestErrorFactsAreWithinTheQuota(t *testing.T) {
	s := open(t)
	s.quotas.responses = 1000
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	fact := strings.Repeat("refused ", 12)
	var claims []*Claim
	for range 30 {
		publish(t, s, "p", "content_updated")
		c := form(t, s, queue(t, s, sub.ID), 1)
		a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultFailed, Error: webhook.ErrorConnect, ErrorFact: fact}
		step := webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected}
		recordResult(t, s, c, &a, step, webhook.HealthPolicy{})
		claims = append(claims, c)
	}
	s.housekeeping.prune["p"] = struct{}{}
	must(t, s.removeResponses(t.Context()))
	bytes, kept := count(t, s, "SELECT sum(octet_length(response_header)) FROM attempts"), 0
	for i, c := range claims {
		d, err := s.Deliveries().View(t.Context(), c.ID)
		must(t, err)
		a := d.Attempts[0]
		if a.ResponseRemoved || a.ErrorFact != "" && a.ErrorFact != fact || kept > 0 && a.ErrorFact == "" {
			t.Errorf("attempt %d is %+v", i, a)
		}
		if a.ErrorFact != "" {
			kept++
		}
	}
	if bytes > 1000 || kept == 0 || count(t, s, "SELECT sum(bytes) FROM response_use") != bytes {
		t.Errorf("%d bytes of %d details are stored, want at most 1000", bytes, kept)
	}
}

// The counts of a deleted subscription are removed.
func TestDeletedSubscriptionResponses(t *testing.T) {
	s, sub := openSubscribed(t)
	attempt(t, s, &sub, 200, 1000)
	if n := len(s.housekeeping.successes); n != 1 {
		t.Fatalf("%d subscriptions are counted, want 1", n)
	}
	unsubscribe(t, s, "p", sub.ID)
	wantNumber(t, "counted subscriptions", len(s.housekeeping.successes), 0)
}

// The number of open redeliveries of a subscription is bounded.
func TestOpenRedeliveries(t *testing.T) {
	s := open(t)
	s.quotas.redeliveries = 3
	program(t, s, "p")
	sub, other := subscribe(t, s, "p", "content_updated"), subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	c, o := deliver(t, s, sub.ID, webhook.StatusFailed), deliver(t, s, other.ID, webhook.StatusFailed)
	again := func(of *Claim) error {
		_, err := s.Deliveries().Redeliver(t.Context(), "p", of.SubscriptionID, of.ID)
		return err
	}
	for range 3 {
		must(t, again(c))
	}
	err := again(c)
	wantCode(t, err, webhook.CodeRateLimited)
	if !strings.HasPrefix(err.Error(), "3 redeliveries of the subscription are open") {
		t.Errorf("got %q", err)
	}
	_, err = s.Deliveries().Redeliver(t.Context(), "p", sub.ID, webhook.NewID())
	wantCode(t, err, webhook.CodeNotFound)
	must(t, again(o))
	claimed := mustClaim(t, s, due(s, sub.ID))
	wantCode(t, again(c), webhook.CodeRateLimited) // in flight, so still open
	end(t, s, claimed, webhook.StatusSuccess)
	must(t, again(c))
}
