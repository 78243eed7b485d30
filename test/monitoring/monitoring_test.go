package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"service/test/harness"
)

// dir is the directory of the alert rules and the dashboard.
const dir = "packaging/monitoring"

// shownMetrics returns the labels of every metric by the names that expressions use,
// from testdata/metrics.txt.
func shownMetrics(t *testing.T) map[string][]string {
	t.Helper()
	list, err := os.ReadFile("testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string][]string{"process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil}
	for line := range strings.Lines(string(list)) {
		name, rest, _ := strings.Cut(line, " ")
		kind, rest, _ := strings.Cut(rest, " {")
		of, _, _ := strings.Cut(rest, "}")
		var labels []string
		if of != "" {
			labels = strings.Split(of, ",")
		}
		if kind != "histogram" {
			shown[name] = labels
			continue
		}
		shown[name+"_bucket"] = append(slices.Clip(labels), "le")
		shown[name+"_sum"], shown[name+"_count"] = labels, labels
	}
	return shown
}

var (
	inQuotes   = regexp.MustCompile(`"[^"]*"`)
	selector   = regexp.MustCompile(`([a-z_]+)\s*\{([^}]*)\}`)
	matcher    = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	parameters = regexp.MustCompile(`\$\{?[a-z_]+\}?`)
	window     = regexp.MustCompile(`\[[^\]]*\]`)
	word       = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	inAlert    = regexp.MustCompile(`\$labels\.([a-z_]+)`)
	fromLabel  = regexp.MustCompile(`^label_values\(([a-z_]+), ([a-z]+)\)$`)
)

// promqlWords are the functions and operators that expressions may use.
var promqlWords = []string{
	"absent", "and", "avg", "by", "clamp_max", "histogram_quantile", "increase", "max", "min", "on", "or", "predict_linear", "rate", "sum",
	"time", "unless",
}

// expressionFaults returns the names and labels in an expression that do not exist, and
// the labels of its metrics.
func expressionFaults(expr string, shown map[string][]string) (faults, labels []string) {
	labels = []string{"instance", "job"} // Prometheus adds these
	bare := window.ReplaceAllString(inQuotes.ReplaceAllString(expr, `""`), "")
	for _, m := range selector.FindAllStringSubmatch(bare, -1) {
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(shown[m[1]], l[1]) && !slices.Contains(labels[:2], l[1]) {
				faults = append(faults, fmt.Sprintf("%s has no label %s", m[1], l[1]))
			}
		}
	}
	rest := grouping.ReplaceAllString(selector.ReplaceAllString(bare, "$1"), "")
	used := 0
	for _, name := range word.FindAllString(parameters.ReplaceAllString(rest, ""), -1) {
		of, known := shown[name]
		switch {
		case known:
			used++
			labels = append(labels, of...)
		case !slices.Contains(promqlWords, name) && name != "e" && name != "e6":
			faults = append(faults, fmt.Sprintf("there is no %s", name))
		}
	}
	if used == 0 {
		faults = append(faults, "it uses no metric")
	}
	for _, m := range grouping.FindAllStringSubmatch(bare, -1) {
		for _, l := range word.FindAllString(m[1], -1) {
			if !slices.Contains(labels, l) {
				faults = append(faults, fmt.Sprintf("no metric of it has the label %s", l))
			}
		}
	}
	return faults, labels
}

// TestMonitoring checks that every metric and label in the alert rules and the dashboard
// exists, and that every rule has a test.
func TestMonitoring(t *testing.T) {
	e := &expressions{t: t, shown: shownMetrics(t)}
	for _, wrong := range []string{
		"webhooks_store_upp == 0", `webhooks_subscriptions{state="failing"}`, "sum by (route) (webhooks_store_up)",
		"rate(webhooks_commit_writes[5m])", "vector(1)",
		`sum by (le) (webhooks_wal_bytes)`, "foo(webhooks_store_up)",
	} {
		if faults, _ := expressionFaults(wrong, e.shown); len(faults) == 0 {
			t.Errorf("%s: got no fault", wrong)
		}
	}
	e.checkRules()
	e.checkDashboard()
	if len(e.all) < 40 {
		t.Errorf("got only %d expressions", len(e.all))
	}
	t.Run("promtool", func(t *testing.T) { testPromtool(t, e.all) })
}

// expressions collects the expressions of the alert rules and the dashboard.
type expressions struct {
	t     *testing.T
	shown map[string][]string
	all   []string
}

// check checks an expression, and the labels in a text about its result.
func (e *expressions) check(where, expr, text string) {
	e.t.Helper()
	e.all = append(e.all, expr)
	faults, labels := expressionFaults(expr, e.shown)
	for _, m := range inAlert.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(labels, m[1]) {
			faults = append(faults, "its text names the label "+m[1])
		}
	}
	for _, fault := range faults {
		e.t.Errorf("%s: %s: %s", where, fault, expr)
	}
}

// checkRules checks the alert rules.
func (e *expressions) checkRules() {
	e.t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(harness.Read(e.t, harness.Path(dir, "service.rules.yml")), &rules); err != nil {
		e.t.Fatal(err)
	}
	fires, rests := testedRules(e.t)
	runbook := string(harness.Read(e.t, harness.Path("docs", "runbook.md")))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] || !rests[r.Alert] {
				e.t.Errorf("%s: the rules' test must have a case in which it fires and one in which it does not", r.Alert)
			}
			e.check(r.Alert, r.Expr, strings.Join(slices.Collect(maps.Values(r.Annotations)), "\n"))
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				e.t.Errorf("%s: got no severity or no summary", r.Alert)
			}
			// TestLinks checks that the section exists.
			if section := r.Annotations["runbook"]; !strings.HasPrefix(section, "docs/runbook.md#") || !strings.Contains(runbook, "`"+r.Alert+"`") {
				e.t.Errorf("%s: got the section %q of docs/runbook.md, want one that explains the alert", r.Alert, section)
			}
		}
	}
}

// testedRules returns the alerts that fire in the rules' test, and those that do not.
func testedRules(t *testing.T) (fires, rests map[string]bool) {
	t.Helper()
	var tested struct {
		Tests []struct {
			Alerts []struct {
				Name     string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal(harness.Read(t, harness.Path(dir, "service.rules.test.yml")), &tested); err != nil {
		t.Fatal(err)
	}
	fires, rests = make(map[string]bool), make(map[string]bool)
	for _, one := range tested.Tests {
		for _, a := range one.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			rests[a.Name] = rests[a.Name] || len(a.Expected) == 0
		}
	}
	return fires, rests
}

// checkDashboard checks the panels and the variables of the dashboard.
func (e *expressions) checkDashboard() {
	e.t.Helper()
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal(harness.Read(e.t, harness.Path(dir, "grafana-dashboard.json")), &dashboard); err != nil {
		e.t.Fatal(err)
	}
	ids := make(map[int]bool)
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			e.t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			e.t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			e.check(p.Title, target.Expr, "")
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := fromLabel.FindStringSubmatch(v.Query)
		if m == nil || e.shown[m[1]] == nil || m[2] != "instance" && !slices.Contains(e.shown[m[1]], m[2]) {
			e.t.Errorf("variable %s: its metric or label does not exist: %s", v.Name, v.Query)
		}
	}
}

// testPromtool runs promtool on the rules, their test, and every expression of the
// dashboard.
func testPromtool(t *testing.T, expressions []string) {
	promtool := harness.Tool(t, "promtool", "promtool")
	var rules struct {
		Groups []map[string]any `yaml:"groups"`
	}
	var records []map[string]string
	in := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$program", ".*")
	for i, expr := range expressions {
		records = append(records, map[string]string{"record": fmt.Sprintf("r%d", i), "expr": in.Replace(expr)})
	}
	rules.Groups = []map[string]any{{"name": "dashboard", "rules": records}}
	text, err := yaml.Marshal(rules)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "service.rules.yml"}, {"test", "rules", "service.rules.test.yml"}, {"check", "rules", file},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = harness.Path(dir)
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("SUCCESS")) {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
