package monitoring

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"service/test/harness"
)

// TestMetrics runs the built binary and reads its metrics. Their values must be right,
// their names must be those of testdata/metrics.txt, which docs/metrics.md explains,
// and they must not contain text of a partner.
func TestMetrics(t *testing.T) {
	harness.Long(t)
	in := harness.NewInstance(t, harness.Build(t), t.TempDir(), "--retry-schedule", "1h,1h,1h,1h", "--batch-size", "1", "--rejecting-after",
		"0", "--tls", "auto")
	// the service creates its local CA at the start
	in.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	token := in.Token("acme")
	in.MustStart()
	limitProgram(t, in, "acme", 1000)
	limitProgram(t, in, "other", 1)
	exceedLimit(t, in, "other")
	const events = 5
	var ids []string
	received := make(map[int]*atomic.Int64)
	for _, answer := range []int{http.StatusOK, http.StatusNotFound, http.StatusServiceUnavailable} {
		n := new(atomic.Int64)
		received[answer] = n
		url := harness.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			n.Add(1)
			w.WriteHeader(answer)
		}))
		ids = append(ids, in.Subscribe(token, harness.Subscription{URL: url + "/planted", Events: harness.Events("content_published")}))
	}
	for n := range events {
		in.Publish(token, harness.AppendEvent(nil, n))
	}

	each := events + 1 // including a ping
	want := []string{
		fmt.Sprintf(`webhooks_events_accepted_total{program="acme"} %d`, events),
		fmt.Sprintf(`webhooks_attempts_total{answer="2xx",result="success"} %d`, each),
		fmt.Sprintf(`webhooks_attempts_total{answer="4xx",result="failed"} %d`, each),
		fmt.Sprintf(`webhooks_attempts_total{answer="5xx",result="retryable"} %d`, each),
		fmt.Sprintf(`webhooks_attempt_duration_seconds_count{result="success"} %d`, each),
		fmt.Sprintf(`webhooks_delivery_lag_seconds_count %d`, 3*events),
		fmt.Sprintf(`webhooks_delivery_time_seconds_count %d`, events), // delivered events
		fmt.Sprintf(`webhooks_deliveries_ended_total{failure_reason="",status="success"} %d`, each),
		fmt.Sprintf(`webhooks_deliveries_ended_total{failure_reason="rejected",status="failed"} %d`, each),
		fmt.Sprintf(`webhooks_deliveries_waiting %d`, each),
		fmt.Sprintf(`webhooks_requests_total{method="POST",route="/v2/events",status="201"} %d`, events),
		`webhooks_requests_total{method="POST",route="/v2/webhooks/subscriptions",status="201"} 3`,
		`webhooks_subscriptions{program="acme",status="healthy"} 3`,
		`webhooks_backlog_subscriptions{program="acme"} 0`,
		`webhooks_backlog_age_seconds{program="acme"} 0`,
		`webhooks_deliveries_in_flight{kind="event"} 0`,
		`webhooks_store_up 1`,
		`webhooks_certificate_failing{name="localhost"} 0`,
	}
	var text []byte
	lacking := func(line string) bool { return !bytes.Contains(text, []byte(line+"\n")) }
	t.Cleanup(func() {
		for _, line := range slices.DeleteFunc(want, func(line string) bool { return !lacking(line) }) {
			t.Errorf("metrics: want %s in\n%s", line, text)
		}
	})
	harness.WaitFor(t, "the metrics to be complete", func() bool {
		var status int
		if status, text = in.Scrape(); status != http.StatusOK {
			t.Fatalf("GET /metrics: status %d: %s", status, text)
		}
		return !slices.ContainsFunc(want, lacking)
	})
	for answer, n := range received {
		if n.Load() != int64(each) {
			t.Errorf("subscriber that responds %d: got %d deliveries, want %d", answer, n.Load(), each)
		}
	}
	if status, answer := in.Scrape("X-Forwarded-For", "203.0.113.7"); status != http.StatusUnauthorized ||
		bytes.Contains(answer, []byte("webhooks_store_up")) {
		t.Errorf("request forwarded by a proxy: got %d: %s", status, answer)
	}
	for _, secret := range append(ids, "planted", "127.0.0.1", token, in.Data) {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("the metrics contain %s", secret)
		}
	}
	checkMetricNames(t, text)
}

// exceedLimit sends requests until a program's limit refuses one.
func exceedLimit(t *testing.T, in *harness.Instance, program string) {
	t.Helper()
	for other := in.Token(program); ; {
		status, err := in.Call(t.Context(), other, "GET", in.URL()+"/v2/events", nil, nil)
		if err != nil || status == http.StatusTooManyRequests {
			break
		}
	}
}

// limitProgram gives a program limits (rate in requests per minute), which have separate metrics.
func limitProgram(t *testing.T, in *harness.Instance, program string, rate int) {
	t.Helper()
	out, err := in.Command("token", "create", "--data", in.Data, "--scope", "platform", "--user", "ops")
	if err != nil {
		t.Fatalf("token create: %v\n%s", err, out)
	}
	secret, _, _ := strings.Cut(out, "\n")
	status, err := in.Call(t.Context(), secret, "PUT", in.URL()+"/v2/programs/"+program,
		map[string]any{"limits": map[string]any{"rate_limit": rate, "max_in_flight": 8}}, nil)
	if err != nil || status != http.StatusOK && status != http.StatusCreated {
		t.Fatalf("limit %s: %d, %v", program, status, err)
	}
}

// checkMetricNames compares the metrics of a run with testdata/metrics.txt and
// docs/metrics.md.
func checkMetricNames(t *testing.T, text []byte) {
	t.Helper()
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v (%v)", problems, err)
	}
	families := readFamilies(t, text)
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes"} {
		if _, ok := families[name]; !ok {
			t.Errorf("got no metric %s", name)
		}
	}
	const list = "testdata/metrics.txt"
	golden, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(families)) {
		if f := families[name]; strings.HasPrefix(name, "webhooks_") {
			fmt.Fprintf(&got, "%s %s {%s} %s\n", name, f.kind, strings.Join(f.labels, ","), f.help)
		}
	}
	if got.String() != string(golden) {
		t.Errorf("%s (-want +got; a change of a name belongs in CHANGELOG.md):\n%s",
			list, gocmp.Diff(strings.Split(string(golden), "\n"), strings.Split(got.String(), "\n")))
	}
	checkDocumented(t, families, strings.Count(string(golden), "\n"))
}

// checkDocumented compares the metrics of a run with the tables of docs/metrics.md,
// which must explain want of them.
func checkDocumented(t *testing.T, families map[string]family, want int) {
	t.Helper()
	explained := harness.Read(t, harness.Path("docs/metrics.md"))
	documented := 0
	for line := range strings.Lines(string(explained)) {
		name, found := strings.CutPrefix(line, "| `webhooks_")
		if !found {
			continue
		}
		documented++
		name, _, _ = strings.Cut(name, "`")
		f, ok := families["webhooks_"+name]
		if !ok {
			t.Errorf("docs/metrics.md explains webhooks_%s, which does not exist", name)
			continue
		}
		labels := []string{"none"}
		if len(f.labels) > 0 {
			labels = strings.Split("`"+strings.Join(f.labels, "`,`")+"`", ",")
		}
		row := "| `webhooks_" + name + "` | " + f.kind + " | " + strings.Join(labels, ", ") + " | "
		if !strings.HasPrefix(line, row) {
			t.Errorf("docs/metrics.md: got %swant %s…", line, row)
		}
	}
	if documented != want {
		t.Errorf("docs/metrics.md: got %d metrics explained, want %d", documented, want)
	}
}

// family contains what metrics of the same name share.
type family struct {
	kind, help string
	labels     []string // sorted
}

// readFamilies reads metrics in the text format and returns them by name.
func readFamilies(t *testing.T, text []byte) map[string]family {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]family)
	for name, p := range parsed {
		f := family{kind: strings.ToLower(p.GetType().String()), help: p.GetHelp()}
		for _, l := range p.GetMetric()[0].GetLabel() {
			f.labels = append(f.labels, l.GetName())
		}
		slices.Sort(f.labels)
		families[name] = f
	}
	return families
}
