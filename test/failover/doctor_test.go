package failover

import (
	"fmt"
	"io"
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

// doctorLimit is how long the doctor may take if something hangs.
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

// TestBucketRefuses makes the bucket refuse writes. The doctor of both nodes shows the bucket's
// error; /readyz, which is public, shows one word; the metrics contain the cause.
func TestBucketRefuses(t *testing.T) {
	harness.Long(t)
	t.Parallel()
	f := newFailOver(t, harness.Build(t))
	f.publish(10)
	standby := <-f.standby.Standby
	ready := func(base string) (status int, body string) {
		resp, err := f.one.Client.Get(base + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	harness.WaitFor(t, "a standby that could take over", func() bool {
		_, body := ready(standby)
		return strings.Contains(body, `"can_take_over":true`)
	})
	args := func(in *harness.Instance) []string { return append(in.Args("doctor")[1:], "--listen", "127.0.0.1:0") }
	for _, refusal := range []struct {
		status int
		word   string
		remedy string
	}{{http.StatusForbidden, "refused", "Check the access key"}, {http.StatusInsufficientStorage, "full", "Raise the quota"}} {
		f.refuses.Store(int64(refusal.status))
		f.one.Call(t.Context(), f.token, "POST", f.one.URL()+"/v2/events", // something to upload
			[]byte(`{"name":"content_published","version":"1","content_id":1,"channel_ids":[1]}`), nil)
		code := fmt.Sprintf("Refused%d", refusal.status)
		var ended, cannot string
		harness.WaitFor(t, "the end of the lease and of the standby's proof", func() bool {
			status, body := ready(f.one.URL())
			if status == http.StatusServiceUnavailable {
				ended = body
			}
			_, cannot = ready(standby)
			return ended != "" && strings.Contains(cannot, `"can_take_over":false`)
		})
		for _, text := range []string{ended, cannot} {
			if !strings.Contains(text, "("+refusal.word+")") || strings.Contains(text, "secret-account") || strings.Contains(text, code) {
				t.Errorf("/readyz with %d: got %s, want only the word %q", refusal.status, text, refusal.word)
			}
		}
		doctor(t, f.one, true, args(f.one), "FAIL  lease: expired", "the last renewal failed", code, refusal.remedy,
			"FAIL  replica: ", "("+refusal.word+")")
		doctor(t, f.two, true, args(f.two), "FAIL  takeover: ", code, refusal.remedy)
		if _, text := f.one.Scrape(); !strings.Contains(string(text), fmt.Sprintf("webhooks_replica_failure{cause=%q} 1", refusal.word)) {
			t.Errorf("the metrics lack the cause %q", refusal.word)
		}
		f.refuses.Store(0)
		harness.WaitFor(t, "both nodes to recover", func() bool {
			status, _ := ready(f.one.URL())
			_, body := ready(standby)
			return status == http.StatusOK && strings.Contains(body, `"can_take_over":true`)
		})
	}
	f.one.MustStop(f.primary)
	if !strings.Contains(f.primary.Log.String(), "cause=full") {
		t.Errorf("the primary's log lacks the cause:\n%s", &f.primary.Log)
	}
}
