package load

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

var (
	pullPrograms = flag.Int("pull.programs", 8, "programs of TestPullWaits, each with 62 requests that wait over a connection of its own")
	pullTime     = flag.Duration("pull.time", 2*time.Second, "how long each part of TestPullWaits and TestPullAgainstPush measures")
	pullRounds   = flag.Int("pull.rounds", 1, "rounds of TestPullAgainstPush, and of publishing while requests wait")
)

// pullWaits is how many requests of a program wait. Two more may.
const pullWaits = 62

// TestPullWaits measures requests that wait for events: the memory and the processor time of each, how
// long after the response to the publisher they are answered, and how fast one publishes while they
// wait. In full:
//
//	go test ./test/load -run PullWaits -v -pull.programs 162 -pull.time 10s -pull.rounds 3 -timeout 30m
func TestPullWaits(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	idle, in := newPullInstance(t, binary), newPullInstance(t, binary)
	before := harness.ResidentMemory(t, in.Last().PID())
	w := &waits{in: in, answered: make(chan time.Time, pullWaits)}
	ctx, stop := context.WithCancel(t.Context())
	defer w.all.Wait()
	defer stop()
	for i := range *pullPrograms {
		n := pullWaits
		if i == 0 {
			n = 1
		}
		w.begin(ctx, t, i, n)
	}
	harness.WaitForCount(t, "requests that wait", (*pullPrograms-1)*pullWaits+1, func() int { return int(w.sent.Load()) })
	harness.Pause(ctx, 2*time.Second) // until the last of them waits
	memory := harness.ResidentMemory(t, in.Last().PID()) - before
	used := harness.ProcessorTime(t, in.Last().PID())
	harness.Pause(ctx, *pullTime)
	used = harness.ProcessorTime(t, in.Last().PID()) - used
	t.Logf("%d waits over %d connections: %.1f KiB of memory each, %.2f %% of a processor in all", w.sent.Load(), *pullPrograms,
		float64(memory)/1024/float64(w.sent.Load()), 100*used.Seconds()/pullTime.Seconds())
	t.Logf("a request that waits alone is answered after %s", w.wake(ctx, t, 0, 1))
	t.Logf("%d requests that wait for the same event are answered after %s", pullWaits, w.wake(ctx, t, 1, pullWaits))
	for range *pullRounds {
		without, with := publishFor(t, idle, *pullTime), publishFor(t, in, *pullTime)
		t.Logf("one publisher: %.0f events/s without waits, %.0f with them: %.3f", without, with, with/without)
	}
}

func newPullInstance(t *testing.T, binary string) *harness.Instance {
	in := harness.NewInstance(t, binary, t.TempDir(), "--log-level", "warn", "--tls", "auto")
	in.Client.Transport = pullTransport()
	in.Token("publisher")
	in.MustStart()
	publishFor(t, in, time.Second) // so that what a start allocates does not count
	return in
}

// pullTransport returns a transport for HTTP/2 to the local CA of an instance.
func pullTransport() *http.Transport {
	return &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}

// waits are requests that wait for events of programs.
type waits struct {
	in       *harness.Instance
	tokens   []string
	all      sync.WaitGroup
	sent     atomic.Int64
	answered chan time.Time // when a request was answered with an event
}

// begin lets n requests wait for events of a new program, over a connection of their own.
func (w *waits) begin(ctx context.Context, t *testing.T, program, n int) {
	token := w.in.Token(fmt.Sprint("p", program))
	w.tokens = append(w.tokens, token)
	client := &http.Client{Transport: pullTransport()}
	t.Cleanup(client.CloseIdleConnections)
	for range n {
		w.all.Go(func() {
			cursor := ""
			for first := true; ctx.Err() == nil; first = false {
				req := pullRequest(ctx, w.in, token, "wait=30s", cursor)
				if first {
					w.sent.Add(1)
				}
				next, events, err := pullPage(client, req)
				switch at := time.Now(); {
				case ctx.Err() != nil:
				case err != nil:
					t.Errorf("a request that waits: %v", err)
					return
				case events > 0:
					w.answered <- at
				}
				cursor = next
			}
		})
	}
}

// pullRequest returns a request for what follows a cursor in the log of a program, "" for all of it.
func pullRequest(ctx context.Context, in *harness.Instance, token, query, cursor string) *http.Request {
	query += "&sort=received_at"
	if cursor != "" {
		query += "&page[cursor]=" + cursor
	}
	req, err := http.NewRequestWithContext(ctx, "GET", in.URL()+"/v2/events?"+query, nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req
}

// pullPage sends a request for a page, and returns its cursor and the number of its events.
func pullPage(client *http.Client, req *http.Request) (next string, events int, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer resp.Body.Close()
	var page struct {
		Data []json.RawMessage
		Meta struct{ Pagination struct{ Next string } }
	}
	if resp.StatusCode != http.StatusOK {
		return "", 0, fmt.Errorf("status %s", resp.Status)
	}
	err = json.NewDecoder(resp.Body).Decode(&page)
	return page.Meta.Pagination.Next, len(page.Data), err
}

// wake publishes events for n requests that wait, and describes when they were answered.
func (w *waits) wake(ctx context.Context, t *testing.T, program, n int) string {
	var took []time.Duration
	for range 50 {
		w.in.Publish(w.tokens[program], json.RawMessage(harness.AppendEvent(nil, 1)))
		published := time.Now()
		for range n {
			took = append(took, max(0, harness.Receive(t, "the answer to a request that waits", w.answered).Sub(published)))
		}
		harness.Pause(ctx, 50*time.Millisecond) // until they wait again
	}
	return fmt.Sprintf("%s (p50), %s (p99)", harness.Median(took), harness.Percentile(took, 99))
}

// publishFor returns how many events a second one publisher publishes, one at a time.
func publishFor(t *testing.T, in *harness.Instance, d time.Duration) float64 {
	token := in.Token("publisher")
	n, began := 0, time.Now()
	for ; time.Since(began) < d; n++ {
		in.Publish(token, json.RawMessage(harness.AppendEvent(nil, n)))
	}
	return float64(n) / time.Since(began).Seconds()
}

// TestPullAgainstPush measures how long events take from their publication until they arrive in
// deliveries, in a stream, and in pages that are waited for; and the processor time of the service per
// event. In full:
//
//	go test ./test/load -run PullAgainstPush -v -pull.time 10s -pull.rounds 3 -timeout 30m
func TestPullAgainstPush(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	for _, rate := range []int{50, 0} {
		for range *pullRounds {
			for _, how := range []string{"push", "stream", "page"} {
				measureArrival(t, binary, how, rate)
			}
		}
	}
}

// measureArrival measures one way at a number of events a second, 0 for as many as 16 publishers can
// publish.
func measureArrival(t *testing.T, binary, how string, rate int) {
	in := harness.NewInstance(t, binary, t.TempDir(), "--log-level", "warn")
	token := in.Token("p")
	p := in.MustStart()
	total := 200_000
	if rate > 0 {
		total = int(float64(rate) * pullTime.Seconds())
	}
	trip := harness.NewTrip(total)
	var arrived atomic.Int64
	arrive := func(body []byte) {
		trip.Arrive(body, time.Now())
		for range harness.Numbers(body) {
			arrived.Add(1)
		}
	}
	receiver := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := harness.ReadBody(r); err == nil {
			arrive(body)
		}
	}))
	events := harness.NumberedEvent
	if how != "push" {
		events = "content_deleted"
	}
	in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events(events)})
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	switch how {
	case "stream":
		all.Go(func() { followStream(ctx, t, in, token, arrive) })
	case "page":
		all.Go(func() { followPages(ctx, t, in, token, arrive) })
	}
	harness.Pause(ctx, time.Second)
	used := harness.ProcessorTime(t, p.PID())
	sent := publishNumbered(ctx, in, token, rate, trip)
	harness.WaitForCount(t, "events that arrived", sent, func() int { return int(arrived.Load()) })
	used = harness.ProcessorTime(t, p.PID()) - used
	took := trip.Times(time.Now())[:sent]
	t.Logf("%-6s at %s: %6d events, p50 %9s, p99 %9s, %4d µs of processor time per event", how, rateText(rate), sent,
		harness.Median(took).Round(10*time.Microsecond), harness.Percentile(took, 99).Round(10*time.Microsecond),
		used.Microseconds()/int64(sent))
	stop()
	in.MustStop(p)
}

func rateText(rate int) string {
	if rate == 0 {
		return "full rate"
	}
	return fmt.Sprintf("%d events/s", rate)
}

// publishNumbered publishes events of a trip one at a time, and returns how many.
func publishNumbered(ctx context.Context, in *harness.Instance, token string, rate int, trip *harness.Trip) int {
	if rate > 0 {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for n := range trip.Sent {
			trip.Sent[n] = <-tick.C
			trip.Sent[n] = time.Now()
			in.Publish(token, json.RawMessage(harness.AppendEvent(nil, n)))
		}
		return len(trip.Sent)
	}
	var next atomic.Int64
	var all sync.WaitGroup
	end := time.Now().Add(*pullTime)
	for range 16 {
		all.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				n := int(next.Add(1) - 1)
				trip.Sent[n] = time.Now()
				in.Publish(token, json.RawMessage(harness.AppendEvent(nil, n)))
			}
		})
	}
	all.Wait()
	return int(next.Load())
}

// followStream reads the stream of a program until ctx ends.
func followStream(ctx context.Context, t *testing.T, in *harness.Instance, token string, arrive func([]byte)) {
	req := pullRequest(ctx, in, token, "", "")
	req.Header.Set("Accept", "text/event-stream")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			arrive([]byte(data))
		}
	}
}

// followPages reads pages of a program, and waits at the end, until ctx ends.
func followPages(ctx context.Context, t *testing.T, in *harness.Instance, token string, arrive func([]byte)) {
	for cursor := ""; ctx.Err() == nil; {
		resp, err := in.Client.Do(pullRequest(ctx, in, token, "wait=30s&page[size]=100", cursor))
		if err != nil {
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		var page struct {
			Meta struct{ Pagination struct{ Next string } }
		}
		if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(body, &page) != nil {
			if ctx.Err() == nil {
				t.Errorf("status %s, %v", resp.Status, err)
			}
			return
		}
		arrive(body)
		cursor = page.Meta.Pagination.Next
	}
}
