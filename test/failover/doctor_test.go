package failover

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"service/test/harness"
)

// doctorLimit is how long the doctor may take when something hangs.
var doctorLimit = harness.Scale(10 * time.Second)

// doctor runs service doctor and checks its output and how long it takes.
func doctor(t *testing.T, in *harness.Instance, wantFail bool, args []string, wants ...string) {
	t.Helper()
	began := time.Now()
	out, err := in.Command(slices.Concat([]string{"doctor"}, args)...)
	if took := time.Since(began); took > doctorLimit {
		t.Errorf("doctor: got %s, want at most %s", took, doctorLimit)
	}
	if failed := err != nil; failed != wantFail {
		t.Errorf("doctor failed: got %v, want %v\n%s", failed, wantFail, out)
	}
	for _, want := range wants {
		if !strings.Contains(out, want) {
			t.Errorf("doctor: want %q in the output:\n%s", want, out)
		}
	}
}

// TestDoctorHang runs the doctor against a stopped server, and against a bucket that
// does not respond.
func TestDoctorHang(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	binary := harness.Build(t)
	in := harness.NewInstance(t, binary, t.TempDir(), "--litestream", "off")
	p := in.MustStart()
	address := strings.TrimPrefix(in.URL(), "http://")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer p.Signal(syscall.SIGCONT)
	doctor(t, in, true, []string{"--data", in.Data, "--listen", address, "--tls", "off", "--litestream", "off"},
		"FAIL  server: a server is running on "+in.Data+", but did not answer within ",
		"FAIL  listener: http://"+address+"/readyz did not respond in time")

	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	bucket := harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-ended:
		case <-r.Context().Done():
		}
	}))
	f := &failOver{t: t, bucket: bucket}
	idle := harness.NewInstance(t, binary, t.TempDir(), "--litestream", "off")
	idle.MustStop(idle.MustStart())
	doctor(t, idle, true, []string{"--data", idle.Data, "--listen", "127.0.0.1:0", "--tls", "off", "--litestream", f.replica(idle.Data),
		"--lease", "30s", "--attempt-timeout", "1s"},
		"OK    database: intact", "FAIL  replica: s3://", "FAIL  lease: read the lease: ")
}

// TestDoctorLease runs the doctor on a standby while its primary is running, and after
// the primary was killed.
func TestDoctorLease(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	f := newFailOver(t, harness.Build(t))
	one := append(f.one.Args("doctor")[1:], "--listen", "127.0.0.1:0")
	other := harness.NewInstance(t, f.one.Binary, filepath.Join(t.TempDir(), "data"), "--litestream", "off")
	other.MustStop(other.MustStart())
	args := []string{"--data", other.Data, "--listen", "127.0.0.1:0", "--tls", "off", "--litestream", f.replica(other.Data)}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	doctor(t, f.one, false, one, "OK    lease: held by this service, generation 1")
	doctor(t, other, true, args, "FAIL  lease: another service holds the lease: "+host, "refuses to write to its replica")
	f.publish(0)
	f.one.Kill(f.primary)
	doctor(t, f.one, false, one, "OK    lease: available")
	if !f.two.AwaitReady(f.standby) {
		t.Fatalf("the standby exited:\n%s", &f.standby.Log)
	}
	doctor(t, f.one, false, one, "WARN  lease: another service has taken over since: "+host, "the data in "+f.one.Data+" is out of date")
	fresh := append(slices.Clone(args), "--data", filepath.Join(t.TempDir(), "fresh"), "--litestream",
		f.replica(filepath.Join(t.TempDir(), "fresh")), "--lease", lease().String(), "--attempt-timeout", "1s")
	doctor(t, other, false, fresh, "WARN  lease: another service holds the lease: "+host)
}
