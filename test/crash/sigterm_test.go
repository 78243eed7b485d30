package crash

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
	"service/webhook"
)

var sigtermInFlight = flag.Int("sigterm.in-flight", 200, "how many attempts are in flight when TestSIGTERM sends SIGTERM; a multiple of "+
	"10, up to 400")

// TestSIGTERM stops the service as an operator does, with many attempts in flight.
// Half of the receivers respond during the shutdown: their attempts are recorded and
// not repeated. The others never respond: the next process repeats each attempt once.
func TestSIGTERM(t *testing.T) {
	harness.Long(t)
	const grace = 10 * time.Second // enough to record the responses, even on a slow machine
	s := &lateServers{arrived: make(chan struct{}, *sigtermInFlight), answer: make(chan struct{}), times: make(map[string]int)}
	base := harness.Listen(t, s)
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--batch-size", "1", "--max-in-flight", "5", "--retry-schedule", "1h,1h,1h,1h",
		"--attempt-timeout", "5m", "--max-subscriptions", "0", "--grace", grace.String(), "--log-level", "warn")
	t.Cleanup(s.release) // before the receiver closes, which waits for it
	token := in.Token("acme")
	run := in.MustStart()
	subscriptions := make(map[string]string) // ID → kind
	for n := range *sigtermInFlight / 5 {
		kind := []string{"answering", "silent"}[n%2]
		subscriptions[in.Subscribe(token, harness.Subscription{URL: fmt.Sprintf("%s/%s/%d", base, kind, n),
			Events: harness.Events("content_updated")})] = kind
	}
	for n := range 5 {
		in.Publish(token, map[string]any{"name": "content_updated", "version": "1", "content_id": n})
	}
	s.await(t, *sigtermInFlight)

	took := s.shutDown(in, run)
	if run.Status != harness.ExitOK {
		t.Errorf("exit status: got %d, want %d\n%s", run.Status, harness.ExitOK, &run.Log)
	}
	if took < grace || took > 2*grace+harness.Scale(time.Second) {
		t.Errorf("shutdown: got %s, want about the grace period of %s", took, grace)
	}
	in.MustStart()
	s.await(t, *sigtermInFlight/2)

	again := 0
	for id, kind := range subscriptions {
		again += s.check(in, token, "/v2/webhooks/subscriptions/"+id+"/deliveries", kind)
	}
	if want := *sigtermInFlight / 2; again != want {
		t.Errorf("got %d deliveries a second time, want the %d interrupted ones", again, want)
	}
	t.Logf("%d attempts in flight at SIGTERM: shutdown took %s; %d recorded, %d repeated",
		*sigtermInFlight, took.Round(time.Millisecond), *sigtermInFlight-again, again)
	in.MustStop(in.Last())
}

// lateServers are receivers that respond late, /answering, or never, /silent. They
// respond at once to a delivery that arrives a second time.
type lateServers struct {
	arrived chan struct{}
	answer  chan struct{} // closed when /answering may respond
	once    sync.Once

	mu    sync.Mutex
	times map[string]int // arrivals, by delivery ID
}

func (s *lateServers) release() { s.once.Do(func() { close(s.answer) }) }

func (s *lateServers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || harness.IsPing(body) {
		return
	}
	id := r.Header.Get("X-Service-Delivery")
	s.mu.Lock()
	s.times[id]++
	first := s.times[id] == 1
	s.mu.Unlock()
	s.arrived <- struct{}{}
	switch {
	case !first:
	case strings.HasPrefix(r.URL.Path, "/silent"):
		<-r.Context().Done()
	default:
		<-s.answer
	}
}

// await waits until n more attempts have arrived.
func (s *lateServers) await(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		harness.Receive(t, fmt.Sprintf("attempt %d of %d", i+1, n), s.arrived)
	}
}

// shutDown sends SIGTERM, lets /answering respond once the shutdown has started, and
// returns how long the process took to exit.
func (s *lateServers) shutDown(in *harness.Instance, run *harness.Process) time.Duration {
	in.TB.Helper()
	api := in.URL()
	began := time.Now()
	in.SetURL("")
	if err := run.Signal(syscall.SIGTERM); err != nil {
		in.TB.Fatal(err)
	}
	// The shutdown has started when the listener is closed.
	harness.WaitFor(in.TB, "the listener to close", func() bool {
		resp, err := in.Client.Get(api + "/healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err != nil
	})
	s.release()
	run.Wait(in.TB)
	return time.Since(began)
}

// check checks the deliveries to one kind of receiver, and returns how many arrived
// a second time.
func (s *lateServers) check(in *harness.Instance, token, path, kind string) (again int) {
	t := in.TB
	t.Helper()
	deliveries := in.AwaitFinal(token, path)
	if len(deliveries) != 5+1 {
		t.Errorf("got %d deliveries, want 5 and a ping", len(deliveries))
	}
	for _, d := range deliveries {
		if d.Events[0].Name == webhook.EventPing {
			continue
		}
		one, _, err := harness.Get[harness.Delivery](in, token, path+"/"+d.ID)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range one.Attempts {
			got = append(got, fmt.Sprintf("%s %d %s", a.Result, a.ResponseStatus, a.Error.Code))
		}
		want := "success 200 "
		if kind == "silent" {
			want = "retryable 0 interrupted, success 200 "
		}
		s.mu.Lock()
		times := s.times[d.ID]
		s.mu.Unlock()
		again += times - 1
		if strings.Join(got, ", ") != want || times != len(one.Attempts) {
			t.Errorf("a delivery to a receiver that is %s: got %d arrivals and the attempts %q, want %q", kind, times, got, want)
		}
	}
	return again
}
