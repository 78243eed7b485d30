package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/test/harness"
	"service/webhook"
)

// Files of a data directory.
const (
	secretKeyFile   = "secret.key"
	alertSecretFile = "alert.secret"
)

// TestBackup backs up a service under load, deletes its data and restores it. Every
// event acknowledged before the backup must be there, tokens and secrets must work, and
// pending deliveries must be delivered. No secret may be in the archive.
func TestBackup(t *testing.T) {
	harness.Long(t)
	b := newBackup(t)
	base := b.in.URL()
	b.server.down.Store(true) // deliveries of events published now are pending during the backup
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	pending := webhook.NewID()
	if got := b.publish(t.Context(), base, pending, "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"); got != http.StatusCreated {
		t.Fatalf("publish: status %d", got)
	}
	want := append(b.create(base), pending)
	if out := b.command("backup", "verify", b.file); !strings.Contains(out, "they decrypt the secrets") {
		t.Errorf("verify: got %s", out)
	}
	b.checkSecrets()

	b.in.Kill(b.in.Last())
	if err := os.RemoveAll(b.in.Data); err != nil {
		t.Fatal(err)
	}
	b.command("restore", "--data", b.in.Data, "--from", b.file, "--restore-hold", "0")
	b.server.down.Store(false)
	b.in.MustStart()
	base = b.in.URL()
	verifier, err := standardwebhooks.NewWebhook(b.signingSecret)
	if err != nil {
		t.Fatal(err)
	}
	harness.WaitFor(t, "the pending event to arrive", func() bool { return b.server.arrived(pending) != nil })
	if sent := webhook.ParseTrace(b.server.arrived(pending).header["Traceparent"]); sent.ID() != trace {
		t.Errorf("trace of the delivery: got %q, want %s", sent, trace)
	}
	later := webhook.NewID()
	if got := b.publish(t.Context(), base, later); got != http.StatusCreated {
		t.Fatalf("publish with the old token: got status %d, want 201", got)
	}
	harness.WaitFor(t, "a new event to arrive", func() bool { return b.server.arrived(later) != nil })
	for _, id := range []string{pending, later} {
		d := b.server.arrived(id)
		if err := verifier.Verify(d.body, d.header); err != nil {
			t.Errorf("signature of a delivery after the restore: %v", err)
		}
		if got := d.header.Get("Authorization"); got != b.authorization {
			t.Error("a delivery after the restore has a different Authorization header")
		}
	}
	for _, id := range want {
		if status, err := b.in.Call(t.Context(), b.token, "GET", base+"/v2/events/"+id, nil, nil); err != nil || status != http.StatusOK {
			t.Fatalf("of %d events acknowledged before the backup, %s is missing: status %d, %v", len(want), id, status, err)
		}
	}
	b.in.MustStop(b.in.Last())
}

// backup is a service, a subscription with credentials, and the archive.
type backup struct {
	t                *testing.T
	in               *harness.Instance
	server           *backupServer
	passphrase, file string // paths

	token, authorization, signingSecret string
}

const passphrase = "correct horse battery"

func newBackup(t *testing.T) *backup {
	dir := t.TempDir()
	b := &backup{
		t: t, server: new(backupServer), passphrase: filepath.Join(dir, "passphrase"), file: filepath.Join(dir, "b.tar"),
		authorization: "Bearer " + harness.RandomHex(32),
	}
	if err := os.WriteFile(b.passphrase, []byte(passphrase+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url := harness.Listen(t, b.server)
	b.in = harness.NewInstance(t, harness.Build(t), filepath.Join(dir, "data"), "--retry-schedule", "1h,1h,1h,1h", "--attempt-timeout", "5m",
		"--alert-url", url+"/alerts")
	b.token = b.in.Token("acme")
	b.in.MustStart()
	var made struct {
		Data struct {
			SigningSecret string `json:"signing_secret"`
		}
	}
	status, err := b.in.Call(t.Context(), b.token, "POST", b.in.URL()+"/v2/webhooks/subscriptions", map[string]any{
		"url": url, "events": harness.Events("content_published"), "authorization_header": b.authorization,
	}, &made)
	if err != nil || status != http.StatusCreated {
		t.Fatalf("create a subscription: status %d, %v", status, err)
	}
	b.signingSecret = made.Data.SigningSecret
	harness.WaitFor(t, "the ping to arrive", func() bool { return b.server.arrived(`"name":"ping"`) != nil })
	return b
}

// command runs the binary with the passphrase and returns its output.
func (b *backup) command(args ...string) string {
	b.t.Helper()
	cmd := exec.CommandContext(b.t.Context(), b.in.Binary, args...)
	cmd.Env = append(harness.Environment(), "SERVICE_BACKUP_PASSPHRASE_FILE="+b.passphrase)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// publish publishes an event and returns the status, or 0 without a response.
func (b *backup) publish(ctx context.Context, base, id string, header ...string) int {
	body := fmt.Sprintf(`{"id":%q,"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`, id)
	req, err := http.NewRequestWithContext(ctx, "POST", base+"/v2/events", strings.NewReader(body))
	if err != nil {
		b.t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+b.token)
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := b.in.Client.Do(req)
	if err != nil {
		return 0
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// create creates the archive under load, and returns the events that were acknowledged before the
// creation.
func (b *backup) create(base string) (before []string) {
	b.t.Helper()
	var mu sync.Mutex
	var acknowledged []string
	begun := make(chan struct{})
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	var publishers sync.WaitGroup
	var during atomic.Int64
	for range 4 {
		publishers.Go(func() {
			for ctx.Err() == nil {
				id := webhook.NewID()
				if b.publish(ctx, base, id) != http.StatusCreated {
					continue
				}
				select {
				case <-begun:
					during.Add(1)
				default:
					mu.Lock()
					acknowledged = append(acknowledged, id)
					mu.Unlock()
				}
			}
		})
	}
	harness.WaitFor(b.t, "200 events to be acknowledged", func() bool { mu.Lock(); defer mu.Unlock(); return len(acknowledged) > 200 })
	mu.Lock()
	before = append(before, acknowledged...)
	mu.Unlock()
	close(begun)
	b.command("backup", "create", b.file, "--data", b.in.Data)
	cancel()
	publishers.Wait()
	if during.Load() == 0 {
		b.t.Error("no event was published during the backup")
	}
	b.t.Logf("%d events were acknowledged before the backup and %d during it", len(before), during.Load())
	return before
}

// checkSecrets checks that no secret is in the archive.
func (b *backup) checkSecrets() {
	b.t.Helper()
	text := harness.Read(b.t, b.file)
	read := func(name string) string {
		return strings.TrimSpace(string(harness.Read(b.t, filepath.Join(b.in.Data, name))))
	}
	for name, secret := range map[string]string{
		"the token": b.token, "the authorization header": b.authorization, "the signing secret": strings.TrimPrefix(b.signingSecret, "whsec_"),
		"the secret key": read(secretKeyFile), "alert.secret": strings.TrimPrefix(read(alertSecretFile), "whsec_"), "the passphrase": passphrase,
	} {
		c := harness.NewCanary(name, secret, secret[len(secret)-16:], nil)
		if where := c.Find(text); where != "" {
			b.t.Errorf("%s is in the archive (%s)", name, where)
		}
	}
}

// backupServer is the subscriber. While it is down it does not respond, so stopping the service
// interrupts the attempts, and the next start repeats them.
type backupServer struct {
	down atomic.Bool

	mu  sync.Mutex
	got []received
}

type received struct {
	header http.Header
	body   []byte
}

func (s *backupServer) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if s.down.Load() {
		<-r.Context().Done()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, received{r.Header, body})
}

// arrived returns the last delivery that contains a text such as an event ID, or nil.
func (s *backupServer) arrived(text string) *received {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.got) - 1; i >= 0; i-- {
		if bytes.Contains(s.got[i].body, []byte(text)) {
			return &s.got[i]
		}
	}
	return nil
}
