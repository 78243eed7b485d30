package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/webhook"
)

// The built binary measures itself: every case comes to figures, and nothing is
// lost or comes twice.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	profile := filepath.Join(dir, "cpu.out")
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), buildBinary(t), "bench", "--data", dir, "--time", "200ms", "--publishers", "16", "--stored", "1000", "--others", "20",
		"--case", "single,natural,natural-replicated,stream-replicated,light,fanout-100", "--json", "--cpuprofile", profile)
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %s", err, &log)
	}
	var report benchReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	if report.Raw <= 0 || report.Machine.Synchronous != "FULL" || len(report.Results) != 6 {
		t.Errorf("got %s", &out)
	}
	for _, r := range report.Results {
		if r.Lost != 0 || r.Duplicated != 0 || r.Acknowledged == 0 || r.Delivered != r.Acknowledged*r.Subscriptions || r.Commits == 0 ||
			r.P50 <= 0 || r.P99 < r.P50 || r.Max < r.P99 || r.OfRaw <= 0 {
			t.Errorf("%s: got %+v", r.Case, r)
		}
		if compared := r.OfWithout > 0; compared != (r.Case == "natural-replicated") {
			t.Errorf("%s: %.2f of the rate without a replica, which was measured of natural alone", r.Case, r.OfWithout)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 6 {
		t.Errorf("in the folder of the data are %q, %v; want a profile for each case alone", left, err)
	}
}

// A measurement of several rounds that ends early tells of those that were
// finished, and fails.
func TestBenchInterrupted(t *testing.T) {
	dir := t.TempDir()
	var out, log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), buildBinary(t), "bench", "--data", dir, "--time", "100ms", "--publishers", "4", "--rounds", "99", "--case", "natural", "--json")
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	rounds := make(map[string]bool) // by the folder of its data
	for len(rounds) < 2 {
		folders, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range folders {
			rounds[f] = true
		}
		time.Sleep(time.Millisecond)
		if t.Context().Err() != nil {
			t.Fatalf("there is no second round: %s", &log)
		}
	}
	cmd.Process.Signal(os.Interrupt)
	err := cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitFailed || !strings.Contains(log.String(), "of 99 rounds") {
		t.Errorf("got %v: %s", err, &log)
	}
	var report benchReport
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || report.Rounds == 0 || len(report.Results) != 1 {
		t.Errorf("got %v: %s", err, &out)
	}
}

// What is missing, and what comes twice, is counted.
func TestBenchCounts(t *testing.T) {
	receiver := &sink{woken: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /begin", receiver.begin)
	mux.HandleFunc("POST /d/{subscription}", receiver.deliver)
	mux.HandleFunc("GET /arrivals", receiver.list)
	server := httptest.NewServer(mux)
	defer server.Close()
	s := &benchSubject{bench: &bench{sink: &benchPart{url: server.URL}}, client: server.Client(), subscribers: 2, sent: make([]int64, 4)}
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
			all = append(all, benchEvent(nil, benchEventName, n))
		}
		body := webhook.AppendBody(nil, webhook.NewID(), webhook.NewID(), "bench", all)
		if _, err := s.do(t.Context(), "POST", server.URL+"/d/"+d.subscription, "", "application/json", bytes.NewReader(body)); err != nil {
			t.Fatal(err)
		}
	}
	r := benchResult{Acknowledged: 3}
	if err := s.tally(t.Context(), &r, began); err != nil {
		t.Fatal(err)
	}
	if r.Delivered != 5 || r.Lost != 1 || r.Duplicated != 3 || r.Max <= 0 {
		t.Errorf("got %+v, want 5 delivered, 1 lost, and 3 that came twice, that nobody published, or that were for nobody", r)
	}
}

// Of several rounds each figure is the median; what went wrong is told of all.
func TestBenchMedians(t *testing.T) {
	round := func(raw, natural, replicated, p50 float64, lost int) *benchReport {
		return &benchReport{Raw: raw, Results: []*benchResult{
			{Case: "natural", DeliveredPerSecond: natural, OfRaw: natural / raw, P50: p50, Lost: lost, PeakMemory: int64(lost)},
			{Case: "natural-replicated", DeliveredPerSecond: replicated, OfRaw: replicated / raw, OfWithout: replicated / natural, Duplicated: lost, Delivered: int(replicated)},
		}}
	}
	got := medians([]*benchReport{round(100, 50, 40, 3, 0), round(200, 80, 80, 2, 2), round(100, 40, 36, 1, 1)})
	want := &benchReport{Rounds: 3, Raw: 100, Results: []*benchResult{
		{Case: "natural", DeliveredPerSecond: 50, OfRaw: 0.4, P50: 2, Lost: 3, PeakMemory: 2},
		{Case: "natural-replicated", DeliveredPerSecond: 40, OfRaw: 0.4, OfWithout: 0.9, Duplicated: 3, Delivered: 40},
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	got = medians([]*benchReport{round(100, 50, 40, 3, 0), round(200, 80, 80, 2, 0)})
	if r := got.Results[1]; got.Raw != 150 || r.OfWithout != 0.9 || r.DeliveredPerSecond != 60 || r.Delivered != 40 {
		t.Errorf("of two rounds: raw %v, %+v; want the means, and the events of the slower", got.Raw, r)
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
