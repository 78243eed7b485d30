package dispatcher

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/dispatcher/client"
	"service/store"
	"service/store/sqlite"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// testbed is a dispatcher on a real store, in a synctest bubble with fake time. Its
// receivers are real HTTP servers, connected by pipes.
type testbed struct {
	t    *testing.T
	dir  string
	cfg  Config
	d    *Dispatcher
	stop context.CancelFunc
	done chan error
	now  func() time.Time // the wall clock; nil for the bubble's

	retention webhook.Retention // limits how much of a wall-clock jump counts

	entered func(from, to phase)                        // called for each change of a queue's phase; may be nil
	fault   func(query string, write bool) sqlite.Fault // makes statements of the store fail; nil for none
	dial    time.Duration                               // how long connecting takes

	mu          sync.Mutex
	subscribers map[netip.Addr]*subscriber
}

// subscriber is a receiver: the server behind the URL of one subscription.
type subscriber struct {
	url     string
	conns   chan net.Conn
	respond func(n int, w http.ResponseWriter, r *http.Request) // n counts the requests from 1
	handler http.HandlerFunc                                    // replaces respond and the recording of requests; nil for none

	mu           sync.Mutex
	requests     []receivedRequest
	openRequests int // requests being answered now
	maxOpen      int // highest value of openRequests
}

// receivedRequest is a request as the receiver saw it.
type receivedRequest struct {
	at       time.Time
	delivery string
	bodyHash [sha256.Size]byte
	size     int // of the body
	names    []string
	ids      []string
}

var memoryDir = harness.MemoryDir // these tests make thousands of commits

// runInBubble runs test in a bubble, with the dispatcher running.
func runInBubble(t *testing.T, cfg Config, test func(*testbed)) {
	t.Helper()
	runInBubbleAt(t, memoryDir(t), cfg, test)
}

// runInBubbleAt is runInBubble on a data directory that may already contain data.
func runInBubbleAt(t *testing.T, dir string, cfg Config, test func(*testbed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &testbed{t: t, dir: dir, cfg: cfg, subscribers: make(map[netip.Addr]*subscriber)}
		w.run(func() { test(w) })
	})
}

// run runs test inside a bubble, with the dispatcher running.
func (w *testbed) run(test func()) {
	w.start()
	w.createProgram("p")
	test()
	w.end()
	for _, r := range w.subscribers {
		close(r.conns)
	}
}

// createProgram makes a program usable.
func (w *testbed) createProgram(id string) {
	w.t.Helper()
	_, _, err := storetest.CreateToken(context.Background(), w.d.store,
		webhook.NewToken{ProgramID: id, UserID: "u", Scopes: webhook.Scopes()})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *testbed) start() {
	w.openStore()
	w.runDispatcher()
}

// openStore opens the store and creates the dispatcher, without running it.
func (w *testbed) openStore() {
	s, err := store.Open(context.Background(), store.Config{
		Dir: w.dir, Now: w.now, SendAlerts: w.cfg.Alerts != nil, Fault: w.fault, Retention: w.retention,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := w.cfg
	cfg.Store, cfg.AllowHTTP = s, true
	if cfg.Destinations, err = webhook.ParseDestinations([]string{"10.0.0.0/8"}); err != nil {
		w.t.Fatal(err)
	}
	w.d = New(cfg)
	w.d.entered = w.entered
	c := w.d.cfg.client()
	c.Connect = w.connect
	w.d.client = client.New(c)
}

func (w *testbed) runDispatcher() {
	ctx, cancel := context.WithCancel(context.Background())
	w.stop, w.done = cancel, make(chan error, 1)
	d := w.d
	go func() { w.done <- d.Run(ctx) }()
	synctest.Wait()
}

// end ends the dispatcher and closes the store.
func (w *testbed) end() {
	w.t.Helper()
	w.stop()
	if err := errors.Join(<-w.done, w.d.store.Close()); err != nil {
		w.t.Error(err)
	}
}

// kill ends the dispatcher like kill -9: nothing more is stored.
func (w *testbed) kill() {
	w.d.store.Close()
	w.stop()
	if err := <-w.done; err != nil {
		w.t.Error(err)
	}
}

// crash kills the dispatcher and starts it again.
func (w *testbed) crash() {
	w.kill()
	w.start()
}

func (w *testbed) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	r := w.subscribers[to.Addr()]
	w.mu.Unlock()
	if r == nil {
		return nil, fmt.Errorf("no server at %s", to)
	}
	if w.dial > 0 {
		select {
		case <-time.After(w.dial):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ours, theirs := net.Pipe()
	select {
	case r.conns <- theirs:
		return ours, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept, Close and Addr make a subscriber a [net.Listener].
func (r *subscriber) Accept() (net.Conn, error) {
	if c, ok := <-r.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (r *subscriber) Close() error   { return nil }
func (r *subscriber) Addr() net.Addr { return &net.TCPAddr{} }

// subscriber starts a server that answers each request with respond; nil answers 200.
func (w *testbed) subscriber(answer func(n int, w http.ResponseWriter, r *http.Request)) *subscriber {
	w.mu.Lock()
	addr := netip.AddrFrom4([4]byte{10, 0, byte(len(w.subscribers) >> 8), byte(len(w.subscribers))})
	r := &subscriber{url: "http://" + addr.String() + "/hook", conns: make(chan net.Conn), respond: answer}
	w.subscribers[addr] = r
	w.mu.Unlock()
	server := &http.Server{Handler: r}
	go server.Serve(r)
	return r
}

func (r *subscriber) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if r.handler != nil {
		r.handler(w, req)
		return
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	var d struct {
		DeliveryID string `json:"delivery_id"`
		Events     []webhook.EventRef
	}
	if err := json.Unmarshal(body, &d); err != nil {
		panic(err)
	}
	p := receivedRequest{at: time.Now(), delivery: d.DeliveryID, bodyHash: sha256.Sum256(body), size: len(body)}
	for _, e := range d.Events {
		p.names, p.ids = append(p.names, e.Name), append(p.ids, e.ID)
	}
	r.mu.Lock()
	r.requests = append(r.requests, p)
	n := len(r.requests)
	r.openRequests++
	r.maxOpen = max(r.maxOpen, r.openRequests)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.openRequests--
		r.mu.Unlock()
	}()
	if r.respond != nil {
		r.respond(n, w, req)
	}
}

// posts waits until all goroutines are blocked and returns the requests received so
// far, excluding pings.
func (r *subscriber) posts() []receivedRequest {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []receivedRequest
	for _, p := range r.requests {
		if !slices.Equal(p.names, []string{"ping"}) {
			got = append(got, p)
		}
	}
	return got
}

// wantPosts checks the number of requests received so far, excluding pings.
func (r *subscriber) wantPosts(t *testing.T, want int, when string) {
	t.Helper()
	if got := len(r.posts()); got != want {
		t.Errorf("got %d requests %s, want %d", got, when, want)
	}
}

// wantImmediate publishes an event, and checks that a receiver gets it immediately.
func (w *testbed) wantImmediate(r *subscriber) {
	w.t.Helper()
	at, before := time.Now(), len(r.posts())
	w.publish("content_updated")
	if got := r.posts(); len(got) != before+1 || !got[before].at.Equal(at) {
		w.t.Errorf("got no immediate delivery to %s", r.url)
	}
}

func (r *subscriber) pings() int { return len(r.all()) - len(r.posts()) }

func (r *subscriber) all() []receivedRequest {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// subscribe creates a subscription to content_updated and content_deleted, which
// change may modify.
func (w *testbed) subscribe(r *subscriber, change func(*webhook.SubscriptionFields)) webhook.Subscription {
	w.t.Helper()
	f := &webhook.SubscriptionFields{URL: &r.url, Events: &[]string{"content_updated", "content_deleted"}}
	if change != nil {
		change(f)
	}
	return w.subscribeAs("p", f)
}

// inOrder makes a subscription ordered.
func inOrder(f *webhook.SubscriptionFields) { f.Ordered = new(true) }

// subscribeIn creates a subscription of a program to one event.
func (w *testbed) subscribeIn(program string, r *subscriber, event string) webhook.Subscription {
	w.t.Helper()
	return w.subscribeAs(program, &webhook.SubscriptionFields{URL: &r.url, Events: &[]string{event}})
}

// subscribeAs creates a subscription of a program.
func (w *testbed) subscribeAs(program string, f *webhook.SubscriptionFields) webhook.Subscription {
	w.t.Helper()
	sub, _, err := storetest.CreateSubscription(context.Background(), w.d.store, program, "u", f)
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
	return sub
}

func (w *testbed) update(sub webhook.Subscription, f *webhook.SubscriptionFields) {
	w.t.Helper()
	if _, err := storetest.UpdateSubscription(context.Background(), w.d.store, "p", sub.ID, f); err != nil {
		w.t.Fatal(err)
	}
}

// publish publishes one event and returns its ID.
func (w *testbed) publish(name string) string {
	w.t.Helper()
	return w.publishOfSize(name, 0)
}

// publishN publishes n events with the names in turn, and returns their IDs.
func (w *testbed) publishN(n int, names ...string) (ids []string) {
	w.t.Helper()
	for i := range n {
		ids = append(ids, w.publish(names[i%len(names)]))
	}
	return ids
}

// publishEvery publishes n events, and lets time pass after each.
func (w *testbed) publishEvery(pause time.Duration, n int, name string) (ids []string) {
	w.t.Helper()
	for range n {
		ids = append(ids, w.publish(name))
		time.Sleep(pause)
	}
	return ids
}

// publishOfSize publishes an event with a field of size bytes.
func (w *testbed) publishOfSize(name string, size int) string {
	w.t.Helper()
	e := newEvent(name)
	if size > 0 {
		e.JSON = fmt.Appendf(nil, `{"id":%q,"name":%q,"text":%q}`, e.ID, name, strings.Repeat("x", size))
	}
	w.publishIn("p", e)
	return e.ID
}

// publishTogether publishes n events with one request, and waits until all goroutines are blocked.
func (w *testbed) publishTogether(n int) {
	w.t.Helper()
	events := make([]webhook.Event, n)
	for i := range events {
		events[i] = newEvent("content_updated")
	}
	w.publishIn("p", events...)
	synctest.Wait()
}

// publishIn publishes events in a program, with one request.
func (w *testbed) publishIn(program string, events ...webhook.Event) {
	w.t.Helper()
	if _, err := w.d.store.Events().Publish(context.Background(), program, events); err != nil {
		w.t.Fatal(err)
	}
}

// newEvent returns an event that was received now.
func newEvent(name string) webhook.Event {
	id := webhook.NewID()
	return webhook.Event{ID: id, Name: name, ReceivedAt: time.Now(), JSON: fmt.Appendf(nil, `{"id":%q,"name":%q}`, id, name)}
}

func (w *testbed) commits() uint64 {
	w.t.Helper()
	y, err := w.d.store.Figures().System(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return y.Commits
}

func (w *testbed) delivery(sub webhook.Subscription, id string) webhook.Delivery {
	w.t.Helper()
	d, err := w.d.store.Deliveries().Get(context.Background(), "p", sub.ID, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// get returns a subscription as it is stored once all goroutines are blocked.
func (w *testbed) get(sub webhook.Subscription) webhook.Subscription {
	w.t.Helper()
	synctest.Wait()
	got, err := w.d.store.Subscriptions().Get(context.Background(), "p", sub.ID)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// health returns the status of a subscription once all goroutines are blocked.
func (w *testbed) health(sub webhook.Subscription) webhook.Health {
	w.t.Helper()
	return w.get(sub).Status
}

// wantHealth checks the status of a subscription.
func (w *testbed) wantHealth(sub webhook.Subscription, want webhook.Health, when string) {
	w.t.Helper()
	if got := w.health(sub); got != want {
		w.t.Errorf("got status %s %s, want %s", got, when, want)
	}
}

// queue returns the dispatcher's queue of a subscription.
func (w *testbed) queue(sub webhook.Subscription) *subscriptionQueue {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	return w.d.queues[sub.ID]
}

// redeliver creates a redelivery of a delivery of the subscription.
func (w *testbed) redeliver(sub webhook.Subscription, id string) webhook.Delivery {
	w.t.Helper()
	d, err := storetest.Redeliver(context.Background(), w.d.store, "p", sub.ID, id)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// replay starts a replay of the events since a time.
func (w *testbed) replay(sub webhook.Subscription, from time.Time, only webhook.ReplayOnly) webhook.Replay {
	w.t.Helper()
	replay, err := storetest.CreateReplay(context.Background(), w.d.store, "p", sub.ID, &webhook.ReplayFields{From: from, Only: only})
	if err != nil {
		w.t.Fatal(err)
	}
	return replay
}

// respondWith answers with each status in turn, then always with the last.
func respondWith(all ...int) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(all[min(n, len(all))-1]) }
}

// hang answers after the sender has given up.
func hang(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// afterPing answers the ping after the creation with 200, and then as respond does.
func afterPing(respond func(int, http.ResponseWriter, *http.Request)) func(int, http.ResponseWriter, *http.Request) {
	return func(n int, w http.ResponseWriter, r *http.Request) {
		if n > 1 {
			respond(n, w, r)
		}
	}
}

// statusSwitch is a switch: while it is on, receivers answer with its code, otherwise with 200.
type statusSwitch struct {
	atomic.Bool
	code int
}

func (s *statusSwitch) status([]string) int {
	if s.Load() {
		return s.code
	}
	return http.StatusOK
}

func (s *statusSwitch) respond(_ int, w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(s.status(nil))
}

// exactRetryPolicy is the default policy without jitter.
func exactRetryPolicy() webhook.RetryPolicy {
	p := webhook.DefaultRetryPolicy()
	p.Jitter = 0
	return p
}

func TestEventIsSentImmediately(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		r := w.subscriber(nil)
		sub := w.subscribe(r, nil)
		if n := r.pings(); n != 1 {
			t.Errorf("got %d pings after the subscription was created, want 1", n)
		}
		start := time.Now()
		w.publish("channel_created")
		before := w.commits()
		id := w.publish("content_updated")
		got := r.posts()
		if n := w.commits() - before; n != 2 {
			t.Errorf("got %d commits, want 2: the event with its delivery, and the result", n)
		}
		if len(got) != 1 || !slices.Equal(got[0].ids, []string{id}) || !got[0].at.Equal(start) {
			t.Fatalf("got %+v, want only the subscribed event, immediately", got)
		}
		d := w.delivery(sub, got[0].delivery)
		if d.Status != webhook.StatusSuccess || d.AttemptsMade != 1 || len(d.Attempts) != 1 || d.Attempts[0].ResponseStatus != 200 {
			t.Errorf("got delivery %+v, want success after 1 attempt", d)
		}
	})
}

// checkSchedule checks that all requests carry the same delivery, at the times of
// exactRetryPolicy.
func checkSchedule(t *testing.T, posts []receivedRequest, attempts []webhook.Attempt) {
	t.Helper()
	for i, p := range posts {
		if p.delivery != posts[0].delivery || p.bodyHash != posts[0].bodyHash {
			t.Errorf("request %d has a different delivery or different bytes", i+1)
		}
		if i == 0 {
			continue
		}
		ended := attempts[i-1].StartedAt.Add(attempts[i-1].Duration)
		if wait := p.at.Sub(ended); wait != exactRetryPolicy().Waits[i-1] {
			t.Errorf("attempt %d came %s after the previous one, want %s", i+1, wait, exactRetryPolicy().Waits[i-1])
		}
	}
}

func TestRetrySchedule(t *testing.T) {
	for _, c := range []struct {
		name     string
		answer   func(int, http.ResponseWriter, *http.Request)
		attempts int
		status   webhook.Status
		reason   webhook.FailureReason
	}{
		{"500, 500, 200", respondWith(200, 500, 500, 200), 3, webhook.StatusSuccess, ""},
		{"always 500", respondWith(200, 500), 5, webhook.StatusFailed, webhook.FailureAttemptsExhausted},
		{"404", respondWith(200, 404), 1, webhook.StatusFailed, webhook.FailureRejected},
		{"500, 302", respondWith(200, 500, 302), 2, webhook.StatusFailed, webhook.FailureRejected},
		{"hangs", afterPing(hang), 5, webhook.StatusFailed, webhook.FailureAttemptsExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			runInBubble(t, Config{RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
				r := w.subscriber(c.answer)
				sub := w.subscribe(r, nil)
				w.publish("content_updated")
				time.Sleep(24 * time.Hour)
				got := r.posts()
				if len(got) != c.attempts {
					t.Fatalf("got %d requests, want %d", len(got), c.attempts)
				}
				d := w.delivery(sub, got[0].delivery)
				checkSchedule(t, got, d.Attempts)
				if d.Status != c.status || d.FailureReason != c.reason || d.AttemptsMade != c.attempts || len(d.Attempts) != c.attempts {
					t.Errorf("got %s %q after %d attempts, want %s %q after %d", d.Status, d.FailureReason, d.AttemptsMade, c.status, c.reason, c.attempts)
				}
				for _, a := range d.Attempts {
					if c.name == "hangs" && (a.Error != webhook.ErrorTimeout || a.Duration != 10*time.Second) {
						t.Errorf("got error %[2]q after %[3]s in attempt %[1]d, want a timeout after 10s", a.Number, a.Error, a.Duration)
					}
				}
			})
		})
	}
}

// While all slots are in use, events accumulate and are then sent in batches.
func TestBatchesWhileBusy(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 2, BatchSize: 4}, func(w *testbed) {
		gate := make(chan struct{})
		r := w.subscriber(afterPing(func(int, http.ResponseWriter, *http.Request) { <-gate }))
		w.subscribe(r, nil)
		var want []string
		for range 12 {
			want = append(want, w.publish("content_updated"))
			synctest.Wait()
		}
		close(gate)
		if sizes := slices.Sorted(slices.Values(r.batches())); !slices.Equal(sizes, []int{1, 1, 2, 4, 4}) {
			t.Errorf("got batches of %v, want 1, 1, 2, 4, 4", sizes)
		}
		if got := events(r.posts()); !sameIDs(got, want) {
			t.Errorf("got %d events, want each of 12 exactly once", len(got))
		}
	})
}

func TestBatchWindow(t *testing.T) {
	runInBubble(t, Config{BatchWindow: time.Second}, func(w *testbed) {
		r := w.subscriber(nil)
		w.subscribe(r, nil)
		start := time.Now()
		w.publishEvery(100*time.Millisecond, 5, "content_updated")
		r.wantPosts(t, 0, "before the window ended")
		time.Sleep(time.Second)
		got := r.posts()
		if len(got) != 1 || len(got[0].ids) != 5 || got[0].at.Sub(start) != time.Second {
			t.Errorf("got %+v, want all five events together after 1s", got)
		}
	})
}

// A subscription that hangs uses only its own slots; it still receives pings.
func TestSlots(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 3, MaxConnections: 7, BatchSize: 1}, func(w *testbed) {
		hanging, other, healthy := w.subscriber(afterPing(hang)), w.subscriber(afterPing(hang)), w.subscriber(nil)
		sub := w.subscribe(hanging, nil)
		w.subscribe(other, func(f *webhook.SubscriptionFields) { f.MaxInFlight = new(1) })
		w.subscribe(healthy, nil)
		start := time.Now()
		w.publishN(20, "content_updated")
		if got := healthy.posts(); len(got) != 20 || !got[19].at.Equal(start) {
			t.Errorf("got %d requests at the healthy receiver, want 20 immediately", len(got))
		}
		go w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		if n := hanging.pings(); n != 2 {
			t.Errorf("got %d pings, want 2: after creation, and the requested one", n)
		}
		time.Sleep(5 * time.Second)
		if hanging.maxOpen != 3+1 || other.maxOpen != 1 {
			t.Errorf("got at most %d and %d in flight, want 4 (one is a ping) and 1", hanging.maxOpen, other.maxOpen)
		}
	})
}

// A program with many hanging subscriptions and waiting pings leaves ping slots for
// other programs.
func TestPingSlotsAreSharedFairly(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		w.createProgram("q")
		for range 40 {
			sub := w.subscribe(w.subscriber(hang), nil)
			for range 10 {
				go w.d.store.Subscriptions().Ping(ctx, "p", sub.ID)
			}
		}
		synctest.Wait()
		w.d.mu.Lock()
		if n := w.d.pings.inFlight; n != maxPings/2 {
			t.Errorf("got %d pings of one program in flight, want half of %d", n, maxPings)
		}
		w.d.mu.Unlock()
		sub := w.subscribeIn("q", w.subscriber(nil), "content_updated")
		start := time.Now()
		for range 20 {
			if _, _, err := w.d.store.Subscriptions().Ping(ctx, "q", sub.ID); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("20 pings of another program took %v, want 0s", took)
		}
	})
}

func TestTotalLimitIsSharedFairly(t *testing.T) {
	runInBubble(t, Config{MaxInFlight: 4, MaxConnections: 5, BatchSize: 1}, func(w *testbed) { // one is for quick receivers
		slow := func(n int, _ http.ResponseWriter, _ *http.Request) { time.Sleep(time.Second) }
		a, b := w.subscriber(slow), w.subscriber(slow)
		w.subscribe(a, nil)
		w.subscribe(b, nil)
		time.Sleep(time.Second)
		w.publishN(40, "content_updated")
		time.Sleep(10*time.Second + time.Millisecond)
		// Four per second, in turn: the first subscription has no lasting advantage.
		na, nb := len(a.posts()), len(b.posts())
		if na+nb != 44 || na < 18 || nb < 18 {
			t.Errorf("got %d and %d requests in 10s, want 44 in total and about half each", na, nb)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if a.maxOpen+b.maxOpen > 8 || a.maxOpen > 4 || b.maxOpen > 4 {
			t.Errorf("got up to %d and %d in flight, want at most 4 each and 8 in total", a.maxOpen, b.maxOpen)
		}
	})
}

// However many receivers hang, a receiver that responds finds a free slot: immediately if
// the others' slots cannot fill the limit, otherwise once their first attempts have
// timed out.
func TestHangingReceiversLeaveSlots(t *testing.T) {
	for _, n := range []int{20, 100} {
		runInBubble(t, Config{MaxInFlight: 8, MaxConnections: 64, BatchSize: 1, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
			for range n {
				w.subscribe(w.subscriber(afterPing(hang)), nil)
			}
			healthy := w.subscriber(nil)
			w.subscribeIn("p", healthy, "content_deleted")
			w.publishN(50, "content_updated")
			synctest.Wait()
			if n > 64 {
				time.Sleep(w.d.cfg.AttemptTimeout + time.Second)
			}
			for i := range 60 {
				at := time.Now()
				w.publish("content_deleted")
				if got := healthy.posts(); len(got) != i+1 || !got[i].at.Equal(at) {
					t.Errorf("%d receivers hang: got %[3]d requests after %[2]ds, want %[4]d, the last immediately", n, i, len(got), i+1)
					return
				}
				time.Sleep(time.Second)
			}
		})
	}
}

// A free slot goes to a queue that waits for it, not to another queue's inline delivery.
func TestInlineDeliveryYieldsToWaitingQueue(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
		first := w.subscribeIn("p", w.subscriber(nil), "content_deleted")
		r := w.subscriber(nil)
		w.subscribeIn("p", r, "content_updated")
		w.d.mu.Lock()
		q := w.d.queues[first.ID]
		q.wantedSeq++
		w.d.reschedule(q, q.phase, time.Now()) // it waits for a slot
		w.publish("content_updated")
		if n := w.d.credits.Taken(); n != 0 {
			t.Errorf("got %d slots in use while a queue waits, want 0", n)
		}
		w.d.mu.Unlock()
		synctest.Wait()
		before := w.commits()
		w.publish("content_updated")
		synctest.Wait()
		if n := w.commits() - before; len(r.posts()) != 2 || n != 2 {
			t.Errorf("got %d requests, the last after %d commits; want 2 and 2", len(r.posts()), n)
		}
	})
}

// A queue that has used up its share of the slots takes none from other queues or
// from inline deliveries.
func TestInlineDeliveryWhenShareIsFull(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), MaxConnections: 16, MaxInFlight: 16, BatchSize: 1}, func(w *testbed) {
		w.subscribeIn("p", w.subscriber(hang), "content_deleted")
		r := w.subscriber(nil)
		w.subscribeIn("p", r, "content_updated")
		w.publishN(17, "content_deleted")
		synctest.Wait()
		w.d.mu.Lock()
		if n := w.d.programs["p"].waiting[store.SlotSlow].Len(); n != 1 || w.d.credits.Taken() != 14 {
			t.Errorf("got %d waiting queues and %d slots in use, want 1 and 14", n, w.d.credits.Taken())
		}
		w.d.mu.Unlock()
		before := w.commits()
		w.publish("content_updated")
		synctest.Wait()
		if n := w.commits() - before; len(r.posts()) != 1 || n != 2 { // the event with its delivery, and the result
			t.Errorf("got %d commits, want 2", n)
		}
	})
}

// A retry is sent even if more receivers respond, and have a backlog, than there
// are slots.
func TestRetryIsNotStarved(t *testing.T) {
	for _, n := range []int{1, 4, 16} {
		runInBubble(t, Config{MaxInFlight: 4, MaxConnections: n, BatchSize: 1, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
			for range 3 * n {
				w.subscribe(w.subscriber(func(int, http.ResponseWriter, *http.Request) { time.Sleep(time.Second) }), nil)
			}
			once := w.subscriber(respondWith(200, 503, 200))
			w.subscribeIn("p", once, "channel_created")
			time.Sleep(5 * time.Second) // until the pings have ended
			w.publish("channel_created")
			if got := once.posts(); len(got) != 1 {
				t.Fatalf("%d slots: got %d requests, want the first attempt immediately", n, len(got))
			}
			w.publishN(60, "content_updated") // for three minutes
			time.Sleep(35 * time.Second)      // until it is due and its turn comes
			if got := once.posts(); len(got) != 2 {
				t.Errorf("%d slots: got %d requests, want the second attempt too", n, len(got))
			}
		})
	}
}

// A slow receiver needs several slots. It gets them even if more receivers hang than there
// are slots, once it has responded.
func TestHangingReceiversLeaveSeveralSlots(t *testing.T) {
	for _, n := range []int{20, 100} {
		runInBubble(t, Config{MaxInFlight: 8, MaxConnections: 64, BatchSize: 1, RetryPolicy: exactRetryPolicy()}, func(w *testbed) {
			healthy := w.subscriber(func(int, http.ResponseWriter, *http.Request) { time.Sleep(100 * time.Millisecond) })
			w.subscribeIn("p", healthy, "content_published")
			for range n {
				w.subscribe(w.subscriber(afterPing(hang)), nil)
			}
			time.Sleep(time.Second)
			w.publish("content_published")
			time.Sleep(time.Second)
			w.publishN(50, "content_updated")
			time.Sleep(2*w.d.cfg.AttemptTimeout + time.Second) // until all first attempts have timed out
			const every = 25 * time.Millisecond                // so four are open at a time
			start := time.Now()
			w.publishEvery(every, 800, "content_published")
			got := healthy.posts()[1:]
			if len(got) != 800 {
				t.Errorf("%d receivers hang: got %d requests, want 800", n, len(got))
			}
			worst := time.Duration(0)
			for i, p := range got {
				worst = max(worst, p.at.Sub(start.Add(time.Duration(i)*every)))
			}
			if worst > 250*time.Millisecond {
				t.Errorf("%d receivers hang: a request arrived %s after its event was published, want at most 250ms", n, worst)
			}
		})
	}
}

// Events published while a subscription is paused or does not select their name are
// not delivered; those before and after are.
func TestPauseAndResume(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), MaxInFlight: 1}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 500, 200))
		sub := w.subscribe(r, nil)
		first := w.publish("content_updated") // fails once
		synctest.Wait()
		w.update(sub, &webhook.SubscriptionFields{Active: new(false)})
		w.publish("content_updated")
		time.Sleep(time.Hour)
		r.wantPosts(t, 1, "while the subscription is paused")
		w.update(sub, &webhook.SubscriptionFields{Active: new(true)})
		last := w.publish("content_updated")
		got := r.posts()
		if len(got) != 3 || got[1].ids[0] != first || got[2].ids[0] != last {
			t.Errorf("got %+v, want the retry of the first event and then the last event", got)
		}
		w.update(sub, &webhook.SubscriptionFields{Events: &[]string{"content_deleted"}})
		w.publish("content_updated")
		w.publish("content_deleted")
		if got := r.posts()[3:]; len(got) != 1 || got[0].names[0] != "content_deleted" {
			t.Errorf("got %+v, want only content_deleted", got)
		}
		moved := w.subscriber(nil)
		w.update(sub, &webhook.SubscriptionFields{URL: &moved.url})
		w.publish("content_deleted")
		if len(r.posts()) != 4 || len(moved.posts()) != 1 {
			t.Errorf("got %d requests at the old URL and %d at the new, want 4 and 1", len(r.posts()), len(moved.posts()))
		}
	})
}

func TestNothingIsSentAfterDeletion(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 500))
		sub := w.subscribe(r, nil)
		w.publish("content_updated")
		before := len(r.posts())
		if _, err := storetest.DeleteSubscription(context.Background(), w.d.store, "p", sub.ID); err != nil {
			t.Fatal(err)
		}
		w.publish("content_updated")
		time.Sleep(24 * time.Hour)
		r.wantPosts(t, before, "after the deletion")
	})
}

// An ordered subscription gets the next delivery only after the previous one has
// succeeded or failed permanently.
func TestOrdered(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 500, 500, 200, 404, 200))
		w.subscribe(r, inOrder)
		var want []string
		for i := range 4 {
			id := w.publish("content_updated")
			want = append(want, id)
			if i == 0 {
				want = append(want, id, id)
			}
		}
		time.Sleep(time.Hour)
		if got := events(r.posts()); !slices.Equal(got, want) || r.maxOpen != 1 {
			t.Errorf("got %v with up to %d in flight, want %v with 1", got, r.maxOpen, want)
		}
	})
}

// An ordered subscription continues when the delivery it waits for is cancelled.
func TestOrderedContinuesAfterCancel(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 500, 200))
		sub := w.subscribe(r, inOrder)
		first, second := w.publish("content_updated"), w.publish("content_updated")
		if got := r.posts(); len(got) != 1 {
			t.Fatalf("got %d requests before the cancellation, want 1", len(got))
		}
		began := time.Now()
		if err := storetest.Cancel(context.Background(), w.d.store, "p", sub.ID, r.requests[1].delivery); err != nil {
			t.Fatal(err)
		}
		got := r.posts()
		if len(got) != 2 || got[0].ids[0] != first || got[1].ids[0] != second || !time.Now().Equal(began) {
			t.Errorf("got %+v, want the second event immediately", got)
		}
		time.Sleep(24 * time.Hour)
		r.wantPosts(t, 2, "after a day, without a retry of the cancelled delivery")
	})
}

// An ordered subscription continues as soon as the delivery it waits for has
// expired.
func TestOrderedContinuesAfterExpiry(t *testing.T) {
	var failures bytes.Buffer // retention next to deliveries logs none
	logger := slog.New(slog.NewTextHandler(&failures, &slog.HandlerOptions{Level: slog.LevelError}))
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1, Logger: logger}, func(w *testbed) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func(s *store.Store) { done <- s.Retain(ctx, webhook.Retention{All: time.Hour}) }(w.d.store)
		r := w.subscriber(respondWith(200, 500, 500, 500, 500, 200))
		w.subscribe(r, inOrder)
		w.publish("content_updated")
		w.subscribe(w.subscriber(nil), nil) // retention keeps the newest delivery, which is now its ping
		time.Sleep(50 * time.Minute)        // the fifth attempt is due in two hours
		second := w.publish("content_updated")
		time.Sleep(15 * time.Minute)
		if got := r.posts(); len(got) != 5 || got[4].ids[0] != second {
			t.Errorf("got %+v, want four attempts and then the second event", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if failures.Len() > 0 {
			t.Errorf("logged %s", &failures)
		}
	})
}

// An attempt interrupted by a crash counts and is retried, with the same ID and bytes: the
// first one immediately, later ones after the wait for a failure.
func TestCrash(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		r := w.subscriber(afterPing(hang))
		sub := w.subscribe(r, nil)
		w.publish("content_updated")
		for crash := range 6 {
			got := r.posts()
			if want := min(crash+1, 5); len(got) != want {
				t.Fatalf("after %d crashes: got %d requests, want %d", crash, len(got), want)
			}
			if last := got[len(got)-1]; last.delivery != got[0].delivery || last.bodyHash != got[0].bodyHash {
				t.Error("the retry has a different delivery or different bytes")
			}
			time.Sleep(time.Second)
			w.crash()
			start := time.Now()
			if crash >= 4 {
				continue
			}
			wait := time.Duration(0)
			if crash > 0 {
				wait = exactRetryPolicy().Waits[crash]
			}
			time.Sleep(wait)
			if got := r.posts(); len(got) != crash+2 || got[crash+1].at.Sub(start) != wait {
				t.Errorf("after %d crashes: got %d requests, the last one %s after the crash; want it after %s",
					crash+1, len(got), got[len(got)-1].at.Sub(start), wait)
			}
		}
		d := w.delivery(sub, r.posts()[0].delivery)
		if d.FailureReason != webhook.FailureAttemptsExhausted || d.Attempts[4].Error != webhook.ErrorInterrupted {
			t.Errorf("got %+v, want attempts_exhausted and the last attempt interrupted", d)
		}
	})
}

// A service that crashes every two seconds does not use up the attempts of deliveries in
// flight. The first crash makes all of them retry immediately, in parallel.
func TestCrashLoop(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond, BatchSize: 1}, func(w *testbed) {
		var works atomic.Bool
		r := w.subscriber(func(n int, rw http.ResponseWriter, req *http.Request) {
			if n > 1 && !works.Load() {
				hang(n, rw, req)
			}
		})
		sub := w.subscribe(r, nil)
		w.publishN(8, "content_updated")
		for crash := range 5 {
			time.Sleep(2 * time.Second)
			w.crash()
			if n := len(r.posts()); n != 16 {
				t.Fatalf("got %d requests immediately after crash %d, want two of each delivery", n, crash+1)
			}
		}
		works.Store(true)
		time.Sleep(exactRetryPolicy().Waits[1])
		for _, p := range r.posts()[:8] {
			if d := w.delivery(sub, p.delivery); d.Status != webhook.StatusSuccess || d.AttemptsMade != 3 {
				t.Errorf("got %+v, want success after three attempts", d)
			}
		}
	})
}

// A shutdown waits for attempts in flight, up to the grace period.
func TestShutdown(t *testing.T) {
	for _, c := range []struct {
		name   string
		takes  time.Duration
		ends   time.Duration
		status webhook.Status
	}{
		{"within the grace period", 2 * time.Second, 2 * time.Second, webhook.StatusSuccess},
		{"cut off", 9 * time.Second, 3 * time.Second, webhook.StatusRetryable},
	} {
		t.Run(c.name, func(t *testing.T) {
			runInBubble(t, Config{Grace: 3 * time.Second}, func(w *testbed) {
				r := w.subscriber(afterPing(func(int, http.ResponseWriter, *http.Request) { time.Sleep(c.takes) }))
				sub := w.subscribe(r, nil)
				w.publish("content_updated")
				got := r.posts()
				start := time.Now()
				w.stop()
				if err := <-w.done; err != nil {
					t.Error(err)
				}
				w.done <- nil
				if took := time.Since(start); took != c.ends {
					t.Errorf("shutdown took %s, want %s", took, c.ends)
				}
				if d := w.delivery(sub, got[0].delivery); d.Status != c.status || len(d.Attempts) != 1 {
					t.Errorf("got delivery %+v, want %s with 1 recorded attempt", d, c.status)
				}
				time.Sleep(time.Minute) // until the server's handler returns
			})
		})
	}
}

// A replay runs in addition to new events, continues after a crash, and completes.
func TestReplay(t *testing.T) {
	runInBubble(t, Config{BatchSize: 2, MaxInFlight: 1, Grace: time.Millisecond}, func(w *testbed) {
		want := w.publishN(5, "content_updated")
		r := w.subscriber(func(n int, _ http.ResponseWriter, _ *http.Request) { time.Sleep(time.Second) })
		sub := w.subscribe(r, nil)
		time.Sleep(time.Second)
		replay := w.replay(sub, time.Now().Add(-time.Hour), webhook.ReplayMissed)
		synctest.Wait()
		late := w.publish("content_deleted")
		time.Sleep(1500 * time.Millisecond)
		w.crash()
		time.Sleep(time.Minute)
		var got []string
		for _, id := range events(r.posts()) {
			if !slices.Contains(got, id) {
				got = append(got, id)
			}
		}
		if !slices.Contains(got, late) || !slices.Equal(slices.DeleteFunc(got, func(id string) bool { return id == late }), want) {
			t.Errorf("got %v, want %v in order and %s", got, want, late)
		}
		if replay, err := w.d.store.Replays().Get(context.Background(), "p", sub.ID, replay.ID); err != nil ||
			replay.Status != webhook.ReplayDone || replay.EventsSent != 5 || replay.Deliveries != 3 {
			t.Errorf("got replay %+v (%v), want it done with 5 events in 3 deliveries", replay, err)
		}
	})
}

// A redelivery is a new delivery with the same events.
func TestRedelivery(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		r := w.subscriber(respondWith(200, 404, 200))
		sub := w.subscribe(r, nil)
		id := w.publish("content_updated")
		first := r.posts()[0]
		d := w.redeliver(sub, first.delivery)
		got := r.posts()
		if len(got) != 2 || got[1].delivery != d.ID || got[1].delivery == first.delivery || !slices.Equal(got[1].ids, []string{id}) {
			t.Errorf("got %+v, want the same event in a new delivery", got)
		}
		if d := w.delivery(sub, d.ID); d.Status != webhook.StatusSuccess || d.RedeliveryOf != first.delivery {
			t.Errorf("got redelivery %+v, want success and redelivery_of %s", d, first.delivery)
		}
	})
}

// deliveries returns how many different deliveries were received, excluding pings.
func (r *subscriber) deliveries() int {
	ids := make(map[string]bool)
	for _, p := range r.posts() {
		ids[p.delivery] = true
	}
	return len(ids)
}

// While a subscription is failing, its events wait in the log and it is probed at
// growing intervals; pings are still sent. The first success delivers the backlog.
func TestHealth(t *testing.T) {
	runInBubble(t, Config{HealthPolicy: webhook.HealthPolicy{FailingAfter: 10}, BatchSize: 1}, func(w *testbed) {
		broken := statusSwitch{code: http.StatusBadGateway}
		broken.Store(true)
		r := w.subscriber(broken.respond)
		healthy := w.subscriber(nil)
		sub := w.subscribe(r, nil)
		w.subscribe(healthy, nil)
		w.publishEvery(time.Second, 12, "content_updated")
		w.wantHealth(sub, webhook.HealthHealthy, "after 12s of failures")
		time.Sleep(time.Minute)
		w.publish("content_updated")
		w.wantHealth(sub, webhook.HealthFailing, "after 1m of failures")
		before := len(r.posts())
		const backlog = 40
		w.publishN(backlog, "content_updated")
		probes := func(when string, least, most int) {
			t.Helper()
			if n := len(r.posts()) - before; n < least || n > most {
				t.Errorf("got %d probes %s, want %d to %d", n, when, least, most)
			}
		}
		time.Sleep(4 * time.Second)
		probes("before the first is due", 0, 0)
		time.Sleep(2 * time.Second)
		probes("after 6 s", 1, 1)
		time.Sleep(10 * time.Minute)
		probes("after 10 min of doubling intervals", 5, 8)
		pings := r.pings()
		go w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
		if r.pings() != pings+1 {
			t.Error("no ping was sent to the failing subscription")
		}
		healthy.wantPosts(t, 13+backlog, "at the healthy subscription")
		w.crash()
		w.wantHealth(sub, webhook.HealthFailing, "after a restart")
		broken.Store(false)
		time.Sleep(webhook.MaxProbeWait)
		w.wantHealth(sub, webhook.HealthHealthy, "after a success")
		if n := r.deliveries(); n != 13+backlog {
			t.Errorf("got %d deliveries after the recovery, want %d, one for each event", n, 13+backlog)
		}
	})
}

func TestDisableAfter(t *testing.T) {
	runInBubble(t, Config{HealthPolicy: webhook.HealthPolicy{FailingAfter: 2, DisableAfter: time.Hour}, BatchSize: 1}, func(w *testbed) {
		broken := statusSwitch{code: http.StatusBadGateway}
		broken.Store(true)
		r := w.subscriber(broken.respond)
		sub := w.subscribe(r, nil)
		w.publishEvery(5*time.Minute, 30, "content_updated")
		if got := w.get(sub); got.Status != webhook.HealthDisabled || got.Active || got.DisabledReason == "" {
			t.Errorf("got %+v after hours of failures, want it disabled and inactive", got)
		}
		before := len(r.posts())
		time.Sleep(24 * time.Hour)
		if n := len(r.posts()) - before; n != 0 {
			t.Errorf("got %d requests to a disabled subscription, want 0", n)
		}
		broken.Store(false)
		w.update(sub, &webhook.SubscriptionFields{Active: new(true)})
		last := w.publish("content_updated")
		time.Sleep(time.Minute)
		if !slices.ContainsFunc(r.posts(), func(a receivedRequest) bool { return a.ids[0] == last }) {
			t.Error("no event arrived after the subscription was activated")
		}
		if got := w.get(sub); got.Status != webhook.HealthHealthy || got.DisabledReason != "" {
			t.Errorf("got %+v after activation, want it healthy", got)
		}
	})
}

// Retries that are due at the same time are sent in parallel.
func TestRetriesDueTogether(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1}, func(w *testbed) {
		var down atomic.Bool
		r := w.subscriber(func(n int, rw http.ResponseWriter, _ *http.Request) {
			if n > 1 && down.Load() {
				rw.WriteHeader(http.StatusBadGateway)
				return
			}
			time.Sleep(5 * time.Second)
		})
		sub := w.subscribe(r, nil)
		time.Sleep(time.Minute)
		down.Store(true)
		w.publishN(8, "content_updated")
		synctest.Wait()
		w.update(sub, &webhook.SubscriptionFields{Active: new(false)})
		down.Store(false)
		time.Sleep(time.Hour)
		before := len(r.posts())
		w.update(sub, &webhook.SubscriptionFields{Active: new(true)})
		if n := len(r.posts()) - before; n != 8 {
			t.Errorf("got %d retries immediately, want 8", n)
		}
	})
}

// Actions requested after the clock was set back take effect immediately.
func TestClockSetBack(t *testing.T) {
	dir := memoryDir(t)
	var sub webhook.Subscription
	var first string
	// Each bubble starts at the same time, so the second starts an hour before the
	// first ended.
	runInBubbleAt(t, dir, Config{}, func(w *testbed) {
		r := w.subscriber(nil)
		time.Sleep(time.Hour)
		sub = w.subscribe(r, nil)
		w.publish("content_updated")
		first = r.posts()[0].delivery
	})
	runInBubbleAt(t, dir, Config{}, func(w *testbed) {
		r := w.subscriber(nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if _, _, err := w.d.store.Subscriptions().Ping(ctx, "p", sub.ID); err != nil {
			t.Errorf("ping: %v", err)
		}
		w.redeliver(sub, first)
		w.publish("content_updated")
		r.wantPosts(t, 2, "for the redelivery and the new event")
		w.replay(sub, time.Now().Add(-time.Hour), webhook.ReplayAll)
		r.wantPosts(t, 3, "including the replay")
		if ctx.Err() != nil {
			t.Error("the actions took more than 1s")
		}
	})
}

// The wall clock jumps, forward or back, while deliveries wait: each is still sent
// at its time, no receiver gets a burst, and no delivery is given up.
func TestClockJumps(t *testing.T) {
	for _, jump := range []time.Duration{24 * time.Hour, -2 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { clockJumps(t, jump) }) })
	}
}

func clockJumps(t *testing.T, jump time.Duration) {
	var by atomic.Int64
	w := &testbed{
		t: t, dir: memoryDir(t), subscribers: make(map[netip.Addr]*subscriber),
		cfg: Config{RetryPolicy: exactRetryPolicy(), BatchSize: 1,
			HealthPolicy: webhook.HealthPolicy{FailingAfter: 24, DisableAfter: 12 * time.Hour}},
		now: func() time.Time { return time.Now().Add(time.Duration(by.Load())).Round(0) },
	}
	w.run(func() {
		failing := statusSwitch{code: http.StatusBadGateway}
		failing.Store(true)
		r := w.subscriber(failing.respond)
		good := w.subscriber(nil)
		sub := w.subscribeIn("p", r, "content_updated")
		w.subscribeIn("p", good, "content_deleted")
		if _, err := storetest.RotateSecret(t.Context(), w.d.store, "p", sub.ID); err != nil {
			t.Error(err)
		}
		start := time.Now()
		w.publishN(8, "content_updated")
		wantPosts := func(after time.Duration, n int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(after)))
			r.wantPosts(t, n, after.String()+" after the start")
		}
		wantPosts(0, 8)
		time.Sleep(2 * time.Second)
		by.Add(int64(jump))
		// New events are sent immediately, even right after a jump that the store
		// has not seen.
		w.publish("content_deleted")
		good.wantPosts(t, 1, "for the new event")
		wantPosts(4*time.Second+999*time.Millisecond, 8)
		wantPosts(5*time.Second, 16)
		wantPosts(5*time.Minute+4*time.Second, 16)
		by.Add(int64(jump)) // the store sees nothing until the retries are due
		wantPosts(5*time.Minute+5*time.Second, 24)
		if fresh := w.get(sub); !fresh.Active || fresh.Status == webhook.HealthDisabled {
			t.Errorf("got status %s, active %t; want it active and not disabled", fresh.Status, fresh.Active)
		}
		if l, err := w.d.store.Queues().Get(t.Context(), sub.ID); err != nil || len(l.SigningSecrets(time.Now())) != 2 {
			t.Errorf("got %d signing secrets (%v), want 2, including the old one", len(l.SigningSecrets(time.Now())), err)
		}
		// The clock jumps across a restart as well. A jump back is detected; after a jump forward,
		// overdue deliveries are sent immediately, within their slots.
		by.Add(int64(jump))
		w.crash()
		failing.Store(false)
		if jump < 0 {
			w.crash()                                   // again, before any other write: deadlines are not shifted twice
			wantPosts(35*time.Minute+4*time.Second, 25) // one of them is the probe, ahead of schedule
		}
		time.Sleep(time.Until(start.Add(36 * time.Minute)))
		if got := r.posts(); len(got) < 32 {
			t.Errorf("got %d requests in the end, want at least 32: all 8 deliveries retried", len(got))
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.maxOpen > 9 {
			t.Errorf("got up to %d requests at a time, want at most 9: 8 deliveries and a ping", r.maxOpen)
		}
	})
}

// A delivery whose event is missing suspends only its own subscription.
func TestUnusableRecordSuspendsOnlyItsQueue(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		bad, good := w.subscriber(respondWith(200, 500)), w.subscriber(nil)
		sub := w.subscribe(bad, nil)
		w.subscribe(good, nil)
		w.publish("content_updated")
		before := len(good.posts())
		q := w.queue(sub)
		w.d.mu.Lock()
		until := w.d.pauseClaims(q, sub.ID, errors.New("event is missing"))
		w.d.mu.Unlock()
		w.publishN(10, "content_deleted")
		if n := len(good.posts()) - before; n == 0 || !slices.Contains(good.posts()[len(good.posts())-1].names, "content_deleted") {
			t.Error("got no immediate delivery to the healthy subscription")
		}
		before = len(bad.posts())
		time.Sleep(time.Until(until) + time.Second)
		if len(bad.posts()) == before {
			t.Error("got no delivery after the suspension")
		}
	})
}

// A subscription whose record cannot be read is suspended, at start and at run
// time, and continues once it can be read. Others are not affected.
func TestUnusableSubscriptionBlocksOnlyItself(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		bad, good := w.subscriber(nil), w.subscriber(nil)
		sub := w.subscribe(bad, nil)
		w.subscribe(good, nil)
		w.kill()
		whole := w.swapSecret(sub.ID, make([]byte, 60))
		w.start()
		check := func(n int) {
			t.Helper()
			w.wantImmediate(good)
			bad.wantPosts(t, n, "to the unusable subscription")
		}
		check(0)
		time.Sleep(5 * time.Second)
		check(0)
		w.update(sub, &webhook.SubscriptionFields{Description: new("changed")}) // makes the dispatcher reload it
		check(0)
		time.Sleep(5 * time.Second)
		check(0)
		w.swapSecret(sub.ID, whole)
		time.Sleep(suspendTime + time.Second)
		check(2) // the backlog in one delivery, and this event
	})
}

// swapSecret replaces a subscription's encrypted secret and returns the old value.
func (w *testbed) swapSecret(id string, secret []byte) (was []byte) {
	w.t.Helper()
	w.sql(func(db *sql.DB) error {
		err := db.QueryRow("SELECT signing_secret FROM subscriptions WHERE id = ?", id).Scan(&was)
		if err == nil {
			_, err = db.Exec("UPDATE subscriptions SET signing_secret = ? WHERE id = ?", secret, id)
		}
		return err
	})
	return was
}

// alter runs statements on the database.
func (w *testbed) alter(statements ...string) {
	w.t.Helper()
	w.sql(func(db *sql.DB) error {
		for _, s := range statements {
			if _, err := db.Exec(s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}

// sql calls do with a connection to the database.
func (w *testbed) sql(do func(*sql.DB) error) {
	w.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "service.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if err := do(db); err != nil {
		w.t.Fatal(err)
	}
}

// A result that cannot be stored while the store works, here that of a delivery which does not
// exist, blocks only its own subscription.
func TestUnstorableResultBlocksOnlyItsQueue(t *testing.T) {
	runInBubble(t, Config{RetryPolicy: exactRetryPolicy(), Grace: time.Millisecond}, func(w *testbed) {
		bad, good := w.subscriber(nil), w.subscriber(nil)
		sub := w.subscribe(bad, nil)
		w.subscribe(good, nil)
		synctest.Wait()
		q := w.queue(sub)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.d.attempt(ctx, q, &store.Claim{ID: "d", SubscriptionID: sub.ID, ProgramID: sub.ProgramID, Number: 1, Revision: q.Revision}, nil)
		}()
		synctest.Wait()
		for range 5 {
			w.wantImmediate(good)
			time.Sleep(time.Second)
		}
		select {
		case <-ended:
			t.Error("the result of a missing delivery was stored, want attempt to keep trying")
		default:
		}
		cancel()
		<-ended
	})
}

// Deleting a subscription answers its waiting pings.
func TestPingOfDeletedSubscription(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		r := w.subscriber(hang)
		sub := w.subscribe(r, nil)
		errs := make(chan error, 8)
		for range 8 { // more than may be in flight
			go func() {
				_, _, err := w.d.store.Subscriptions().Ping(context.Background(), "p", sub.ID)
				errs <- err
			}()
		}
		synctest.Wait()
		start := time.Now()
		if _, err := storetest.DeleteSubscription(context.Background(), w.d.store, "p", sub.ID); err != nil {
			t.Fatal(err)
		}
		dropped := 0
		for range 8 {
			if err := <-errs; webhook.CodeOf(err) == webhook.CodeNotFound && time.Since(start) == 0 {
				dropped++
			}
		}
		if dropped != 8-(maxPingsPerQueue-1) {
			t.Errorf("got %d waiting pings answered immediately, want %d", dropped, 8-(maxPingsPerQueue-1))
		}
	})
}

// Once a new URL is acknowledged, no attempt is counted for the old one. An attempt counted
// earlier is sent to the new URL if its queue was reloaded in between.
func TestAttemptUsesLatestURL(t *testing.T) {
	runInBubble(t, Config{}, func(w *testbed) {
		ctx := context.Background()
		before, after := w.subscriber(nil), w.subscriber(nil)
		sub := w.subscribe(before, nil)
		w.publish("content_updated")
		first := before.posts()[0]
		q := w.queue(sub)
		w.d.mu.Lock()
		credit := store.Credit{Queue: q.Queue, Kind: store.CreditDue}
		w.d.pausedUntil = time.Now().Add(time.Hour) // prevents reloads and claims
		w.d.mu.Unlock()
		w.redeliver(sub, first.delivery)
		c, err := w.d.store.Queues().Spend(ctx, &credit).Wait()
		if err != nil || c == nil {
			t.Fatalf("got claim %+v (%v), want one", c, err)
		}
		w.update(sub, &webhook.SubscriptionFields{URL: &after.url})
		w.redeliver(sub, first.delivery)
		if stale, err := w.d.store.Queues().Spend(ctx, &credit).Wait(); stale != nil || !errors.Is(err, store.ErrStale) {
			t.Errorf("after the change: got claim %+v (%v), want %v", stale, err, store.ErrStale)
		}
		time.Sleep(2 * time.Hour)
		w.d.attempt(ctx, q, c, nil)
		if len(before.posts()) != 1 || len(after.posts()) != 2 {
			t.Errorf("got %d requests at the old URL and %d at the new, want 1 and 2", len(before.posts()), len(after.posts()))
		}
	})
}
