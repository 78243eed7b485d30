package api

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"service/store"
	"service/webhook"
)

// keyed is a request that creates a record.
type keyed struct{ method, target, body string }

// creating returns a request for every route that creates a record.
func (s *service) creating() []keyed {
	i := s.records()
	sub := "/v2/webhooks/subscriptions"
	own := sub + "/" + i.subscription
	return []keyed{
		{"POST", sub, `{"url":"https://partner.example/hook","events":[{"name":"content_updated"}]}`},
		{"POST", own + "/rotate_secret", ""},
		{"POST", own + "/deliveries/" + i.delivery + "/redeliver", ""},
		{"POST", own + "/replays", `{"from":"2026-01-01","only":"all"}`},
		{"POST", own + "/replays", `{"from":"2026-01-01","only":"all","dry_run":true}`},
		{"POST", "/v2/events", contentUpdated},
		{"POST", "/v2/events", `{"events":[` + contentUpdated + `,` + contentUpdated + `]}`},
	}
}

// created counts the records that such requests create.
func (s *service) created() string {
	s.t.Helper()
	var all strings.Builder
	subs := data[[]struct {
		ID        string
		UpdatedAt string `json:"updated_at"`
	}](s.t, s.send("GET", "/v2/webhooks/subscriptions", ""))
	for _, sub := range subs {
		tag := s.send("GET", "/v2/webhooks/subscriptions/"+sub.ID, "").header.Get("Etag") // changes with its secret as well
		n := len(data[[]identified](s.t, s.send("GET", "/v2/webhooks/subscriptions/"+sub.ID+"/deliveries?page[size]=100", "")))
		fmt.Fprintf(&all, "%s %s: %d deliveries\n", sub.ID, tag, n)
	}
	fmt.Fprintf(&all, "%d events\n", len(data[[]identified](s.t, s.send("GET", "/v2/events?page[size]=100", ""))))
	return all.String()
}

func TestIdempotentRequests(t *testing.T) {
	s := start(t)
	for n, k := range s.creating() {
		name := k.target + " " + k.body
		key := fmt.Sprintf("key-%d", n)
		first := s.send(k.method, k.target, k.body, "Idempotency-Key", key)
		if first.status < 200 || first.status > 299 || first.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("%s: got %d %v %s", name, first.status, first.header, first.body)
		}
		created := s.created()
		for range 3 {
			again := s.send(k.method, k.target, k.body, "Idempotency-Key", key)
			if again.status != first.status || again.body != first.body || again.header.Get("Location") != first.header.Get("Location") ||
				again.header.Get("Idempotency-Replayed") != "true" {
				t.Errorf("%s again:\n got %d %v %s\nwant %d %v %s",
					name, again.status, again.header, again.body, first.status, first.header, first.body)
			}
		}
		if now := s.created(); now != created {
			t.Errorf("%s took effect again:\n%s\n%s", name, created, now)
		}
		for what, other := range map[string]response{
			"another body": s.send(k.method, k.target, k.body+" ", "Idempotency-Key", key),
			"another path": s.send("POST", "/v2/events", `{"name":"content_deleted","version":"1","content_id":1}`, "Idempotency-Key", key),
		} {
			wantStatus(t, name+" with "+what, other, 409)
			if other.header.Get("Retry-After") != "" {
				t.Errorf("%s with %s: the key is not free again", name, what)
			}
		}
		if now := s.created(); now != created {
			t.Errorf("a rejected request took effect:\n%s\n%s", created, now)
		}
	}
}

// Keys belong to a token, not to a program.
func TestKeysBelongToAToken(t *testing.T) {
	s := start(t)
	first := s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "k")
	wantStatus(t, "the first", first, 201)
	for _, program := range []string{"acme", "mallory"} {
		other := *s
		other.token = s.newToken(program, "bob", webhook.Scopes()...)
		r := other.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "k")
		if r.status != 201 || r.body == first.body || r.header.Get("Idempotency-Replayed") != "" {
			t.Errorf("a token of %s: got %d %v %s", program, r.status, r.header, r.body)
		}
	}
}

// Stored responses survive a restart.
func TestKeysSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	run := func(secret string, do func(s *service)) {
		st, err := store.Open(context.Background(), store.Config{Dir: dir})
		must(t, err)
		s := start(t, func(c *Config) { c.Store = st })
		s.store = st
		if s.token = secret; secret == "" {
			s.token = s.newToken("acme", "ada", webhook.Scopes()...)
		}
		do(s)
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	var first response
	var secret string
	const body = `{"url":"https://partner.example/hook","events":[{"name":"content_updated"}]}`
	run("", func(s *service) {
		secret = s.token
		first = s.send("POST", "/v2/webhooks/subscriptions", body, "Idempotency-Key", "k")
		wantStatus(t, "the first", first, 201)
	})
	run(secret, func(s *service) {
		again := s.send("POST", "/v2/webhooks/subscriptions", body, "Idempotency-Key", "k")
		if again.status != 201 || again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("got %d %v %s\nwant %s", again.status, again.header, again.body, first.body)
		}
	})
}

func TestInvalidKeys(t *testing.T) {
	s := start(t)
	for key, code := range map[string]string{
		" ":                      "invalid_format",
		"two words":              "invalid_format",
		"tab\there":              "invalid_format",
		"ключ":                   "invalid_format",
		"\x7f":                   "invalid_format",
		strings.Repeat("k", 256): "too_long",
	} {
		for _, k := range s.creating() {
			wantFault(t, fmt.Sprintf("%q on %s", key, k.target), s.send(k.method, k.target, k.body, "Idempotency-Key", key), code, "Idempotency-Key")
		}
	}
	wantStatus(t, "the longest", s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", strings.Repeat("k", 255)), 201)
	for code, keys := range map[string][]string{"duplicate": {"a", "b"}, "invalid_format": {""}} {
		r := s.request("POST", "/v2/events", strings.NewReader(contentUpdated))
		r.Header["Idempotency-Key"] = keys
		wantFault(t, fmt.Sprintf("the keys %q", keys), s.serve(r), code, "Idempotency-Key")
	}
}

// Requests that can be repeated safely ignore keys; a stream rejects them.
func TestKeysOnOtherRequests(t *testing.T) {
	s := start(t)
	i := s.records()
	own := "/v2/webhooks/subscriptions/" + i.subscription
	wait := s.answerPing(204, webhook.ErrorNone)
	wantStatus(t, "ping", s.send("POST", own+"/ping", "", "Idempotency-Key", "two words"), 200)
	wait()
	wantStatus(t, "cancel", s.send("POST", own+"/replays/"+i.replay+"/cancel", "", "Idempotency-Key", "two words"), 200)
	// A stream is rejected before it is read, because it may never end.
	endless, w := io.Pipe()
	defer w.Close()
	r := s.request("POST", "/v2/events", endless)
	r.Header.Set("Content-Type", mediaNDJSON)
	r.Header.Set("Idempotency-Key", "k")
	wantFault(t, "a stream", s.serve(r), "invalid_value", "Idempotency-Key")
	wantStatus(t, "PUT", s.send("PUT", "/v2/webhooks/subscriptions/"+i.subscription, `{}`, "Idempotency-Key", "two words"), 200)
}

// A rejected request stores no response, and a failed one creates nothing.
func TestErrorsAreNotStored(t *testing.T) {
	s := start(t, func(c *Config) { c.MaxSubscriptions = 1 })
	const body = `{"url":"https://partner.example/hook","events":[{"name":"content_updated"}]}`
	id := s.subscribe("content_updated")
	wantStatus(t, "too many", s.send("POST", "/v2/webhooks/subscriptions", body, "Idempotency-Key", "k"), 400)
	wantStatus(t, "delete", s.send("DELETE", "/v2/webhooks/subscriptions/"+id, ""), 200)
	r := s.send("POST", "/v2/webhooks/subscriptions", body, "Idempotency-Key", "k")
	if r.status != 201 || r.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("after the error: got %d %v %s", r.status, r.header, r.body)
	}
	s.closeStore()
	r = s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "l")
	if r.status < 500 {
		t.Errorf("closed store: got %d %s", r.status, r.body)
	}
}

// While a request is in flight, only its key is rejected.
func TestKeyInFlight(t *testing.T) {
	s := start(t)
	key := [2]string{tokenID(t, s), "k"}
	if !s.api.inFlight.Take(key, 1) {
		t.Fatal("the key is in use")
	}
	r := s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "k")
	if r.status != 409 || r.header.Get("Retry-After") != "1" {
		t.Errorf("got %d %v, want 409 with Retry-After", r.status, r.header)
	}
	wantStatus(t, "another key", s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "l"), 201)
	other := *s
	other.token = s.newToken("acme", "bob", webhook.Scopes()...)
	wantStatus(t, "another token", other.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "k"), 201)
	s.api.inFlight.Leave(key)
	r = s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", "k")
	if r.status != 201 || r.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("after its end: got %d %v", r.status, r.header)
	}
	if n := s.api.inFlight.Count(key); n != 0 {
		t.Errorf("%d keys are still in flight", n)
	}
}

// tokenID returns the ID of the service's token.
func tokenID(t *testing.T, s *service) string {
	t.Helper()
	token, err := s.store.Tokens().Authenticate(t.Context(), s.token)
	must(t, err)
	return token.ID
}

// Of concurrent requests with one key, one takes effect.
func TestKeysRace(t *testing.T) {
	s := start(t)
	for round := range 5 {
		key := fmt.Sprint("k", round)
		var ids sync.Map
		var created, replayed, rejected int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 32 {
			wg.Go(func() {
				r := s.send("POST", "/v2/events", contentUpdated, "Idempotency-Key", key)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case r.status == 201 && r.header.Get("Idempotency-Replayed") == "true":
					replayed++
				case r.status == 201:
					created++
				case r.status == 409 && r.header.Get("Retry-After") == "1":
					rejected++
					return
				default:
					t.Errorf("got %d %s", r.status, r.body)
					return
				}
				ids.Store(r.body, true)
			})
		}
		wg.Wait()
		different := 0
		ids.Range(func(any, any) bool { different++; return true })
		if created != 1 || different != 1 {
			t.Errorf("got %d created, %d replayed, %d rejected and %d different responses, want one created and one response",
				created, replayed, rejected, different)
		}
		if n := len(data[[]identified](t, s.send("GET", "/v2/events", ""))); n != round+1 {
			t.Errorf("got %d events, want %d", n, round+1)
		}
	}
}
