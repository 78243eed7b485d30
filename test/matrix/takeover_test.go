//go:build linux

package matrix

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"service/test/harness"
)

var largeFlag = flag.Int64("matrix.large", 2048, "the size of the database of TestLargeTakeover in MiB")

// largeEvent is the size of the events that fill a database.
const largeEvent = 200 << 10

// TestLargeTakeover kills a primary with a large database, and measures the time until
// the standby has accepted an event.
func TestLargeTakeover(t *testing.T) {
	harness.Long(t)
	if !*full {
		t.Skip("takes minutes; run with -matrix.full")
	}
	c := newCell(t, harness.NewGateway(t), &fault{name: "large", deposes: true, large: true}, "", "large")
	c.result = &result{name: "kill -9, a large database"}
	c.fill(*largeFlag << 20)
	c.warmUp()
	c.awaitFollowed()
	c.struck = time.Now()
	c.one.in.Kill(c.one.process)
	c.awaitTakeover(c.struck)
	c.stopLoad()
	info, err := os.Stat(filepath.Join(c.two.in.Data, "service.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB: the standby accepted its first event %s after the kill", info.Size()>>20, c.result.takeover.Round(time.Millisecond))
	if status := c.two.in.Stop(c.two.process); status != harness.ExitOK {
		t.Errorf("standby: got exit status %d, want 0:\n%s", status, &c.two.process.Log)
	}
}

// fill publishes large events without a subscriber until the database has a size.
func (c *cell) fill(size int64) {
	c.t.Helper()
	text := make([]byte, largeEvent/2)
	rand.Read(text)
	for {
		info, err := os.Stat(filepath.Join(c.one.in.Data, "service.db"))
		if err == nil && info.Size() >= size {
			return
		}
		var events []json.RawMessage
		for range 20 {
			rand.Read(text[:1024])
			event, err := json.Marshal(map[string]any{
				"name": "user_notification_created", "version": "1", "notification_id": 1, "user_id": 2, "category": "service",
				"acknowledged": false, "label": "large", "text": hex.EncodeToString(text),
			})
			if err != nil {
				c.t.Fatal(err)
			}
			events = append(events, event)
		}
		status, err := c.one.in.Call(c.ctx, c.token, "POST", c.one.in.URL()+"/v2/events", map[string]any{"events": events}, nil)
		if err == nil && status == http.StatusServiceUnavailable { // the write-ahead log is too long for a moment
			<-time.After(100 * time.Millisecond)
			continue
		}
		if err != nil || status != http.StatusCreated {
			c.t.Fatalf("publish: status %d, %v", status, err)
		}
	}
}

// awaitFollowed waits until the copy of the standby is as large as the database.
func (c *cell) awaitFollowed() {
	c.t.Helper()
	deadline := time.Now().Add(10 * harness.Timeout())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for ; ; <-tick.C {
		one, err := os.Stat(filepath.Join(c.one.in.Data, "service.db"))
		two, err2 := os.Stat(filepath.Join(c.two.in.Data, "standby", "service.db"))
		if err == nil && err2 == nil && two.Size() >= one.Size() {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal("timed out waiting for the standby to have the whole database")
		}
	}
}
