package failover

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/test/harness"
)

var takeovers = flag.Int("failover.takeovers", 3, "how often TestPulledTakeovers kills a primary")

// TestPulledTakeovers kills the primary again and again while events are published and pulled; each time
// the other node takes over. A puller skips no event of the log that survives, and with --acknowledge
// replica every event that a puller saw survives.
func TestPulledTakeovers(t *testing.T) {
	harness.Long(t)
	binary := harness.Build(t)
	for _, ack := range []string{"local", "replica"} {
		t.Run(ack, func(t *testing.T) {
			t.Parallel()
			f := newFailOver(t, binary, "--acknowledge", ack, "--log-level", "warn")
			f.lag.Store(int64(50 * time.Millisecond))
			f.pull()
			ctx, cancel := context.WithCancel(t.Context())
			l := &pulledLoad{f: f, sent: make(map[string]bool), acked: make(map[string]bool)}
			for range 3 {
				l.working.Go(func() { l.publish(ctx) })
			}
			defer l.working.Wait()
			defer cancel()
			primary, other, p, standby := f.one, f.two, f.primary, f.standby
			for n := range *takeovers {
				other.AwaitStandby(standby)
				if !f.pullers.AwaitSights(50+rand.IntN(300), p.Exited) {
					t.Fatalf("before takeover %d the primary ended with status %d:\n%s", n, p.Status, &p.Log)
				}
				f.pullers.Strike()
				primary.Kill(p)
				if !other.AwaitReady(standby) {
					t.Fatalf("takeover %d: the standby ended with status %d:\n%s", n, standby.Status, &standby.Log)
				}
				primary, other, p, standby = other, primary, standby, primary.Start()
			}
			f.pullers.AwaitSights(100, p.Exited)
			cancel()
			l.working.Wait()
			f.pullers.Finish()
			f.pullers.Check(fmt.Sprintf("%d takeovers with --acknowledge %s", *takeovers, ack), func(id string) bool { return l.sent[id] },
				ack == "local")
			l.checkAcknowledged(primary, ack == "replica")
		})
	}
}

// pull attaches pullers, which use whichever node serves.
func (f *failOver) pull() {
	f.t.Helper()
	f.pullers = harness.NewPullers(f.t, func(ctx context.Context, _, try int) (string, bool) { return f.serving(ctx, try) })
	f.pullers.Follow(
		harness.PulledLog{Name: "the program", Token: f.token},
		harness.FilteredLog(f.one, f.token, harness.Listen(f.t, http.NotFoundHandler()), "content_published"),
	)
}

// serving returns the URL of a node that serves, of either in turn if both may, and false when ctx has
// ended.
func (f *failOver) serving(ctx context.Context, try int) (string, bool) {
	for ; ; try++ {
		in := []*harness.Instance{f.one, f.two}[try%2]
		if base := in.Serving(); base != "" || ctx.Err() != nil {
			return base, ctx.Err() == nil
		}
		harness.Pause(ctx, 5*time.Millisecond)
	}
}

// pulledLoad publishes events to whichever node serves.
type pulledLoad struct {
	f       *failOver
	working sync.WaitGroup

	mu    sync.Mutex
	sent  map[string]bool
	acked map[string]bool
}

// publish publishes events until ctx ends, and none twice.
func (l *pulledLoad) publish(ctx context.Context) {
	for try := 0; ; try++ {
		base, ok := l.f.serving(ctx, try)
		if !ok {
			return
		}
		id := uuid.NewString()
		l.mu.Lock()
		number := len(l.sent)
		l.sent[id] = true
		l.mu.Unlock()
		event := map[string]any{"id": id, "name": "content_published", "version": "1", "content_id": number, "channel_ids": []int{1}}
		status, err := l.f.one.Call(context.WithoutCancel(ctx), l.f.token, "POST", base+"/v2/events", event, nil)
		if err == nil && status == http.StatusCreated {
			l.mu.Lock()
			l.acked[id] = true
			l.mu.Unlock()
		}
		harness.Pause(ctx, 20*time.Millisecond)
	}
}

// checkAcknowledged logs how many acknowledged events are lost: none, if complete is set.
func (l *pulledLoad) checkAcknowledged(in *harness.Instance, complete bool) {
	l.f.t.Helper()
	events, err := harness.Feed[struct{ ID string }](in, l.f.token, "/v2/events")
	if err != nil {
		l.f.t.Fatal(err)
	}
	acked := len(l.acked)
	for _, e := range events {
		delete(l.acked, e.ID)
	}
	l.f.t.Logf("%d events published, %d acknowledged, %d of these lost", len(l.sent), acked, len(l.acked))
	if complete && len(l.acked) > 0 {
		l.f.t.Errorf("%d acknowledged events are lost", len(l.acked))
	}
}
