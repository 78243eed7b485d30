package webhook

import (
	"testing"
	"time"
)

var testNow = time.Date(2026, 3, 14, 8, 24, 48, 644e6, time.UTC)

func testCatalog(t testing.TB) *Catalog {
	t.Helper()
	c, err := LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkNewEvent(b *testing.B) {
	c := testCatalog(b)
	for _, name := range []string{"content_published", "campaign_push_message_sent", "user_notification_created"} {
		e := c.types[name]
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(e.Example)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.NewEvent(e.Example, "", testNow); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/library", func(b *testing.B) {
			slow := *e
			slow.accepts = nil
			c := &Catalog{types: map[string]*EventType{name: &slow}, sorted: []*EventType{&slow}}
			c.documents.New = func() any { return new(document) }
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.NewEvent(e.Example, "", testNow); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
