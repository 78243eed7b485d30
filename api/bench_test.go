package api

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// discard is a ResponseWriter that keeps only the status.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header               { return d.header }
func (d *discard) WriteHeader(status int)            { d.status = status }
func (d *discard) Write(p []byte) (int, error)       { return len(p), nil }
func (d *discard) SetReadDeadline(t time.Time) error { return nil }
func (d *discard) SetWriteDeadline(time.Time) error  { return nil }

// body repeats a request body.
type body struct{ bytes.Reader }

func (*body) Close() error { return nil }

// BenchmarkPublish measures the rate of acknowledged publishes of one event through the handler:
// each is on disk (fsynced) when it counts.
func BenchmarkPublish(b *testing.B) {
	for _, bench := range []struct {
		name       string
		publishers int
	}{{"publishers=1", 1}, {"publishers=32", 32}, {"publishers=256", 256}} {
		b.Run(bench.name, func(b *testing.B) {
			s, err := store.Open(context.Background(), store.Config{Dir: filepath.Join(b.TempDir(), "data")})
			must(b, err)
			defer s.Close()
			catalog, err := webhook.LoadCatalog()
			must(b, err)
			_, secret, err := storetest.CreateToken(context.Background(), s, webhook.NewToken{ProgramID: "p", UserID: "u", Scopes: webhook.Scopes()})
			must(b, err)
			handler := New(Config{Store: s, Catalog: catalog})
			event := []byte(`{"timestamp":"2026-03-13T07:07:19.507Z","name":"content_published",` +
				`"version":"1","content_id":48211,"channel_ids":[317,12]}`)
			b.ReportAllocs()
			if bench.publishers == 1 {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			}
			b.SetParallelism((bench.publishers + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				in := &body{}
				r := &http.Request{
					Method: "POST", URL: &url.URL{Path: "/v2/events"}, ProtoMajor: 1, ProtoMinor: 1, Body: in,
					Header:        http.Header{"Authorization": {"Bearer " + secret}, "Content-Type": {"application/json"}},
					ContentLength: int64(len(event)),
				}
				w := &discard{header: make(http.Header)}
				for pb.Next() {
					in.Reset(event)
					clear(w.header)
					handler.ServeHTTP(w, r)
					if w.status != 201 {
						b.Errorf("answered %d", w.status)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "publishes/s")
		})
	}
}
