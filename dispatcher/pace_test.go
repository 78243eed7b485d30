package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/test/harness"
	"service/webhook"
)

// rateLimiter returns a function that reports whether a request is within a rate.
type rateLimiter func(perSecond func() float64) func(now time.Time) bool

// limiters are common rate limiters of receivers.
var limiters = map[string]rateLimiter{
	"fixed window": func(perSecond func() float64) func(time.Time) bool {
		var second time.Time
		n := 0
		return func(now time.Time) bool {
			if s := now.Truncate(time.Second); s != second {
				second, n = s, 0
			}
			n++
			return float64(n) <= perSecond()
		}
	},
	"sliding window": func(perSecond func() float64) func(time.Time) bool {
		var taken []time.Time
		return func(now time.Time) bool {
			taken = slices.DeleteFunc(taken, func(t time.Time) bool { return now.Sub(t) >= time.Second })
			if float64(len(taken)) >= perSecond() {
				return false
			}
			taken = append(taken, now)
			return true
		}
	},
	"token bucket": func(perSecond func() float64) func(time.Time) bool {
		tokens, at := perSecond(), time.Now()
		return func(now time.Time) bool {
			tokens, at = min(perSecond(), tokens+perSecond()*now.Sub(at).Seconds()), now
			if tokens < 1 {
				return false
			}
			tokens--
			return true
		}
	},
}

// limited is the status of a receiver with a rate limiter that answers code beyond the limit. Pings do
// not count.
func limited(code int, limiter func(now time.Time) bool) func(names []string) int {
	return func(names []string) int {
		if names[0] != webhook.EventPing && !limiter(time.Now()) {
			return code
		}
		return http.StatusOK
	}
}

// eachLimiter runs a subtest for each rate limiter, without batches.
func eachLimiter(t *testing.T, test func(w *testbed, limiter rateLimiter)) {
	for name, limiter := range limiters {
		t.Run(name, func(t *testing.T) {
			cfg := breakerConfig()
			cfg.BatchSize = 1
			runInBubble(t, cfg, func(w *testbed) { test(w, limiter) })
		})
	}
}

// A receiver accepts ten requests per second and answers 429 beyond that, while 50
// events per second are published. Without batches, after ten seconds at least nine
// events per second arrive and at most 1% fail; with batches all arrive.
func TestPace(t *testing.T) {
	for name, limiter := range limiters {
		latencies := []time.Duration{30 * time.Millisecond, 0}
		if testing.Short() {
			latencies = latencies[:1]
		}
		for _, latency := range latencies {
			for _, batch := range []int{1, 100} {
				t.Run(fmt.Sprintf("%s, latency %s, batches of %d", name, latency, batch), func(t *testing.T) {
					cfg := breakerConfig()
					cfg.BatchSize = batch
					runInBubble(t, cfg, func(w *testbed) { testPace(w, limiter(func() float64 { return 10 }), latency, batch) })
				})
			}
		}
	}
}

func testPace(w *testbed, limiter func(time.Time) bool, latency time.Duration, batch int) {
	t := w.t
	r := w.receiver(limited(http.StatusTooManyRequests, limiter))
	answer := r.respond
	r.respond = func(n int, rw http.ResponseWriter, req *http.Request) {
		answer(n, rw, req)
		time.Sleep(latency)
	}
	sub := w.subscribe(r.subscriber, nil)
	time.Sleep(time.Second)
	start := time.Now()
	seconds := 120
	if testing.Short() {
		seconds = 40
	}
	w.publishEvery(20*time.Millisecond, seconds*50, "content_updated")
	w.health(sub)
	count := func(posts []receivedRequest) (n int) {
		for _, p := range posts {
			if p.at.Sub(start) >= 10*time.Second {
				n += len(p.ids)
			}
		}
		return n
	}
	accepted, rejected := count(r.accepted), count(r.rejected)
	t.Logf("%d accepted and %d rejected after 10s, %d rejected before", accepted, rejected, len(r.rejected)-rejected)
	least := 9 * (seconds - 10)
	if batch > 1 {
		least = 50*(seconds-10) - 100 // events that are waiting for the next request
	}
	if accepted < least {
		t.Errorf("got %d events after 10s, want at least %d", accepted, least)
	}
	if rejected*100 > accepted+rejected {
		t.Errorf("got %d failures of %d events after 10s, want at most 1%%", rejected, accepted+rejected)
	}
}

// The limit of a receiver drops from 50 requests per second to five. About ten
// rejections are enough to find the new limit.
func TestPaceAdaptsToLowerLimit(t *testing.T) {
	harness.Long(t)
	eachLimiter(t, func(w *testbed, limiter rateLimiter) {
		limit := 50.0
		r := w.receiver(limited(http.StatusTooManyRequests, limiter(func() float64 { return limit })))
		sub := w.subscribe(r.subscriber, nil)
		publish := func(seconds int) {
			w.publishEvery(time.Second/60, seconds*60, "content_updated")
			w.health(sub)
		}
		publish(60)
		limit = 5
		before, accepted := len(r.rejected), len(r.accepted)
		publish(60)
		fell := len(r.rejected) - before
		publish(60)
		rejected, accepted := len(r.rejected)-before-fell, len(r.accepted)-accepted
		w.t.Logf("%d rejected before, %d in the minute after the drop, %d in the next; %d accepted in both", before, fell, rejected, accepted)
		if fell > 15 || rejected > 5 || accepted < 400 {
			w.t.Errorf("got %d rejected in the minute after the drop, %d in the next and %d accepted; want at most 15 and 5, at least 400",
				fell, rejected, accepted)
		}
	})
}

// One 503 among successes at one event per second says little about the rate: a later
// backlog is sent at a rate that doubles. After a 429 the rate is kept low.
func TestPaceAfterOneThrottle(t *testing.T) {
	for _, tt := range []struct {
		name        string
		responses   map[int]int   // status by second
		quiet       time.Duration // at one event per second, after the last of them
		least, most int           // events of a backlog of 500 in a minute
	}{
		{"503", map[int]int{20: 503}, 0, 200, 400},
		{"503, then quiet", map[int]int{20: 503}, 10 * time.Minute, 500, 500},
		{"503 twice in a row", map[int]int{20: 503, 21: 503}, 0, 200, 400},
		{"503 now and then", map[int]int{20: 503, 23: 503, 60: 503, 400: 503}, 0, 200, 400},
		{"429", map[int]int{20: 429}, 0, 50, 100},
		{"429 before a 503", map[int]int{20: 429, 60: 503}, 0, 50, 100},
		{"503 before a 429", map[int]int{20: 503, 60: 429}, 0, 50, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
				r := w.receiver(nil)
				var status atomic.Int64
				r.status = func([]string) int { return int(status.Load()) }
				w.subscribe(r.subscriber, nil)
				last := slices.Max(slices.Collect(maps.Keys(tt.responses)))
				for second := range last + 10 + int(tt.quiet/time.Second) {
					status.Store(int64(cmp.Or(tt.responses[second], http.StatusOK)))
					w.publish("content_updated")
					time.Sleep(time.Second)
				}
				accepted := func() int {
					synctest.Wait()
					return len(r.accepted)
				}
				before := accepted()
				w.publishN(500, "content_updated")
				time.Sleep(time.Minute)
				if n := accepted() - before; n < tt.least || n > tt.most {
					t.Errorf("got %d of 500 events in a minute, want %d to %d", n, tt.least, tt.most)
				}
			})
		})
	}
}

// The limit of a receiver that answers 503 beyond ten requests per second, or whose limit
// drops to ten, is found as with 429: after a refused trial the rate is not doubled again.
func TestPaceFinds503Limit(t *testing.T) {
	eachLimiter(t, func(w *testbed, limiter rateLimiter) {
		r := w.receiver(limited(http.StatusServiceUnavailable, limiter(func() float64 { return 10 })))
		sub := w.subscribe(r.subscriber, nil)
		publish := func(seconds int) (accepted, rejected int) {
			accepted, rejected = len(r.accepted), len(r.rejected)
			w.publishEvery(50*time.Millisecond, seconds*20, "content_updated")
			w.health(sub)
			return len(r.accepted) - accepted, len(r.rejected) - rejected
		}
		publish(60)
		accepted, rejected := publish(120)
		w.t.Logf("%d accepted and %d rejected in two minutes", accepted, rejected)
		if accepted < 9*120 || rejected > 12 {
			w.t.Errorf("got %d accepted and %d rejected in two minutes, want at least %d and at most 12", accepted, rejected, 9*120)
		}
	})
}

// max_per_second limits all attempts except pings, including retries.
func TestMaxPerSecond(t *testing.T) {
	for _, limit := range []float64{0.1, 1, 7, 50} {
		runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) { testMaxPerSecond(w, limit) })
	}
}

func testMaxPerSecond(w *testbed, limit float64) {
	t := w.t
	r := w.subscriber(func(n int, rw http.ResponseWriter, _ *http.Request) {
		if n%3 == 2 {
			rw.WriteHeader(http.StatusBadGateway)
		}
	})
	sub := w.subscribe(r, func(f *webhook.SubscriptionFields) { f.MaxPerSecond = &limit })
	start := time.Now()
	const seconds = 40
	w.publishN(int(seconds*limit), "content_updated")
	for range 8 {
		go w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
	}
	time.Sleep(time.Until(start.Add(seconds * time.Second)))
	posts := r.posts()
	if n, want := float64(len(posts)), seconds*limit; n > want+3 || n < want*0.97 {
		t.Errorf("%g per second: got %g requests in 40s, want %g", limit, n, want)
	}
	span := max(time.Second, time.Duration(float64(time.Second)/limit))
	most := int(max(1, limit))
	for i := most; i < len(posts); i++ {
		if took := posts[i].at.Sub(posts[i-most].at); took < span-time.Microsecond {
			t.Errorf("%g per second: got %d requests within %s", limit, most+1, took)
			break
		}
	}
	if n := r.pings(); n < 5 {
		t.Errorf("%g per second: got %d pings, want at least 5: pings are not limited", limit, n)
	}
	w.update(sub, &webhook.SubscriptionFields{MaxPerSecond: new(0.0)})
	time.Sleep(time.Minute)
	if n, want := r.deliveries(), int(seconds*limit); n != want {
		t.Errorf("%g per second: got %d events after the limit was removed, want %d", limit, n, want)
	}
}

// Retry-After pauses a subscription for at most an hour.
func TestRetryAfterPauses(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for asked, want := range map[string]time.Duration{"30": 30 * time.Second, "7200": time.Hour} {
			t.Run(fmt.Sprintf("%d, Retry-After %s", status, asked), func(t *testing.T) {
				runInBubble(t, Config{RetryPolicy: exactRetryPolicy()}, func(w *testbed) { w.checkRetryAfter(status, asked, want) })
			})
		}
	}
}

// checkRetryAfter checks the pause after a response with a Retry-After.
func (w *testbed) checkRetryAfter(status int, asked string, want time.Duration) {
	r := w.subscriber(func(n int, rw http.ResponseWriter, _ *http.Request) {
		if n == 2 {
			rw.Header().Set("Retry-After", asked)
			rw.WriteHeader(status)
		}
	})
	sub := w.subscribe(r, nil)
	start := time.Now()
	for range 5 {
		w.publish("content_updated")
		r.posts() // wait until nothing is in flight
	}
	if until := w.d.PausedUntil(sub.ID); !until.Equal(start.Add(want)) {
		w.t.Errorf("got paused until %s, want %s", until, start.Add(want))
	}
	time.Sleep(want - time.Second)
	r.wantPosts(w.t, 1, "within the pause")
	time.Sleep(10 * time.Second)
	posts := r.posts()
	if len(posts) < 2 || posts[1].at.Sub(start) != want || len(posts[1].ids) != 1 && status == http.StatusTooManyRequests {
		w.t.Errorf("got %+v after the pause, want the next request right at its end", posts[1:])
	}
	if until := w.d.PausedUntil(sub.ID); !until.IsZero() {
		w.t.Errorf("got paused until %s after the pause", until)
	}
}
