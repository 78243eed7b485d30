package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answered checks that the response is documented, is not an internal error, and, if it is an
// error, has the envelope.
func answered(t *testing.T, shared *service, r *http.Request) {
	t.Helper()
	s := *shared
	s.t = t
	r.Header.Set("Authorization", "Bearer "+s.token)
	got := s.serve(r)
	if got.status >= 500 {
		t.Errorf("got %d: %s", got.status, got.body)
	}
	if got.status >= 400 && !strings.HasPrefix(string(got.body), `{"error":{"code":`) {
		t.Errorf("got %d without the envelope: %s", got.status, got.body)
	}
}

// FuzzQuery sends any query to the lists.
func FuzzQuery(f *testing.F) {
	s := start(f)
	deliveries := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated") + "/deliveries"
	for _, raw := range []string{
		"", "sort=-created_at", "filter[status]=failed,retryable", "filter%5Bstatus%5D%5B%5D=failed&filter[error]=dns",
		"filter[created_at.from]=2026-01-01&filter[created_at][to]=2026-01-02T00:00:00Z", "page[size]=7&page.cursor=x",
		"filter[response_status]=5xx,404",
		"page[number]=99999999999999999999", "filter[a]=%zz", "filter[name]=\xff", "sort=;", "filter=&page=&sort", "filter[status][from]=1",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, path := range []string{deliveries, "/v2/events", "/v2/webhooks/subscriptions"} {
			r := httptest.NewRequest("GET", path, nil)
			r.URL.RawQuery = raw
			answered(t, s, r)
		}
	})
}

// FuzzBody sends any text as the body of a request.
func FuzzBody(f *testing.F) {
	s := start(f)
	subscription := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for _, body := range []string{
		contentUpdated, `{"events":[` + contentUpdated + `]}`, `{"url":"https://partner.example","events":[{"name":"ping"}]}`,
		`{"from":"2026-01-01","only":"all"}`, `{"a":1,"a":2}`, `{"A":1}`, `[]`, `null`, `{} x`, "{\"a\":\"\xff\"}", `{"a":"\ud800"}`,
		strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 40), `{"content_id":1e999999999}`, `{"content_id":-0.0}`, "\ufeff{}", "",
	} {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for _, target := range []struct{ method, path, media string }{
			{"POST", "/v2/webhooks/subscriptions", "application/json"},
			{"PUT", subscription, "application/json"},
			{"POST", subscription + "/replays", "application/json"},
			{"POST", "/v2/events", "application/json"},
			{"POST", "/v2/events", "application/x-ndjson"},
		} {
			r := httptest.NewRequest(target.method, target.path, strings.NewReader(body))
			r.Header.Set("Content-Type", target.media)
			answered(t, s, r)
		}
	})
}
