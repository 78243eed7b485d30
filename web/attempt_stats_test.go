package web

import (
	"testing"
	"time"

	"service/webhook"
)

func TestFailureKinds(t *testing.T) {
	var s webhook.Stat
	count := func(n int, a webhook.Attempt) {
		for range n {
			s.Count(&a)
		}
	}
	count(9, webhook.Attempt{Result: webhook.ResultSuccess, ResponseStatus: 204})
	count(3, webhook.Attempt{Result: webhook.ResultRetryable, ResponseStatus: 503})
	count(5, webhook.Attempt{Result: webhook.ResultRetryable, Error: webhook.ErrorTimeout})
	count(1, webhook.Attempt{Result: webhook.ResultFailed, ResponseStatus: 404})
	count(1, webhook.Attempt{Result: webhook.ResultFailed, Error: webhook.ErrorBlocked})
	got := failedResponses(&s, "acme")
	want := []struct{ answer, state, href string }{
		{"timeout", "retryable", "/deliveries?filter[error]=timeout&program=acme"},
		{"503", "retryable", "/deliveries?filter[response_status]=503&program=acme"},
		{"404", "failed", "/deliveries?filter[response_status]=404&program=acme"},
		{"blocked", "failed", "/deliveries?filter[error]=blocked&program=acme"},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i, w := range want {
		if g := got[i]; g.answer != w.answer || g.state != w.state || g.href != w.href || g.says == "" {
			t.Errorf("got %+v, want %+v", g, w)
		}
	}
	p := attemptStats{total: s}
	if p.rate() != "47.4 %" {
		t.Errorf("rate %s", p.rate())
	}
	for range 10_000 {
		p.total.Count(&webhook.Attempt{Result: webhook.ResultSuccess, ResponseStatus: 200, Duration: time.Millisecond})
	}
	if p.rate() != "99.9 %" {
		t.Errorf("rate %s of not all, want it not to be all", p.rate())
	}
}
