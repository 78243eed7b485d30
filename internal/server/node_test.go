package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"service/internal/certs"
	"service/store/replica"
	"service/test/harness"
)

// A node has ten seconds to close everything once it has lost its lease, whatever its state, and no
// limit before that.
func TestLimitTeardown(t *testing.T) {
	closed := errors.New("closed")
	for name, test := range map[string]struct {
		loses, takes time.Duration // 0 for never
		want         error
	}{
		"ends without a loss":     {0, time.Hour, closed},
		"ends in time":            {time.Minute, time.Minute + teardownLimit - time.Second, closed},
		"ends late":               {time.Minute, time.Minute + teardownLimit + time.Second, errTeardown},
		"ends just before a loss": {time.Minute, time.Minute - time.Second, closed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lost := make(chan struct{})
				if test.loses > 0 {
					time.AfterFunc(test.loses, func() { close(lost) })
				}
				err := limitTeardown(lost, func() error {
					time.Sleep(test.takes)
					return closed
				})
				if !errors.Is(err, test.want) {
					t.Errorf("got %v, want %v", err, test.want)
				}
				time.Sleep(time.Hour) // until abandoned work has ended
			})
		})
	}
}

// nodeBucket is a bucket for nodes, on a real S3 server.
type nodeBucket struct {
	*httptest.Server
	armed    atomic.Bool // the next write of the lease begins to hold
	held     chan struct{}
	released chan struct{}
}

func newNodeBucket(t *testing.T) *nodeBucket {
	t.Helper()
	t.Setenv("AWS_CA_BUNDLE", "") // the S3 client fails if it is set
	backend := s3mem.New()
	if err := backend.CreateBucket("b"); err != nil {
		t.Fatal(err)
	}
	s3 := gofakes3.New(backend).Server()
	b := &nodeBucket{held: make(chan struct{}), released: make(chan struct{})}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease := strings.HasSuffix(r.URL.Path, "/lock.json")
		if !lease {
			select {
			case <-b.held:
				select {
				case <-b.released:
				case <-r.Context().Done():
				}
			default:
			}
		}
		s3.ServeHTTP(w, r)
		if lease && r.Method == http.MethodPut && b.armed.Swap(false) {
			close(b.held)
		}
	}))
	t.Cleanup(b.Close)
	return b
}

// replica returns the configuration of a replica in the bucket for the data directory dir.
func (b *nodeBucket) replica(t *testing.T, dir string) *replica.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "litestream.yml")
	text := fmt.Sprintf(`dbs:
  - path: %s
    monitor-interval: 20ms
    replica:
      type: s3
      bucket: b
      path: copy
      endpoint: %s
      access-key-id: id
      secret-access-key: secret
      sync-interval: 20ms
`, filepath.Join(dir, "service.db"), b.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := replica.ReadConfig(path, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// followAsNode runs a standby that follows and listens, and never takes over.
func followAsNode(t *testing.T, cfg *Config) *Standby {
	t.Helper()
	b, err := openStandby(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- Serve(ctx, newHTTPServer(b.handler, cfg.RequestTimeout), b.public, 0) }()
	go func() { ended <- b.data.Follow(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
		b.close()
	})
	return b
}

// A node that lacks event types of the primary cannot take over, because it would refuse events
// that the primary accepts. A different local CA is only a warning.
func TestStandbyFiles(t *testing.T) {
	bucket := newNodeBucket(t)
	cfg := testConfig(t)
	cfg.Replica = bucket.replica(t, cfg.Dir)
	write := func(dir, name, content string) {
		t.Helper()
		path := filepath.Join(dir, eventTypesFolder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	schema := docsExample(t, "json")
	other := strings.ReplaceAll(schema, "order_shipped", "order_deleted")
	write(cfg.Dir, "order_shipped.json", schema)
	write(cfg.Dir, "order_deleted.json", other)
	startService(t, cfg)
	two := testConfig(t)
	two.Replica, two.Lease = bucket.replica(t, two.Dir), MinLease
	copyFiles(t, two.Dir, cfg.Dir, "secret.key")
	write(two.Dir, "order_own.json", strings.ReplaceAll(schema, "order_shipped", "order_own")) // files of this node alone are no difference
	b := followAsNode(t, two)
	harness.WaitFor(t, "a copy", b.data.HasCopy)
	for _, step := range []struct {
		change       func()
		reason, warn string
	}{
		{func() {}, "copy event_types/order_deleted.json and 1 more file from the primary", "copy ca.pem and ca.key from the primary"},
		{func() { write(two.Dir, "order_shipped.json", schema) }, "copy event_types/order_deleted.json from the primary", "ca.pem"},
		{func() { write(two.Dir, "order_deleted.json", other+"\n") }, "copy event_types/order_deleted.json", "ca.pem"},
		{func() { write(two.Dir, "order_deleted.json", "{") }, "order_deleted.json", ""},
		{func() { write(two.Dir, "order_deleted.json", other) }, "", "ca.pem"},
		{func() { copyFiles(t, two.Dir, cfg.Dir, certs.CAFile) }, "", ""},
	} {
		step.change()
		if err := b.prove(t.Context()); err != nil {
			t.Fatal(err)
		}
		y := b.status()
		if reason := b.adminReason(y); y.CanTakeOver != (step.reason == "") || !strings.Contains(reason, step.reason) {
			t.Errorf("got %q, want %q", reason, step.reason)
		}
		if strings.Contains(y.Reason, ".json") {
			t.Errorf("everybody sees %q, want no file", y.Reason)
		}
		if (y.Warning == "") != (step.warn == "") || !strings.Contains(y.Warning, step.warn) {
			t.Errorf("got the warning %q, want %q", y.Warning, step.warn)
		}
	}
}

// A standby serves the certificate that the primary has obtained, from its copy, and never requests
// one from an issuer. Until the copy contains the certificate, and once it has expired, the local
// CA's certificate is used.
func TestStandbyCertificate(t *testing.T) {
	p := newIssuer(t, 0, "")
	p.validate(0, 0)
	bucket := newNodeBucket(t)
	primary := serveDomains(t, p, t.TempDir(), []string{"hooks.test"}, func(cfg *Config) {
		cfg.Replica = bucket.replica(t, cfg.Dir)
	})
	primary.await("a certificate", hasCertificate)

	cfg := testConfig(t)
	cfg.Replica, cfg.Lease = bucket.replica(t, cfg.Dir), MinLease
	cfg.Domains, cfg.ACMECA = []string{"hooks.test"}, p.url // without its roots: any request to it fails
	b := followAsNode(t, cfg)
	dial := func(name string) tls.ConnectionState {
		t.Helper()
		state, err := handshake(b.public, name)
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	if leaf := dial("hooks.test").PeerCertificates[0]; !strings.Contains(leaf.Issuer.CommonName, "local CA") {
		t.Errorf("without the key: got a certificate of %s, want one of the local CA", leaf.Issuer)
	}
	copyFiles(t, cfg.Dir, primary.cfg.Dir, "secret.key")
	want, err := primary.handshake("hooks.test")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hooks.test", ""} { // a health check by address names no host
		harness.WaitFor(t, "the primary's certificate", func() bool {
			return dial(name).PeerCertificates[0].Equal(want.PeerCertificates[0])
		})
	}
	if got := dial(certs.LocalName).PeerCertificates[0]; got.Equal(want.PeerCertificates[0]) {
		t.Errorf("for %s: got the domain's certificate, want that of the local CA", certs.LocalName)
	}
}

// runningNode is a node in this process.
type runningNode struct {
	t                   *testing.T
	cfg                 *Config
	bucket              *nodeBucket
	log                 *lockedBuffer
	standbys, primaries atomic.Int64 // how often the node took the role
	stop                context.CancelFunc
	ended               chan error
}

// runNode runs a node with an empty data directory.
func runNode(t *testing.T, bucket *nodeBucket) *runningNode {
	t.Helper()
	n := &runningNode{t: t, cfg: testConfig(t), bucket: bucket, log: new(lockedBuffer), ended: make(chan error, 1)}
	n.cfg.Replica, n.cfg.Lease, n.cfg.TLS = bucket.replica(t, n.cfg.Dir), MinLease, false
	n.cfg.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		n.ended <- Run(ctx, n.cfg, Roles{
			Standby: func(*Standby) { n.standbys.Add(1) },
			Primary: func(context.Context, *Server) error { n.primaries.Add(1); return nil },
		})
	}()
	return n
}

// lease returns a lease of another service.
func (n *runningNode) lease() *replica.Lease {
	n.t.Helper()
	l, err := replica.NewLease(n.t.Context(), replica.LeaseConfig{
		Replica: n.bucket.replica(n.t, n.t.TempDir()), Dir: n.t.TempDir(), TTL: MinLease, Reserve: leaseReserve, Logger: n.cfg.Logger,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// lose makes another service take the lease and then die, and waits until the node knows.
func (n *runningNode) lose() {
	n.t.Helper()
	before := strings.Count(n.log.String(), notPrimary)
	if err := n.lease().Seize(n.t.Context()); err != nil {
		n.t.Fatal(err)
	}
	harness.WaitFor(n.t, "the node to lose the lease", func() bool { return strings.Count(n.log.String(), notPrimary) > before })
}

// hold waits until the node has acquired the lease. From then on the bucket answers only requests
// of the lease, so that the node can neither start nor continue.
func (n *runningNode) hold() {
	n.t.Helper()
	n.bucket.armed.Store(true)
	harness.WaitFor(n.t, "the node to acquire the lease", func() bool { return !n.bucket.armed.Load() })
}

// end stops the node, which must not fail.
func (n *runningNode) end() {
	n.t.Helper()
	n.stop()
	if err := <-n.ended; err != nil {
		n.t.Errorf("got %v, want no error; log:\n%s", err, n.log)
	}
}

const notPrimary = "not the primary any more"

// An error that would prevent a start with any database ends a node before it stands by, so that it
// never takes the lease from a node that serves.
func TestNodeCannotStart(t *testing.T) {
	bucket := newNodeBucket(t)
	for _, tt := range []struct {
		name, want string
		breakIt    func(t *testing.T, cfg *Config) error
	}{
		{"replica of another database", "the replica's configuration is for the database", func(t *testing.T, cfg *Config) error {
			cfg.Replica = bucket.replica(t, t.TempDir())
			return nil
		}},
		{"event type", "order_shipped.json", func(_ *testing.T, cfg *Config) error {
			dir := filepath.Join(cfg.Dir, eventTypesFolder)
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "order_shipped.json"), []byte("{"), 0o600))
		}},
		{"secret of alerts", AlertSecretFile, func(_ *testing.T, cfg *Config) error {
			cfg.AlertURL = "https://alerts.example.com/"
			return os.WriteFile(filepath.Join(cfg.Dir, AlertSecretFile), []byte("whsec_\n"), 0o600)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Replica, cfg.Lease = bucket.replica(t, cfg.Dir), MinLease
			if err := tt.breakIt(t, cfg); err != nil {
				t.Fatal(err)
			}
			stood := false
			err := Run(t.Context(), cfg, Roles{Standby: func(*Standby) { stood = true }})
			if err == nil || !strings.Contains(err.Error(), tt.want) || stood {
				t.Errorf("Run: %v, stood by %v; want an error with %q first", err, stood, tt.want)
			}
		})
	}
}

// The lease is lost again while a node that has acquired it is starting: here, the node is waiting
// for an answer from the bucket. The start ends at once, and the node follows the next primary.
func TestLostDuringStart(t *testing.T) {
	harness.Long(t)
	n := runNode(t, newNodeBucket(t))
	harness.WaitFor(t, "the node to be the primary", func() bool { return n.primaries.Load() == 1 })
	n.lose()
	n.hold()
	n.lose()
	if got := n.primaries.Load(); got != 1 {
		t.Errorf("the node was the primary %d times, want 1", got)
	}
	close(n.bucket.released)
	harness.WaitFor(t, "the node to take over again", func() bool { return n.primaries.Load() == 2 })
	n.end()
	if got := n.standbys.Load(); got != 3 {
		t.Errorf("the node was a standby %d times, want 3", got)
	}
}

// A signal ends a node in every phase. The node releases the lease if it holds it, so that another
// node takes over at once.
func TestSignalInEachPhase(t *testing.T) {
	harness.Long(t)
	for _, phase := range []struct {
		name    string
		reach   func(*runningNode)
		holding bool // the node holds the lease in this phase
	}{
		{name: "waits with an empty directory", reach: func(n *runningNode) {
			harness.WaitFor(n.t, "the node to wait", func() bool { return n.standbys.Load() == 1 })
		}},
		{name: "starts with an empty directory", holding: true, reach: (*runningNode).hold},
		{name: "serves", holding: true, reach: func(n *runningNode) {
			harness.WaitFor(n.t, "the node to be the primary", func() bool { return n.primaries.Load() == 1 })
		}},
		{name: "closes after a loss", reach: func(n *runningNode) {
			harness.WaitFor(n.t, "the node to be the primary", func() bool { return n.primaries.Load() == 1 })
			if err := n.lease().Seize(n.t.Context()); err != nil {
				n.t.Fatal(err)
			}
			harness.WaitFor(n.t, "the end", func() bool { return strings.Contains(n.log.String(), "stopping immediately") })
		}},
		{name: "decides about its data", reach: func(n *runningNode) {
			harness.WaitFor(n.t, "the node to be the primary", func() bool { return n.primaries.Load() == 1 })
			n.lose()
		}},
		{name: "takes over", holding: true, reach: func(n *runningNode) {
			harness.WaitFor(n.t, "the node to be the primary", func() bool { return n.primaries.Load() == 1 })
			n.lose()
			n.hold()
		}},
	} {
		t.Run(phase.name, func(t *testing.T) {
			n := runNode(t, newNodeBucket(t))
			phase.reach(n)
			n.end()
			switch state, err := n.lease().State(t.Context()); {
			case err != nil:
				t.Error(err)
			case phase.holding && !state.Released:
				t.Errorf("got the lease %+v, want it released", state)
			}
		})
	}
}
