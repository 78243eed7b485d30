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
	fanOutRounds = 11 // of publishing one event to one subscription, and one to all

	// Publishing may take so many times as long with all the subscriptions,
	// and the machine may be busy with other things; what was measured is logged.
	fanOutSlower = 3.0
	fanOutBusy   = 20 * time.Millisecond
)

// TestFanOut publishes events that very many subscriptions ask for: each of
// them gets each event, once, and publishing takes no longer than with one.
// In full:
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
			f.rest()
			p, a := f.publish(token, round, []int{1, *fanOutSubscriptions}[side])
			published[side], arrived[side] = append(published[side], p), append(arrived[side], a)
		}
	}
	memory := harness.ResidentMemory(t, run.PID())
	f.in.Kill(run)
	f.check(t)
	run = f.in.MustStart()
	t.Logf("%d subscriptions: made in %s, pinged after %s; publishing takes %s with one subscription, %s with all (medians; worst %s and %s), until the last arrival %s and %s; resident memory %.1f MB; ready %s after a start",
		*fanOutSubscriptions, made.Round(time.Millisecond), pinged.Round(time.Millisecond), harness.Median(published[0]), harness.Median(published[1]), slices.Max(published[0]), slices.Max(published[1]),
		harness.Median(arrived[0]), harness.Median(arrived[1]), harness.Megabytes(memory), run.Ready.Sub(run.Started).Round(time.Millisecond))
	if got, want := harness.Median(published[1]), time.Duration(fanOutSlower*float64(harness.Median(published[0])))+harness.Scale(fanOutBusy); got > want {
		t.Errorf("publishing takes %s with %d subscriptions and %s with one, want less than %s", got, *fanOutSubscriptions, harness.Median(published[0]), want)
	}
}

// subscribe creates the subscriptions, the first of a program of its own.
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
				if status, err := f.in.Call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", s, nil); err != nil || status != http.StatusCreated {
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

// rest waits until what came before is recorded: writes are made in turn.
func (f *fanOut) rest() {
	f.in.TB.Helper()
	for range 20 {
		f.in.Publish(f.quiet, harness.AppendEvent(nil, 0))
	}
}

// publish publishes an event, and returns how long that took, and how long it
// took to arrive at all subscriptions.
func (f *fanOut) publish(token string, round, subscriptions int) (published, arrived time.Duration) {
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

	got    [][fanOutRounds]atomic.Int32 // by the number of the subscription and of the event
	pings  atomic.Int64                 // that have not arrived
	pinged chan struct{}                // closed with the last
	left   atomic.Int64                 // deliveries of this round
	all    chan struct{}                // receives with the last
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
