//go:build linux

package matrix

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"service/test/harness"
)

// bucketLatency is between a request to the bucket and its response.
const bucketLatency = 20 * time.Millisecond

// TestWipedDisk publishes to a service, kills it and deletes its data, again and
// again. It starts again from the replica. With --acknowledge replica no
// acknowledged event is ever lost.
func TestWipedDisk(t *testing.T) {
	harness.Long(t)
	g := harness.NewGateway(t)
	for _, ack := range modes(t) {
		t.Run("acknowledge "+ack, func(t *testing.T) {
			t.Parallel()
			w := newWiped(t, g, ack)
			for range *kills {
				w.cycle()
			}
			w.check()
		})
	}
}

// wiped is a service whose disk is lost again and again.
type wiped struct {
	t       *testing.T
	ack     string
	machine *machine
	key     string // the file of the key, which is not on the disk
	token   string
	load    load
	killed  []time.Time
}

func newWiped(t *testing.T, g *harness.Gateway, ack string) *wiped {
	c := &cell{t: t, fault: &fault{}, binary: harness.Build(t), gateway: g, path: "wiped-" + ack}
	w := &wiped{t: t, ack: ack, machine: c.machine("only"), key: filepath.Join(t.TempDir(), "secret.key"), load: load{sent: make(map[string]bool), refused: make(map[string]int)}}
	in := w.machine.in
	w.machine.proxy.SetDelay(bucketLatency / 2) // in each direction
	w.token = in.Token("p")
	if err := os.Rename(filepath.Join(in.Data, "secret.key"), w.key); err != nil {
		t.Fatal(err)
	}
	in.Flags = append(in.Flags, "--secret-key-file", w.key)
	if ack != "" {
		in.Flags = append(in.Flags, "--acknowledge", ack)
	}
	w.run(func() { w.awaitUploaded() })
	return w
}

// run starts the service, does something while publishers work, and kills it.
func (w *wiped) run(do func()) {
	w.t.Helper()
	in := w.machine.in
	p := in.MustStart()
	ctx, cancel := context.WithCancel(context.Background())
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() { w.load.publish(ctx, w.machine, w.token) })
	}
	do()
	w.killed = append(w.killed, time.Now())
	in.Kill(p)
	cancel()
	working.Wait()
}

// awaitUploaded waits until the token is in the replica.
func (w *wiped) awaitUploaded() {
	w.t.Helper()
	began := time.Now()
	harness.WaitFor(w.t, "the first upload", func() bool { return time.Since(began) > 2*harness.Scale(uploadBound) })
}

// cycle deletes the data, and runs the service until it has accepted events.
func (w *wiped) cycle() {
	w.t.Helper()
	if err := os.RemoveAll(w.machine.in.Data); err != nil {
		w.t.Fatal(err)
	}
	began := time.Now()
	w.run(func() {
		harness.WaitFor(w.t, "acknowledgements after a second", func() bool {
			_, ok := w.load.after(w.machine.name, began.Add(time.Second))
			return ok
		})
	})
}

// check starts the service for the last time, and checks what it lacks.
func (w *wiped) check() {
	t := w.t
	t.Helper()
	in := w.machine.in
	if err := os.RemoveAll(in.Data); err != nil {
		t.Fatal(err)
	}
	p := in.MustStart()
	events, err := harness.Feed[struct{ ID string }](in, w.token, "/v2/events")
	if err != nil {
		t.Fatal(err)
	}
	there := make(map[string]bool)
	for _, e := range events {
		there[e.ID] = true
	}
	lost, next := 0, 0
	var oldest time.Duration
	for _, a := range w.load.all() {
		for w.killed[next].Before(a.at) && next < len(w.killed)-1 {
			next++
		}
		if !there[a.id] {
			lost++
			oldest = max(oldest, w.killed[next].Sub(a.at))
		}
	}
	t.Logf("%d kills: %d events acknowledged, %d lost, the first of them %s before a kill", len(w.killed), len(w.load.all()), lost, oldest.Round(time.Millisecond))
	if w.ack == "replica" && lost > 0 {
		t.Errorf("%d acknowledged events are lost", lost)
	}
	if oldest > harness.Scale(uploadBound) {
		t.Errorf("an event is lost that was acknowledged %s before the kill, want at most %s", oldest, harness.Scale(uploadBound))
	}
	in.MustStop(p)
	for _, fault := range harness.DatabaseFaults(t, in.Data) {
		t.Error(fault)
	}
}
