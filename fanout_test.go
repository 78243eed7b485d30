package main

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

	"service/internal/bench"
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
//	go test -run FanOut -v -fanout.subscriptions 10000 .
func TestFanOut(t *testing.T) {
	f := &fanOut{got: make([][fanOutRounds]atomic.Int32, *fanOutSubscriptions+1), pinged: make(chan struct{})}
	f.pings.Store(int64(len(f.got)))
	receiver := listenLoopback(t, f)
	in := newInstance(t, buildBinary(t), t.TempDir(), "--max-subscriptions", "0", "--log-level", "warn")
	one, many := in.token("one"), in.token("many")
	quiet := in.token("quiet")
	run := in.mustStart()

	began := time.Now()
	var working sync.WaitGroup
	var next atomic.Int64
	for range 16 {
		working.Go(func() {
			for {
				token, n := many, int(next.Add(1))-1
				switch {
				case n >= len(f.got):
					return
				case n == 0:
					token = one
				}
				s := newSubscription{URL: fmt.Sprintf("%s/%d", receiver, n), Events: eventList("content_published")}
				var answer struct{ Data struct{ ID string } }
				base, _ := in.await(t.Context())
				if status, err := in.call(t.Context(), token, "POST", base+"/v2/webhooks/subscriptions", s, &answer); err != nil || status != http.StatusCreated {
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
	made := time.Since(began)
	select {
	case <-f.pinged:
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d subscriptions were not pinged", f.pings.Load(), len(f.got))
	}
	pinged := time.Since(began)

	rest := func() {
		// Writes are made in turn: once these are, what came before is recorded.
		for range 20 {
			base, _ := in.await(t.Context())
			if status, err := in.call(t.Context(), quiet, "POST", base+"/v2/events", bench.AppendEvent(nil, bench.EventName, 0), nil); err != nil || status != http.StatusCreated {
				t.Fatalf("publish: status %d, %v", status, err)
			}
		}
	}
	publish := func(token string, round, subscriptions int) (published, arrived time.Duration) {
		t.Helper()
		f.left.Store(int64(subscriptions))
		base, _ := in.await(t.Context())
		began := time.Now()
		if status, err := in.call(t.Context(), token, "POST", base+"/v2/events", bench.AppendEvent(nil, bench.EventName, round), nil); err != nil || status != http.StatusCreated {
			t.Fatalf("publish: status %d, %v", status, err)
		}
		published = time.Since(began)
		select {
		case <-f.all:
		case <-time.After(time.Minute):
			t.Fatalf("round %d: %d of %d deliveries have not arrived", round, f.left.Load(), subscriptions)
		}
		return published, time.Since(began)
	}
	f.all = make(chan struct{}, 1)
	var published, arrived [2][]time.Duration // with one subscription, with many
	for round := range fanOutRounds {
		for side, token := range []string{one, many} {
			rest()
			p, a := publish(token, round, []int{1, *fanOutSubscriptions}[side])
			published[side], arrived[side] = append(published[side], p), append(arrived[side], a)
		}
	}
	memory := residentMemory(t, run.process.Pid)
	in.kill(run)
	for n := range f.got {
		for round := range fanOutRounds {
			if got := f.got[n][round].Load(); got != 1 {
				t.Errorf("subscription %d got event %d %d times, want once", n, round, got)
			}
		}
	}
	run = in.mustStart()
	t.Logf("%d subscriptions: made in %s, pinged after %s; publishing takes %s with one subscription, %s with all (medians; worst %s and %s), until the last arrival %s and %s; resident memory %.1f MB; ready %s after a start",
		*fanOutSubscriptions, made.Round(time.Millisecond), pinged.Round(time.Millisecond), median(published[0]), median(published[1]), slices.Max(published[0]), slices.Max(published[1]),
		median(arrived[0]), median(arrived[1]), megabytes(memory), run.ready.Sub(run.started).Round(time.Millisecond))
	if got, want := median(published[1]), time.Duration(fanOutSlower*float64(median(published[0])))+fanOutBusy; got > want {
		t.Errorf("publishing takes %s with %d subscriptions and %s with one, want less than %s", got, *fanOutSubscriptions, median(published[0]), want)
	}
}

// fanOut is all the receivers: /NUMBER.
type fanOut struct {
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
	for n := range bench.EventNumbers(body) {
		f.got[subscription][n].Add(1)
		if f.left.Add(-1) == 0 {
			f.all <- struct{}{}
		}
	}
}
