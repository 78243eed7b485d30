package replica

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// secondServices is a service without --lease, with other services on its replica.
type secondServices struct {
	t          *testing.T
	gateway    *harness.Gateway
	key        string
	production *harness.Instance
	token      string
	ledger     *ledger
}

func newSecondServices(t *testing.T) *secondServices {
	s := &secondServices{
		t: t, gateway: harness.NewGateway(t), key: filepath.Join(t.TempDir(), "secret.key"),
		ledger: &ledger{sent: make(map[string]bool), acks: make(map[string]time.Time)},
	}
	if err := os.WriteFile(s.key, []byte(strings.Repeat("0f", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.production = s.instance(t.TempDir())
	s.token = s.production.Token("acme", "--secret-key-file", s.key)
	return s
}

// instance returns a service with the same replica.
func (s *secondServices) instance(data string) *harness.Instance {
	config := writeReplica(s.t, data, "100ms", s.gateway.Replica(s.gateway.Address, "service")...)
	return harness.NewInstance(s.t, harness.Build(s.t), data, "--litestream", config, "--secret-key-file", s.key)
}

// publish publishes some events to production.
func (s *secondServices) publish() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	before := len(s.ledger.acknowledged())
	wait := s.ledger.load(ctx, s.production, s.token, 2)
	harness.WaitFor(s.t, "acknowledged events", func() bool { return len(s.ledger.acknowledged()) > before+20 })
	cancel()
	wait()
}

// terms checks which terms the replica contains.
func (s *secondServices) terms(want ...string) {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.gateway.Dir, "bucket", "service", "terms"))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if err != nil || !slices.Equal(names, want) {
		s.t.Errorf("got the terms %q, %v, want %q", names, err, want)
	}
}

// refused starts a service, which must end with an error that states what to do.
func (s *secondServices) refused(in *harness.Instance) {
	s.t.Helper()
	p := in.Start()
	if in.AwaitReady(p) {
		s.t.Fatal("a second service serves on the replica of a live one")
	}
	for _, want := range []string{"host " + s.host() + ", since 2", "in term 1", "stop that one first", "--litestream off", "--lease"} {
		if log := p.Log.String(); p.Status != harness.ExitFailed || !strings.Contains(log, want) {
			s.t.Errorf("second service: got status %d, want %d and %q:\n%s", p.Status, harness.ExitFailed, want, log)
		}
	}
}

func (s *secondServices) host() string {
	s.t.Helper()
	host, err := os.Hostname()
	if err != nil {
		s.t.Fatal(err)
	}
	return host
}

// TestSecondService starts a second service on the replica of production, without --lease. It must
// not send, and production's replication must continue. If production shows no sign of life, the
// second service serves; production then uploads nothing, and continues by itself once the second
// ends.
func TestSecondService(t *testing.T) {
	harness.Long(t)
	s := newSecondServices(t)
	run := s.production.MustStart()
	s.publish()
	awaitReplica(s.production, "running")
	empty := s.instance(t.TempDir())
	s.refused(empty)
	if _, err := os.Stat(filepath.Join(empty.Data, "service.db")); err == nil {
		t.Error("the refused service has restored the database")
	}
	drill := s.instance(filepath.Join(t.TempDir(), "drill"))
	if out, err := drill.Command("restore", "--data", drill.Data, "--restore-hold", "0", drill.Flags[0], drill.Flags[1]); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	s.refused(drill)
	s.publish()
	awaitReplica(s.production, "running")
	s.terms("0001")

	// Production stops, and resumes after the second service has taken its place.
	if err := run.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	second := drill.MustStart()
	awaitReplica(drill, "running")
	if err := run.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitFailing(s.production)
	s.publish()
	s.terms("0001", "0002")
	drill.MustStop(second)
	awaitReplica(s.production, "running")
	s.terms("0001", "0002", "0003")
	s.production.MustStop(run)
	if log := run.Log.String(); !strings.Contains(log, "host "+s.host()) || !strings.Contains(log, "nothing is uploaded") ||
		strings.Contains(log, "litestream: ") {
		t.Errorf("production's log: want the host of the other service, and nothing of Litestream:\n%s", log)
	}
	to := filepath.Join(t.TempDir(), "restored")
	config := writeReplica(t, to, "1s", s.gateway.Replica(s.gateway.Address, "service")...)
	if out, err := s.production.Command("restore", "--data", to, "--litestream", config); err != nil {
		t.Fatalf("restore: %v\n%s", err, out)
	}
	if _, lost, _ := s.ledger.compare(t, to, time.Now()); lost > 0 {
		t.Errorf("the replica lacks %d events of production", lost)
	}
}
