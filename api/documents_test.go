package api

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/webhook"
)

// newOwnType returns an event type with a schema of the field carrier.
func newOwnType(t testing.TB, name, carrier string) *webhook.EventType {
	t.Helper()
	et, invalid := webhook.NewEventType(t.Context(), name, []byte(orderSchema(name, carrier)))
	if invalid != nil {
		t.Fatal(invalid)
	}
	return et
}

// Reusing unchanged event types makes no difference to the documents.
func TestDocumentsFollowTheCatalog(t *testing.T) {
	all := loaded(t, loadCatalog)
	catalog := webhook.NewCatalog(all.Types()...)
	d := newDocuments(catalog, settings{})
	variants := `{"type":"object"},"kind":{"enum":["a","b"]}},"allOf":[{"if":{"properties":{"kind":{"const":"a"}}},` +
		`"then":{"properties":{"carrier":{"type":"object","properties":{"x":{"type":"integer"}}}}}}],"x-end":{"":true`
	change := func(name, carrier string) func() {
		return func() { catalog.Set(newOwnType(t, name, carrier)) }
	}
	for i, change := range []func(){
		func() {},
		change("order.shipped", `{"type":"string"}`),
		change("order_shipped", `{"type":"string"}`), // both names change in the document
		change("order.shipped", `{"type":"integer"}`),
		change("order.sent", variants),
		func() { catalog.Remove("order_shipped") },
		func() {},
	} {
		change()
		before := d.current.Load()
		got, want := d.get(), newDocuments(catalog, settings{}).get()
		if !bytes.Equal(got.contract.content, want.contract.content) ||
			!bytes.Equal(got.pages[typesPage].content, want.pages[typesPage].content) ||
			!bytes.Equal(got.eventTypes.content, want.eventTypes.content) {
			t.Errorf("change %d: the documents differ from those that are rendered from scratch", i)
		}
		if again := d.get(); again != got || before == got != (before != nil && before.version == catalog.Version()) {
			t.Errorf("change %d: rendered without a change, or not rendered", i)
		}
		for name, part := range d.types {
			if bytes.Contains(part.html, []byte("There are more fields")) {
				t.Errorf("%s: fields are left out", name)
			}
		}
	}
	kept := d.types["content_updated"]
	change("order.shipped", `true`)()
	if d.get(); d.types["content_updated"] != kept {
		t.Error("an unchanged event type was rendered again")
	}
}

// The documents are rendered before a client asks for them.
func TestDocumentsAreRenderedInAdvance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := loaded(t, loadCatalog)
		catalog := webhook.NewCatalog(all.Types()...) // whose channels belong to the bubble
		d := newDocuments(catalog, settings{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.run(ctx)
		}()
		for i := range 3 {
			time.Sleep(renderDelay)
			synctest.Wait()
			r := d.current.Load()
			if r == nil || r.version != catalog.Version() {
				t.Fatalf("after %d changes: got %+v, want version %d", i, r, catalog.Version())
			}
			for n := range 3 {
				catalog.Set(newOwnType(t, fmt.Sprintf("order.number%d", n), `{}`))
			}
			synctest.Wait()
			if d.current.Load() != r {
				t.Fatal("rendered for each of several changes")
			}
		}
		cancel()
		<-ended
	})
}

// A schema whose references multiply makes neither the page nor its rendering large.
func TestReferenceIsBounded(t *testing.T) {
	var defs []string
	for level := range 3 {
		var properties []string
		for i := range 300 {
			properties = append(properties, fmt.Sprintf(`"p%d":{"$ref":"#/$defs/d%d"}`, i, level+1))
		}
		defs = append(defs, fmt.Sprintf(`"d%d":{"type":"object","properties":{%s}}`, level, strings.Join(properties, ",")))
	}
	var values []string
	for i := range 10_000 {
		values = append(values, fmt.Sprint(i))
	}
	defs = append(defs, `"d3":{"type":"object","properties":{"v":{"enum":[`+strings.Join(values, ",")+`]}}}`)
	et := newOwnType(t, "order.shipped", `{"$ref":"#/$defs/d0"}},"$defs":{`+strings.Join(defs, ","))
	page := string(newDocuments(webhook.NewCatalog(et), settings{}).get().pages[typesPage].content)
	_, entry, _ := strings.Cut(page, `id="event-order.shipped"`)
	entry, _, _ = strings.Cut(entry, "</article>")
	if rows := strings.Count(entry, "<tr>"); rows < 100 || rows > maxEventRows+1 {
		t.Errorf("got %d rows", rows)
	}
	if !strings.Contains(entry, "There are more fields in the JSON Schema") ||
		!strings.Contains(page, "<code>GET /v2/event_types/order.shipped</code>") {
		t.Error("the page does not say that there are more fields")
	}
	if len(entry) > 1<<20 {
		t.Errorf("the entry has %d bytes", len(entry))
	}
}

// Names that client generators cannot tell apart get a suffix, and no name contains a character
// that is invalid in component names.
func TestEventSchemaNames(t *testing.T) {
	want := map[string]string{
		"invoice:paid":    "event_invoice-paid",
		"9lives":          "event_9lives",
		"order.shipped":   "event_order-shipped-",
		"Order-Shipped":   "event_Order-Shipped-",
		"order_shipped":   "event_order_shipped-",
		"content.Updated": "event_content-Updated-",
		"content_updated": "event_content_updated",
	}
	var types []*webhook.EventType
	for name := range want {
		et := &webhook.EventType{Name: name, Source: webhook.SourceAPI}
		if name == "content_updated" {
			et.Source = webhook.SourceBuiltIn
		}
		types = append(types, et)
	}
	for event, name := range eventSchemaNames(types) {
		begin, suffixed := strings.CutSuffix(want[event], "-")
		if suffixed {
			begin += fmt.Sprintf("-%08x", crc32.ChecksumIEEE([]byte(event)))
		}
		if name != begin || !componentName.MatchString(name) {
			t.Errorf("%s: got %q, want %q", event, name, begin)
		}
	}
}
