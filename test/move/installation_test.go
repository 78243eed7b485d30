package move

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/test/harness"
)

const (
	program  = "acme"
	ownEvent = "order.shipped" // event type that only the source has before the move
)

// installation is a running service.
type installation struct {
	*harness.Instance
	t         *testing.T
	key       string // file of its secret key
	tokenFile string // with a platform token
	gateway   *harness.Gateway
	bucket    *harness.Proxy // in front of the gateway; nil without a replica
}

// start starts an installation without a replica.
func start(t *testing.T, flags ...string) *installation {
	t.Helper()
	in := &installation{t: t, key: filepath.Join(t.TempDir(), "secret.key")}
	writeFile(t, in.key, strings.Repeat("0f", 32)+"\n")
	in.Instance = harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"), append([]string{
		"--secret-key-file", in.key, "--log-level", "warn", "--retry-schedule", "1s,1s,1s,1s", "--grace", "1s",
	}, flags...)...)
	in.begin()
	return in
}

// startReplicated starts an installation with a replica, without --acknowledge. Before the long
// interval ends, it uploads only what a caller awaits.
func startReplicated(t *testing.T, gateway *harness.Gateway) *installation {
	t.Helper()
	in := &installation{t: t, key: filepath.Join(t.TempDir(), "secret.key"), gateway: gateway, bucket: harness.NewProxy(t, gateway.Address)}
	writeFile(t, in.key, strings.Repeat("0f", 32)+"\n")
	data, config := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "litestream.yml")
	writeFile(t, config, "dbs:\n  - path: "+data+"/service.db\n    replica:\n      "+
		strings.Join(append(gateway.Replica(in.bucket.Address, "service"), "sync-interval: 60s"), "\n      ")+"\n")
	in.Instance = harness.NewInstance(t, harness.Build(t), data, "--secret-key-file", in.key, "--litestream", config, "--log-level", "warn",
		"--retry-schedule", "1s,1s,1s,1s", "--grace", "1s")
	in.begin()
	return in
}

func (in *installation) begin() {
	in.t.Helper()
	if err := os.MkdirAll(in.Data, 0o700); err != nil {
		in.t.Fatal(err)
	}
	if p := in.Start(); !in.AwaitServing(p) { // not ready with a full disk
		in.t.Fatalf("the service did not start: exit status %d\n%s", p.Status, &p.Log)
	}
	in.newToken()
}

// newToken creates a platform token.
func (in *installation) newToken() {
	in.t.Helper()
	out, err := exec.Command(in.Binary, "token", "create", "--data", in.Data, "--secret-key-file", in.key, "--scope", "platform", "--user",
		"operator").Output()
	if err != nil {
		in.t.Fatal(err)
	}
	in.tokenFile = filepath.Join(in.t.TempDir(), "token")
	writeFile(in.t, in.tokenFile, string(out))
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// status returns the status of the program, "" if the installation does not have it.
func (in *installation) status() string {
	in.t.Helper()
	out, err := in.Command("program", "list", "--data", in.Data, "--json")
	var programs []struct{ ID, Status string }
	if err == nil {
		err = json.Unmarshal([]byte(out), &programs)
	}
	if err != nil {
		in.t.Fatalf("program list: %v\n%s", err, out)
	}
	for _, p := range programs {
		if p.ID == program {
			return p.Status
		}
	}
	return ""
}

// moving is a command that moves the program.
type moving struct {
	t     *testing.T
	cmd   *exec.Cmd
	err   error // of cmd, once ended is closed
	ended chan struct{}

	mu   sync.Mutex
	text strings.Builder // the output so far
}

func (m *moving) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.Write(b)
}

func (m *moving) output() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

// await waits until the command has printed a text.
func (m *moving) await(text string) {
	m.t.Helper()
	harness.WaitFor(m.t, "the output of the move: "+text, func() bool {
		select {
		case <-m.ended:
			m.t.Fatalf("the move ended without %q: %v\n%s", text, m.err, m.output())
		default:
		}
		return strings.Contains(m.output(), text)
	})
}

// interrupt sends SIGINT and waits for the end.
func (m *moving) interrupt() (output string, err error) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(os.Interrupt); err != nil {
		m.t.Error(err)
	}
	return m.wait()
}

// wait waits for the end.
func (m *moving) wait() (output string, err error) {
	m.t.Helper()
	harness.Receive(m.t, "the end of the move", m.ended)
	return m.output(), m.err
}

// startMove starts the command that moves the program.
func (in *installation) startMove(to, tokenFile string, flags ...string) *moving {
	in.t.Helper()
	m := &moving{t: in.t, ended: make(chan struct{}), cmd: exec.CommandContext(in.t.Context(), in.Binary, append([]string{
		"program", "move", program, "--data", in.Data, "--to", to, "--token-file", tokenFile}, flags...)...)}
	m.cmd.Env, m.cmd.Stdout, m.cmd.Stderr = harness.Environment(), m, m
	if err := m.cmd.Start(); err != nil {
		in.t.Fatal(err)
	}
	go func() {
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	return m
}

// moveFrom moves the program.
func (in *installation) moveFrom(to, tokenFile string, flags ...string) (output string, err error) {
	in.t.Helper()
	return in.startMove(to, tokenFile, flags...).wait()
}

// received counts a receiver's requests, except pings.
type received struct {
	url string
	n   atomic.Int64
}

func newReceiver(t *testing.T) *received {
	r := &received{}
	r.url = harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		if body, err := harness.ReadBody(req); err == nil && !harness.IsPing(body) {
			r.n.Add(1)
		}
	}))
	return r
}

// fill creates the program with a subscription and publishes an event, which must arrive.
func (in *installation) fill() (token string, r *received) {
	in.t.Helper()
	token, r = in.Token(program, "--secret-key-file", in.key), newReceiver(in.t)
	in.CreateEventType(strings.TrimSpace(string(harness.Read(in.t, in.tokenFile))), ownEvent)
	in.Subscribe(token, harness.Subscription{URL: r.url, Events: harness.Events(ownEvent)})
	in.checkSends(token, r)
	return token, r
}

// checkSends publishes an event, which must arrive.
func (in *installation) checkSends(token string, r *received) {
	in.t.Helper()
	before := r.n.Load()
	in.Publish(token, map[string]any{"name": ownEvent, "version": "1", "content_id": 7})
	harness.WaitFor(in.t, "the event", func() bool { return r.n.Load() > before })
}

// between passes requests on to the target.
type between struct {
	*httptest.Server
	// before and after are called with the last part of the path; may be nil.
	before, after atomic.Pointer[func(step string)]
	// refuses reports whether to respond 503 instead; may be nil.
	refuses atomic.Pointer[func(step string) bool]
	// changes may change the request; may be nil.
	changes atomic.Pointer[func(step string, r *http.Request)]
}

func newBetween(t *testing.T, target string, secure bool) *between {
	t.Helper()
	b := &between{}
	base, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(base)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		step := r.Method + " " + r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if f := b.before.Load(); f != nil {
			(*f)(step)
		}
		if f := b.refuses.Load(); f != nil && (*f)(step) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if f := b.changes.Load(); f != nil {
			(*f)(step, r)
		}
		recorded := httptest.NewRecorder()
		proxy.ServeHTTP(recorded, r)
		if f := b.after.Load(); f != nil {
			(*f)(step)
		}
		for name, values := range recorded.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(recorded.Code)
		_, _ = w.Write(recorded.Body.Bytes())
	})
	if secure {
		b.Server = httptest.NewTLSServer(handler)
	} else {
		b.Server = httptest.NewServer(handler)
	}
	t.Cleanup(b.Close)
	return b
}

// caFile returns a file with the certificate of a TLS server.
func caFile(t *testing.T, s *httptest.Server) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ca.pem")
	writeFile(t, name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	return name
}

// otherCA returns a file with a certificate that no server uses.
func otherCA(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "other.pem")
	writeFile(t, name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return name
}

// replica is a copy of a bucket's content, at a URL.
type replica string

// copyBucket copies the current content of the bucket.
func (in *installation) copyBucket() replica {
	in.t.Helper()
	bucket, name := filepath.Join(in.gateway.Dir, "bucket"), harness.RandomHex(8)
	if err := os.CopyFS(filepath.Join(bucket, name), os.DirFS(filepath.Join(bucket, "service"))); err != nil {
		in.t.Error(err)
	}
	return replica(in.gateway.URL(name))
}

// query restores a replica and returns the first column of a query.
func (in *installation) query(r replica, query string, args ...any) string {
	in.t.Helper()
	data := filepath.Join(in.t.TempDir(), "restored")
	out, err := in.Command("restore", "--data", data, "--from", string(r), "--secret-key-file", in.key)
	if err != nil {
		in.t.Fatalf("restore: %v\n%s", err, out)
	}
	var text string
	if err := harness.OpenDatabase(in.t, data).QueryRow(query, args...).Scan(&text); err != nil {
		in.t.Fatal(err)
	}
	return text
}

// logs stops the installation and returns its log.
func (in *installation) logs() string {
	in.t.Helper()
	p := in.Last()
	in.MustStop(p)
	return string(bytes.Clone(p.Log.Bytes()))
}
