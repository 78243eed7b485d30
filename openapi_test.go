package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"service/test/harness"
	"service/webhook"
)

// What is really sent to a partner is what the document that is served says,
// header by header.
func TestDeliveriesAreAsTheDocumentSays(t *testing.T) {
	svc, err := open(t.Context(), serveSettings(t, "--data", t.TempDir(), "--tls", "off", "--listen", "127.0.0.1:0", "--allow-http", "--allow-destination", "127.0.0.0/8"), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	client := &http.Client{Timeout: 10 * time.Second}
	call := func(method, path, token, body string) []byte {
		t.Helper()
		r, err := http.NewRequest(method, svc.baseURL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
			r.Header.Set("Content-Type", "application/json")
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 {
			t.Fatalf("%s %s: %d %s (%v)", method, path, resp.StatusCode, text, err)
		}
		return text
	}
	doc, err := openapi3.NewLoader().LoadFromData(call("GET", "/v2/openapi.json", "", ""))
	if err != nil {
		t.Fatal(err)
	}
	if page := call("GET", "/docs", "", ""); !bytes.Contains(page, []byte("export URL="+svc.baseURL)) {
		t.Error("the reference does not name the address of the API")
	}
	call("GET", "/docs/style.css", "", "")

	type received struct {
		request *http.Request
		body    []byte
	}
	deliveries := make(chan received, 2)
	receiver := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		deliveries <- received{r.Clone(context.Background()), body}
	}))
	_, token, err := svc.store.CreateToken(t.Context(), webhook.NewToken{ProgramID: "acme", UserID: "ada", Scopes: webhook.Scopes()})
	if err != nil {
		t.Fatal(err)
	}
	fields, _ := json.Marshal(map[string]any{
		"url": receiver + "/hook", "events": []map[string]string{{"name": "content_updated"}}, "authorization_header": "Basic x",
	})
	call("POST", "/v2/webhooks/subscriptions", token, string(fields))
	call("POST", "/v2/events", token, `{"name":"content_updated","version":"1","content_id":7}`)

	item := doc.Webhooks["delivery"]
	allowed := map[string]bool{"Authorization": true, "Content-Type": true, "Content-Length": true}
	for _, p := range item.Post.Parameters {
		allowed[http.CanonicalHeaderKey(p.Value.Name)] = true
	}
	for range 2 { // the ping, and the event
		d := <-deliveries
		d.request.Body = io.NopCloser(bytes.NewReader(d.body))
		err := openapi3filter.ValidateRequest(t.Context(), &openapi3filter.RequestValidationInput{
			Request: d.request, Route: &routers.Route{Spec: doc, PathItem: item, Method: "POST", Operation: item.Post},
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, MultiError: true},
		})
		if err != nil {
			t.Errorf("%s: %v", d.body, err)
		}
		for name := range d.request.Header {
			if !allowed[name] {
				t.Errorf("the header %s is sent, and not in the document", name)
			}
		}
	}
}
