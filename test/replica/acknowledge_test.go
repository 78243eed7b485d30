package replica

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/test/harness"
)

// bucketLatency is the time that these tests add to a request to the bucket.
const bucketLatency = 20 * time.Millisecond

// newAcknowledged returns a service with --acknowledge replica, not started, and a
// proxy in front of its bucket.
func newAcknowledged(t *testing.T, flags ...string) (*harness.Instance, *harness.Gateway, *harness.Proxy) {
	t.Helper()
	gateway := harness.NewGateway(t)
	proxy := harness.NewProxy(t, gateway.Address)
	proxy.SetDelay(bucketLatency / 2)
	t.Setenv("AWS_ACCESS_KEY_ID", harness.GatewayKey) // for restore
	t.Setenv("AWS_SECRET_ACCESS_KEY", harness.GatewaySecret)
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	text := "dbs:\n  - path: " + data + "/service.db\n    replica:\n      " + strings.Join(gateway.Replica(proxy.Address, "service"),
		"\n      ") + "\n"
	config, key := filepath.Join(t.TempDir(), "litestream.yml"), filepath.Join(t.TempDir(), "secret.key")
	for name, text := range map[string]string{config: text, key: strings.Repeat("0f", 32) + "\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags = append([]string{"--litestream", config, "--secret-key-file", key, "--acknowledge", "replica", "--log-level", "warn"}, flags...)
	return harness.NewInstance(t, harness.Build(t), data, flags...), gateway, proxy
}

// uploads returns the number of uploaded files of changes (level 0).
func uploads(p *harness.Proxy) (n int) {
	for _, r := range p.Requests() {
		if r.Method == http.MethodPut && strings.Contains(r.Path, "/0000/") {
			n++
		}
	}
	return n
}

// TestAcknowledge checks that a service with --acknowledge replica responds 2xx only
// once an event can be restored from the bucket. While the bucket is unreachable it
// responds 503; afterwards the same request succeeds.
func TestAcknowledge(t *testing.T) {
	harness.Long(t)
	in, gateway, proxy := newAcknowledged(t)
	token := in.Token("acme", "--secret-key-file", in.Flags[3])
	run, url := in.MustStart(), in.URL()+"/v2/events"
	event := func(id string) []byte {
		return fmt.Appendf(nil, `{"id":%q,"name":"content_updated","version":"1","content_id":7}`, id)
	}
	publish := func(id string) int {
		t.Helper()
		status, err := in.Call(t.Context(), token, "POST", url, event(id), nil)
		if err != nil {
			t.Fatal(err)
		}
		return status
	}
	id := uuid.NewString()
	harness.WaitFor(t, "the first upload", func() bool { return publish(id) == http.StatusCreated })
	restored := filepath.Join(t.TempDir(), "restored")
	if out, err := in.Command("restore", "--data", restored, "--from", gateway.URL("service"), "--secret-key-file", in.Flags[3]); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	found := false
	for row := range harness.Rows(t, restored) {
		found = found || strings.Contains(row, id)
	}
	if !found {
		t.Error("the restored data lacks an acknowledged event")
	}

	checkStream(t, in, proxy, token)

	in.MustStop(run)
	in.Flags = append(in.Flags, "--acknowledge-timeout", "1s") // only while the bucket is unavailable
	run = in.MustStart()
	url = in.URL() + "/v2/events"
	harness.WaitFor(t, "an upload after the start", func() bool { return publish(uuid.NewString()) == http.StatusCreated })
	proxy.SetMode(harness.ProxyCut)
	id = uuid.NewString()
	for range 2 {
		if status := publish(id); status != http.StatusServiceUnavailable {
			t.Errorf("without the bucket: got status %d, want 503", status)
		}
	}
	if out, err := in.Command("token", "create", "--data", in.Data, "--program", "acme", "--user", "u", "--scope",
		"events.read"); err == nil || !strings.Contains(out, "stored on this host") {
		t.Errorf("token create without the bucket: got %v, want an error\n%s", err, out)
	}
	proxy.SetMode(harness.ProxyForward)
	harness.WaitFor(t, "the bucket to be used again", func() bool { return publish(id) == http.StatusCreated })
	in.MustStop(run)

	if out, err := in.Command(append(in.Args("serve"), "--litestream", "off")...); err == nil ||
		!strings.Contains(out, "--acknowledge: replica needs a replica: set --litestream") {
		t.Errorf("--acknowledge replica without a replica: got %v, want an error\n%s", err, out)
	}
}

// checkStream publishes the lines of a stream while the bucket hangs: the lines share uploads once
// it responds.
func checkStream(t *testing.T, in *harness.Instance, proxy *harness.Proxy, token string) {
	t.Helper()
	const lines = 200
	events := func() int {
		all, err := harness.Feed[struct{ ID string }](in, token, "/v2/events")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	stored, before := events(), uploads(proxy)
	var body harness.NDJSON
	for range lines {
		body = fmt.Appendf(body, `{"id":%q,"name":"content_updated","version":"1","content_id":7}`+"\n", uuid.NewString())
	}
	var answer struct{ Data struct{ Accepted int } }
	responded := make(chan error, 1)
	proxy.SetMode(harness.ProxyHang)
	go func() {
		status, err := in.Call(t.Context(), token, "POST", in.URL()+"/v2/events", body, &answer)
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("status %d", status)
		}
		responded <- err
	}()
	harness.WaitForCount(t, "the lines to be stored", stored+lines, events)
	select {
	case err := <-responded:
		t.Errorf("stream: got a response before an upload: %v", err)
	default:
	}
	proxy.SetMode(harness.ProxyForward)
	if err := harness.Receive(t, "the response to the stream", responded); err != nil {
		t.Fatalf("stream: %v", err)
	}
	if n := uploads(proxy) - before; n > lines/4 {
		t.Errorf("%d lines of a stream: got %d uploads, want at most %d", lines, n, lines/4)
	}
}

var acknowledgeKills = flag.Int("acknowledge.kills", 3, "how often TestAcknowledgeKilled kills the service and deletes its data")

// TestAcknowledgeKilled kills the service under load, deletes its data and restores it
// from the bucket: every acknowledged event must be there.
func TestAcknowledgeKilled(t *testing.T) {
	harness.Long(t)
	in, gateway, _ := newAcknowledged(t)
	key := in.Flags[3]
	token := in.Token("acme", "--secret-key-file", key)
	subscribed := false
	receiver := harness.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	l := &ledger{sent: make(map[string]bool), acks: make(map[string]time.Time)}
	for n := range *acknowledgeKills {
		run := in.MustStart()
		if !subscribed {
			in.Subscribe(token, harness.Subscription{URL: receiver, Events: harness.Events("content_updated")})
			subscribed = true
		}
		before := len(l.acknowledged())
		ctx, cancel := context.WithCancel(t.Context())
		wait := l.load(ctx, in, token, 16)
		after := before + 50 + rand.IntN(500)
		harness.WaitFor(t, "some acknowledgements", func() bool { return len(l.acknowledged()) > after })
		killed := time.Now()
		in.Kill(run)
		cancel()
		wait()

		if err := os.RemoveAll(in.Data); err != nil {
			t.Fatal(err)
		}
		if out, err := in.Command("restore", "--data", in.Data, "--from", gateway.URL("service"), "--secret-key-file", key); err != nil {
			t.Fatalf("round %d: restore: %v\n%s", n, err, out)
		}
		behind, lost, kept := l.compare(t, copyDatabase(t, in.Data), killed)
		t.Logf("round %d: %d acknowledged events kept, %d lost", n, kept, lost)
		if lost > 0 {
			t.Fatalf("round %d: %d of %d acknowledged events are lost, the oldest acknowledged %s before the kill", n, lost, lost+kept, behind)
		}
	}
}
