package load

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

var fanOutSubscriptions = flag.Int("fanout.subscriptions", 1000, "how many subscriptions TestFanOut makes")

const (
	fanOutRounds = 11 // each publishes one event to one subscription, and one to all

	// Maximum ratio of the publishing time for all subscriptions to that for one. It is generous
	// because the machine may be busy. The test logs the measured times.
	fanOutSlower = 3.0
	fanOutBusy   = 20 * time.Millisecond
)

// TestFanOut publishes events for very many subscriptions: each must get each event
// once, and publishing must take no longer than for one subscription. In full:
//
//	go test ./test/load -run FanOut -v -fanout.subscriptions 10000
func TestFanOut(t *testing.T) {
	harness.Long(t)
	f := &fanOut{got: make([][fanOutRounds]atomic.Int32, *fanOutSubscriptions+1), pinged: make(chan struct{}), all: make(chan struct{}, 1)}
	f.pings.Store(int64(len(f.got)))
	receiver := harness.Listen(t, f)
	f.in = harness.NewInstance(t, harness.Build(t), t.TempDir(), "--max-subscriptions", "0", "--log-level", "warn")
	f.one, f.many, f.quiet = f.in.Token("one"), f.in.Token("many"), f.in.Token("quiet")
	run := f.in.MustStart()

	began := time.Now()
	f.subscribe(receiver)
	made := time.Since(began)
	harness.Receive(t, "the first pings of all subscriptions", f.pinged)
	pinged := time.Since(began)

	var published, arrived [2][]time.Duration // with one subscription, with many
	for round := range fanOutRounds {
		for side, token := range []string{f.one, f.many} {
			f.flush()
			p, a := f.publishRound(token, round, []int{1, *fanOutSubscriptions}[side])
			published[side], arrived[side] = append(published[side], p), append(arrived[side], a)
		}
	}
	memory := harness.ResidentMemory(t, run.PID())
	f.in.Kill(run)
	f.check(t)
	run = f.in.MustStart()
	t.Logf("%d subscriptions: created in %s, pinged after %s; resident memory %.1f MB; restart took %s",
		*fanOutSubscriptions, made.Round(time.Millisecond), pinged.Round(time.Millisecond), harness.Megabytes(memory),
		run.Ready.Sub(run.Started).Round(time.Millisecond))
	for i, to := range []string{"one subscription", "all"} {
		t.Logf("publishing to %s: median %s, worst %s; until the last arrival: median %s",
			to, harness.Median(published[i]), slices.Max(published[i]), harness.Median(arrived[i]))
	}
	if got, want := harness.Median(published[1]),
		time.Duration(fanOutSlower*float64(harness.Median(published[0])))+harness.Scale(fanOutBusy); got > want {
		t.Errorf("publishing to %d subscriptions: got %s, want less than %s (one subscription: %s)",
			*fanOutSubscriptions, got, want, harness.Median(published[0]))
	}
}

// subscribe creates the subscriptions. The first belongs to a separate program.
func (f *fanOut) subscribe(receiver string) {
	t := f.in.TB
	t.Helper()
	base := f.in.URL()
	var working sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		working.Go(func() {
			for n := int(next.Add(1)) - 1; n < len(f.got); n = int(next.Add(1)) - 1 {
				token := f.many
				if n == 0 {
					token = f.one
				}
				s := harness.Subscription{URL: fmt.Sprintf("%s/%d", receiver, n), Events: harness.Events(harness.NumberedEvent)}
				if status, err := f.in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", s, nil); err != nil ||
					status != http.StatusCreated {
					t.Errorf("create subscription %d: status %d, %v", n, status, err)
					return
				}
			}
		})
	}
	working.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// flush waits until all earlier writes are committed: a new one is committed last.
func (f *fanOut) flush() {
	f.in.TB.Helper()
	for range 20 {
		f.in.Publish(f.quiet, harness.AppendEvent(nil, 0))
	}
}

// publishRound publishes an event, and returns how long publishing took and how long until
// the event had arrived at all subscriptions.
func (f *fanOut) publishRound(token string, round, subscriptions int) (published, arrived time.Duration) {
	f.in.TB.Helper()
	f.left.Store(int64(subscriptions))
	began := time.Now()
	f.in.Publish(token, harness.AppendEvent(nil, round))
	published = time.Since(began)
	harness.Receive(f.in.TB, fmt.Sprintf("the %d deliveries of round %d", subscriptions, round), f.all)
	return published, time.Since(began)
}

// check checks that each subscription got each event once.
func (f *fanOut) check(t *testing.T) {
	t.Helper()
	for n := range f.got {
		for round := range fanOutRounds {
			if got := f.got[n][round].Load(); got != 1 {
				t.Errorf("subscription %d got event %d %d times, want once", n, round, got)
			}
		}
	}
}

// fanOut is a service and all the receivers: /NUMBER.
type fanOut struct {
	in               *harness.Instance
	one, many, quiet string // tokens

	got    [][fanOutRounds]atomic.Int32 // number of arrivals by subscription and event
	pings  atomic.Int64                 // pings that have not arrived
	pinged chan struct{}                // closed after the last ping
	left   atomic.Int64                 // deliveries of this round that have not arrived
	all    chan struct{}                // gets a value after the last delivery of a round
}

func (f *fanOut) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	subscription, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if bytes.Contains(body, []byte(`"name":"ping"`)) {
		if f.pings.Add(-1) == 0 {
			close(f.pinged)
		}
		return
	}
	for n := range harness.Numbers(body) {
		f.got[subscription][n].Add(1)
		if f.left.Add(-1) == 0 {
			f.all <- struct{}{}
		}
	}
}
