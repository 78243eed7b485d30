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

// dir is the folder of the alert rules and the dashboard.
const dir = "packaging/monitoring"

// shownMetrics are the labels of every metric that /metrics shows, by the names
// that expressions use; [TestMetrics] holds the list against a run.
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
	"absent", "and", "avg", "by", "histogram_quantile", "increase", "max", "min", "on", "or", "predict_linear", "rate", "sum", "time",
}

// expressionFaults says which names and labels of an expression there are not.
// It returns the labels that its metrics have.
func expressionFaults(expr string, shown map[string][]string) (faults, labels []string) {
	labels = []string{"instance", "job"} // Prometheus's own
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

// Every name and label in the alert rules and in the dashboard is one that
// /metrics shows.
func TestMonitoring(t *testing.T) {
	shown := shownMetrics(t)
	for _, wrong := range []string{
		"service_store_upp == 0", `service_subscriptions{state="failing"}`, "sum by (route) (service_store_up)", "rate(service_commit_writes[5m])", "vector(1)",
		`sum by (le) (service_wal_bytes)`, "foo(service_store_up)",
	} {
		if faults, _ := expressionFaults(wrong, shown); len(faults) == 0 {
			t.Errorf("nothing is found wrong with %s", wrong)
		}
	}
	var all []string
	check := func(where, expr, text string) {
		t.Helper()
		all = append(all, expr)
		faults, labels := expressionFaults(expr, shown)
		for _, m := range inAlert.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(labels, m[1]) {
				faults = append(faults, "its text names the label "+m[1])
			}
		}
		for _, fault := range faults {
			t.Errorf("%s: %s: %s", where, fault, expr)
		}
	}

	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Labels           map[string]string
				Annotations      map[string]string
			}
		}
	}
	text, err := os.ReadFile(harness.Path(dir, "service.rules.yml"))
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	var tested struct {
		Tests []struct {
			Alerts []struct {
				Name     string `yaml:"alertname"`
				Expected []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	text, err = os.ReadFile(harness.Path(dir, "service.rules.test.yml"))
	if err == nil {
		err = yaml.Unmarshal(text, &tested)
	}
	if err != nil {
		t.Fatal(err)
	}
	fires, rests := make(map[string]bool), make(map[string]bool)
	for _, one := range tested.Tests {
		for _, a := range one.Alerts {
			fires[a.Name] = fires[a.Name] || len(a.Expected) > 0
			rests[a.Name] = rests[a.Name] || len(a.Expected) == 0
		}
	}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if !fires[r.Alert] || !rests[r.Alert] {
				t.Errorf("the rules' test does not show both that %s fires and that it rests", r.Alert)
			}
			check(r.Alert, r.Expr, strings.Join(slices.Collect(maps.Values(r.Annotations)), "\n"))
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("%s lacks a severity or a summary", r.Alert)
			}
		}
	}

	type panel struct {
		ID      int
		Type    string
		Title   string
		Targets []struct{ Expr string }
	}
	var dashboard struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	text, err = os.ReadFile(harness.Path(dir, "grafana-dashboard.json"))
	if err == nil {
		err = json.Unmarshal(text, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}
	ids := make(map[int]bool)
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			check(p.Title, target.Expr, "")
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := fromLabel.FindStringSubmatch(v.Query)
		if m == nil || shown[m[1]] == nil || m[2] != "instance" && !slices.Contains(shown[m[1]], m[2]) {
			t.Errorf("the choice of %s asks for what there is not: %s", v.Name, v.Query)
		}
	}
	if len(all) < 40 {
		t.Errorf("%d expressions were read, of more", len(all))
	}
	t.Run("promtool", func(t *testing.T) { testPromtool(t, all) })
}

// testPromtool has Prometheus's own tool read the rules and their test, and every
// expression of the dashboard.
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
