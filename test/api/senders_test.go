package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/test/harness"
	"service/webhook"
)

// sender describes how another webhook sender calls its receivers, according to its documentation.
type sender struct {
	Sender         string
	Event          string            // the name of one of its events
	Name           string            // of that event here
	Headers        map[string]string // the same in all requests to a receiver
	EventHeaders   map[string]string `json:"event_headers"`   // the same in all requests with the event
	RequestHeaders map[string]string `json:"request_headers"` // headers that differ, and the header with the same role here, if there is one

	Secret  string // signing secret, "" for none
	Decoded bool   // the key is the decoded secret, as in Standard Webhooks, and not its text
}

// ownSecret returns this service's secret with the same key, and whether there is one.
func (s *sender) ownSecret() (secret string, possible bool) {
	if s.Decoded {
		return s.Secret, true
	}
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(s.Secret)), len(s.Secret) >= 24 && len(s.Secret) <= 64
}

// row is the line of a sender in docs/adopt.md.
func (s *sender) row() string {
	code := func(names []string) string {
		if len(names) == 0 {
			return "–"
		}
		return "`" + strings.Join(names, "`, `") + "`"
	}
	kept := code(slices.Sorted(maps.Keys(s.Headers)))
	if len(s.EventHeaders) > 0 {
		kept = strings.TrimPrefix(kept+", "+code(slices.Sorted(maps.Keys(s.EventHeaders)))+" (1)", "–, ")
	}
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(s.RequestHeaders)) {
		instead := "no equal"
		if own := s.RequestHeaders[name]; own != "" {
			instead = "`" + own + "`"
		}
		changed = append(changed, "`"+name+"`: "+instead)
	}
	name := "`" + s.Event + "`"
	if s.Name != s.Event {
		name = "`" + s.Event + "` becomes `" + s.Name + "`"
	}
	secret := "its text is the key"
	switch _, possible := s.ownSecret(); {
	case s.Secret == "":
		secret = "none"
	case s.Decoded:
		secret = "as it is"
	case !possible && len(s.Secret) < 24:
		secret = fmt.Sprintf("a new one: %d bytes are too few", len(s.Secret))
	case !possible:
		secret = fmt.Sprintf("a new one: %d bytes are too many", len(s.Secret))
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s |", s.Sender, name, kept, strings.Join(changed, ", "), secret)
}

// TestOtherSenders checks the statements of docs/adopt.md with the built binary: which names,
// headers and secrets of other senders a receiver can keep, and which are refused.
func TestOtherSenders(t *testing.T) {
	text, err := os.ReadFile("testdata/senders.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []sender
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/adopt.md")
	if err != nil {
		t.Fatal(err)
	}
	p := newPlatform(t)
	p.must(t, "PUT", "/v2/programs/acme", `{"name":"Acme"}`, http.StatusCreated)
	for i := range all {
		s := &all[i]
		t.Run(s.Sender, func(t *testing.T) {
			if !strings.Contains(string(doc), s.row()+"\n") {
				t.Errorf("docs/adopt.md lacks the line\n%s", s.row())
			}
			s.check(t, p)
		})
	}
}

func (s *sender) check(t *testing.T, p *platform) {
	arrived := make(chan *http.Request, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if !harness.IsPing(body) {
			r.Body = io.NopCloser(strings.NewReader(string(body)))
			arrived <- r
		}
	}))
	defer receiver.Close()
	if s.Event != s.Name {
		p.must(t, "PUT", "/v2/event_types/"+url.PathEscape(s.Event), eventType(s.Event, "number"), http.StatusBadRequest)
	}
	p.must(t, "PUT", "/v2/event_types/"+s.Name, eventType(s.Name, "number"), http.StatusCreated)

	headers := maps.Clone(s.EventHeaders)
	if headers == nil {
		headers = make(map[string]string)
	}
	maps.Copy(headers, s.Headers)
	fields := map[string]any{"url": receiver.URL, "events": []any{map[string]string{"name": s.Name}}}
	if a, ok := headers["Authorization"]; ok {
		delete(headers, "Authorization")
		fields["authorization_header"] = a
	}
	fields["headers"] = headers
	secret, possible := s.ownSecret()
	create := func(status int) {
		t.Helper()
		body, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.call(t.Context(), p.token, "acme", "POST", "/v2/webhooks/subscriptions", string(body), status); err != nil {
			t.Fatal(err)
		}
	}
	if s.Secret != "" {
		fields["signing_secret"] = secret
	}
	if s.Secret != "" && !possible {
		create(http.StatusBadRequest)
		fields["signing_secret"] = webhook.NewSigningSecret().Reveal()
		secret = fields["signing_secret"].(string)
	}
	create(http.StatusCreated)
	if _, err := p.call(t.Context(), p.token, "acme", "POST", "/v2/events", fmt.Sprintf(`{"name":%q,"version":"1","number":1}`, s.Name),
		http.StatusCreated); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-arrived:
		s.checkRequest(t, r, secret)
	case <-time.After(harness.Timeout()):
		t.Fatal("the event did not arrive")
	}
}

// checkRequest checks a delivery.
func (s *sender) checkRequest(t *testing.T, r *http.Request, secret string) {
	for _, want := range []map[string]string{s.Headers, s.EventHeaders} {
		for name, value := range want {
			if got := r.Header.Values(name); !slices.Equal(got, []string{value}) {
				t.Errorf("%s: got %q, want %q", name, got, value)
			}
		}
	}
	for name, instead := range s.RequestHeaders {
		if r.Header.Get(name) != "" || instead != "" && r.Header.Get(instead) == "" {
			t.Errorf("%s: got %q, and %q for %s", name, r.Header.Get(name), r.Header.Get(instead), instead)
		}
	}
	if s.Secret == "" {
		return
	}
	key, err := webhook.ParseSigningSecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, possible := s.ownSecret(); possible && !s.Decoded && string(key) != s.Secret {
		t.Error("the key is not the text of the secret")
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := wh.Verify(body, r.Header); err != nil {
		t.Errorf("the signature: %v", err)
	}
}
