// Package api compares deliveries with the OpenAPI document that the service serves.
package api

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"service/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// received is a delivery as the receiver got it.
type received struct {
	request *http.Request
	body    []byte
}

// TestDeliveriesMatchDocument compares the body and every header of deliveries with the
// OpenAPI document.
func TestDeliveriesMatchDocument(t *testing.T) {
	in := harness.NewInstance(t, harness.Build(t), t.TempDir())
	token := in.Token("acme")
	in.MustStart()
	get := func(path string) []byte {
		t.Helper()
		resp, err := in.Client.Get(in.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("GET %s: status %d, %v", path, resp.StatusCode, err)
		}
		return text
	}
	doc, err := openapi3.NewLoader().LoadFromData(get("/v2/openapi.json"))
	if err != nil {
		t.Fatal(err)
	}
	if page := get("/docs"); !bytes.Contains(page, []byte("export URL="+in.URL())) {
		t.Error("the reference does not contain the address of the API")
	}
	get("/docs/style.css")

	deliveries := make(chan received, 2)
	receiver := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		deliveries <- received{r.Clone(context.Background()), body}
	}))
	fields := map[string]any{"url": receiver + "/hook", "events": harness.Events("content_updated"), "authorization_header": "Basic x"}
	if status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions", fields, nil); err != nil ||
		status != http.StatusCreated {
		t.Fatalf("create a subscription: status %d, %v", status, err)
	}
	in.Publish(token, map[string]any{"name": "content_updated", "version": "1", "content_id": 7})

	item := doc.Webhooks["delivery"]
	allowed := map[string]bool{"Authorization": true, "Content-Type": true, "Content-Length": true}
	for _, p := range item.Post.Parameters {
		allowed[http.CanonicalHeaderKey(p.Value.Name)] = true
	}
	for range 2 { // the ping, and the event
		d := harness.Receive(t, "a delivery", deliveries)
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
				t.Errorf("deliveries have the header %s, which is not in the document", name)
			}
		}
	}
}
