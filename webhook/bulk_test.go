package webhook

import (
	"slices"
	"strings"
	"testing"
)

// The body of a bulk run request is parsed like list parameters, and all errors are
// reported.
func TestParseBulkRun(t *testing.T) {
	f, err := ParseBulkRun([]byte(`{"action": "cancel", "filter": {"status": ["pending", "retryable"], "event": "a,b",`+
		` "created_at.from": "2026-03-14"}}`), "acme")
	if err != nil || f.Action != BulkCancel || f.DryRun || !slices.Equal(f.Query.Filters["status"], []string{"pending", "retryable"}) ||
		!slices.Equal(f.Query.Filters["event"], []string{"a", "b"}) || f.Query.Ranges["created_at"].From.IsZero() ||
		!slices.Equal(f.Query.Filters["program_id"], []string{"acme"}) {
		t.Errorf("got %+v (%v)", f, err)
	}
	if f, err := ParseBulkRun([]byte(`{"action": "redeliver", "dry_run": true}`), "acme"); err != nil || !f.DryRun ||
		len(f.Query.Filters) != 1 {
		t.Errorf("got %+v (%v)", f, err)
	}
	for body, want := range map[string]string{
		`[]`:                                     "must be a JSON object",
		`{}`:                                     "action",
		`{"action": 1}`:                          "action",
		`{"action": "redeliver", "filter": "x"}`: "filter",
		`{"action": "redeliver", "filter": {"status": 1}}`:                "filter[status]",
		`{"action": "redeliver", "filter": {"status": ["failed", null]}}`: "filter[status]",
		`{"action": "redeliver", "filter": {"program_id": "other"}}`:      "filter[program_id]",
		`{"action": "redeliver", "filter": {"stauts": "failed"}}`:         "filter[stauts]",
		`{"action": "redeliver", "filter": {"id": "x"}}`:                  "filter[id]",
		`{"action": "redeliver", "all": true}`:                            "all",
		`{"action": "redeliver", "dry_run": "yes"}`:                       "dry_run",
	} {
		_, err := ParseBulkRun([]byte(body), "acme")
		if err == nil || !strings.Contains(err.Detail, want) &&
			!slices.ContainsFunc(err.Validations, func(v Validation) bool { return v.Parameter == want }) {
			t.Errorf("%s: got %v, want an error about %s", body, err, want)
		}
	}
}

// The error for a filter that is not supported names the supported filters alone.
func TestParseBulkRunNamesFilters(t *testing.T) {
	_, err := ParseBulkRun([]byte(`{"action": "redeliver", "filter": {"stauts": "failed"}}`), "acme")
	if err == nil {
		t.Fatal("got no error")
	}
	if detail := err.Validations[0].Detail; !strings.Contains(detail, "supported: filter[") || strings.Contains(detail, "page[") {
		t.Errorf("got %q", detail)
	}
}

func TestIsID(t *testing.T) {
	if !IsID(NewID()) || IsID("") || IsID("x") || IsID(strings.ToUpper(NewID())) || IsID("run-"+NewID()) {
		t.Error("IsID must accept only ids in the form of NewID")
	}
}
