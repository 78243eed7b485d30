package scale

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

// BenchmarkInstallations publishes single events through HAProxy, each delivered to a receiver, to
// each installation alone and then to both together. It reports the delivered events per second,
// and the CPU time of HAProxy and of an installation per event. On one machine the processes share
// the cores with the publishers and the receiver: the machine then limits the rate of both, and the
// CPU time shows the capacity of each.
//
//	go test ./test/scale -run '^$' -bench Installations -benchtime 5x
func BenchmarkInstallations(b *testing.B) {
	f := newFleet(b, "--log-level", "warn")
	var arrived atomic.Int64
	receiver := harness.Listen(b, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := harness.ReadBody(r)
		if err != nil || harness.IsPing(body) {
			return
		}
		for range harness.Numbers(body) {
			arrived.Add(1)
		}
	}))
	tokens := []string{f.program(f.one, "acme", "svc_"), f.program(f.two, "bcorp", "svc_2_")}
	for i, token := range tokens {
		if a := f.request("POST", shared+"/v2/webhooks/subscriptions", token,
			fmt.Sprintf(`{"url": %q, "events": [{"name": %q}], "max_in_flight": 64}`, receiver, harness.NumberedEvent)); a.status != 201 {
			b.Fatalf("subscription %d: status %d: %s", i, a.status, a.body)
		}
	}
	var one, both measured
	for b.Loop() {
		for _, token := range tokens {
			f.measure(&one, &arrived, token)
		}
		f.measure(&both, &arrived, tokens...)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(harness.Median(one.rate), "one/s")
	b.ReportMetric(harness.Median(both.rate), "both/s")
	b.ReportMetric(harness.Median(one.service), "one-service-µs/event")
	b.ReportMetric(harness.Median(both.service), "both-service-µs/event")
	b.ReportMetric(harness.Median(both.proxy), "haproxy-µs/event")
}

// measured contains delivered events per second, and CPU time per event in µs.
type measured struct{ rate, service, proxy []float64 }

// measure publishes 5,000 events with each token, from 32 publishers each, and waits until all
// are delivered.
func (f *fleet) measure(m *measured, arrived *atomic.Int64, tokens ...string) {
	f.tb.Helper()
	const events, publishers = 5000, 32
	used := func() (service, proxy time.Duration) {
		return harness.ProcessorTime(f.tb, f.one.Last().PID()) + harness.ProcessorTime(f.tb, f.two.Last().PID()),
			harness.ProcessorTime(f.tb, f.proxy.Process.Pid)
	}
	arrived.Store(0)
	service, proxy := used()
	began := time.Now()
	var all sync.WaitGroup
	for _, token := range tokens {
		var next atomic.Int64
		for range publishers {
			all.Go(func() {
				for n := next.Add(1); n <= events; n = next.Add(1) {
					a, err := f.try("POST", shared+"/v2/events", token, string(harness.AppendEvent(nil, int(n))))
					if err != nil || a.status != http.StatusCreated {
						f.tb.Errorf("status %d: %.200s, %v", a.status, a.body, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	want := int64(events * len(tokens))
	harness.WaitFor(f.tb, "all events", func() bool { return arrived.Load() >= want || f.tb.Failed() })
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(want) }
	m.rate = append(m.rate, float64(want)/time.Since(began).Seconds())
	serviceAfter, proxyAfter := used()
	m.service, m.proxy = append(m.service, each(serviceAfter-service)), append(m.proxy, each(proxyAfter-proxy))
}
