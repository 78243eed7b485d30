package bench

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/webhook"
)

// TestBenchCounts checks that lost, duplicate and unexpected events are counted.
func TestBenchCounts(t *testing.T) {
	receiver := &sink{woken: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /begin", receiver.begin)
	mux.HandleFunc("POST /d/{subscription}", receiver.deliver)
	mux.HandleFunc("GET /arrivals", receiver.list)
	server := httptest.NewServer(mux)
	defer server.Close()
	s := &subject{runner: &runner{sink: &process{url: server.URL}}, client: server.Client(), sent: make([]int64, 4)}
	s.Subscriptions = 2
	if err := s.sinkBegin(t.Context(), 4, 2); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for n := range 3 {
		s.sent[n] = began.UnixNano()
	}
	for _, d := range []struct {
		subscription string
		events       []int
	}{{"0", []int{0, 1}}, {"1", []int{0, 1, 2}}, {"0", []int{1}}, {"1", []int{3}}, {"7", []int{3}}} {
		var all [][]byte
		for _, n := range d.events {
			all = append(all, appendEvent(nil, eventName, n))
		}
		body := webhook.AppendBody(nil, webhook.NewID(), webhook.NewID(), "bench", all)
		if _, err := s.do(t.Context(), "POST", server.URL+"/d/"+d.subscription, "", "application/json", bytes.NewReader(body)); err != nil {
			t.Fatal(err)
		}
	}
	r := Result{Acknowledged: 3}
	if err := s.tally(t.Context(), &r, began); err != nil {
		t.Fatal(err)
	}
	if r.Delivered != 5 || r.Lost != 1 || r.Duplicated != 3 || r.Max <= 0 {
		t.Errorf("got %+v, want 5 delivered, 1 lost, 3 duplicate or unexpected", r)
	}
}

// TestBenchMedians checks that figures are medians of the rounds, and losses are sums.
func TestBenchMedians(t *testing.T) {
	round := func(raw, natural, stream, p50 float64, lost int) *Report {
		return &Report{Raw: raw, Results: []*Result{
			{Case: "natural", DeliveredPerSecond: natural, OfRaw: natural / raw, P50: p50, Lost: lost, PeakMemory: int64(lost)},
			{Case: "stream", DeliveredPerSecond: stream, OfRaw: stream / raw, Publish: stream / natural, Duplicated: lost,
				Delivered: int(stream)},
		}}
	}
	got := medians([]*Report{round(100, 50, 40, 3, 0), round(200, 80, 80, 2, 2), round(100, 40, 36, 1, 1)})
	want := &Report{Rounds: 3, Raw: 100, Results: []*Result{
		{Case: "natural", DeliveredPerSecond: 50, OfRaw: 0.4, P50: 2, Lost: 3, PeakMemory: 2},
		{Case: "stream", DeliveredPerSecond: 40, OfRaw: 0.4, Publish: 0.9, Duplicated: 3, Delivered: 40},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = medians([]*Report{round(100, 50, 40, 3, 0), round(200, 80, 80, 2, 0)})
	if r := got.Results[1]; got.Raw != 150 || r.Publish != 0.9 || r.DeliveredPerSecond != 60 || r.Delivered != 40 {
		t.Errorf("two rounds: got raw %v, %+v; want the means, and the events of the slower round", got.Raw, r)
	}
}

func TestThousands(t *testing.T) {
	var got []string
	for _, x := range []float64{0, 12, 999, 1000, 41234.4, 1234567} {
		got = append(got, thousands(x))
	}
	if got, want := strings.Join(got, " "), "0 12 999 1,000 41,234 1,234,567"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
