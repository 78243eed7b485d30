package web

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// Exports of subscriptions, tokens and the audit log contain all pages of the filtered list, as
// JSON and as CSV, without secrets. The audit log records the exports.
func TestExports(t *testing.T) {
	v, w := subscribing(t)
	w.cfg.MaxSubscriptions = 0
	fillExports(t, w)
	for _, tt := range []struct {
		path, link string
		lines      int
	}{
		{"/subscriptions", "", 103},
		{"/subscriptions", "?program=acme", 52},
		{"/subscriptions", "?filter[status]=failing", 0},
		{"/tokens", "", 103},
		{"/tokens", "?program=other", 51},
		{"/audit", "?filter[admin]=%3Dcmd", 103},
		{"/audit", "?program=acme&filter[action]=event.publish", 52},
	} {
		page := v.do("GET", tt.path+tt.link)
		page.want(t, 200, "All matching records")
		for _, format := range []string{"ndjson", "csv"} {
			got := v.do("GET", page.link(t, `href="([^"]*/export\?[^"]*format=`+format+`[^"]*)"`))
			got.want(t, 200, "")
			got.hasNot(t, "canary-of-a-partner", "whsec_")
			if d := got.Header.Get("Content-Disposition"); !strings.HasSuffix(d, "."+format+`"`) {
				t.Errorf("%s: the file is %s", tt.path, d)
			}
			n := 0
			if format == "csv" {
				n = csvRecords(t, got.body)
			} else {
				n = jsonRecords(t, got.body)
			}
			if n != tt.lines {
				t.Errorf("%s%s as %s: got %d records, want %d", tt.path, tt.link, format, n, tt.lines)
			}
		}
		v.do("GET", tt.path+"/export?format=xml").want(t, 400, "must be ndjson or csv")
		v.do("GET", tt.path+"/export?format=csv&filter[stauts]=x").want(t, 400, "filter[stauts]")
	}
	for _, action := range []string{"subscription.export", "token.export", "audit.export"} {
		v.do("GET", "/audit?filter[action]="+action).has(t, "csv of ?")
	}
}

// fillExports stores more than one page of records for each list, in two programs.
func fillExports(t *testing.T, w *Web) {
	t.Helper()
	ctx := t.Context()
	for i := range webhook.MaxPageSize + 3 {
		program := []string{"acme", "other"}[i%2]
		_, _, err := storetest.CreateToken(ctx, w.store,
			webhook.NewToken{ProgramID: program, UserID: "u", Name: "=1+1", Scopes: webhook.Scopes()})
		must(t, err)
		createSubscription(t, w.store, program, webhook.SubscriptionFields{
			URL: new("https://partner.example/in?key=canary-of-a-partner"), Events: &[]string{"content_updated", "ping"},
		})
		must(t, w.store.Write(ctx, func(sw store.Write) error {
			return sw.Audit(webhook.AuditEntry{Admin: "=cmd", Action: webhook.ActionEventPublish, ProgramID: program})
		}))
	}
}

// csvRecords returns the number of records in a CSV file. No cell of the last record may be a
// formula.
func csvRecords(t *testing.T, text string) int {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d lines, %v", len(all), err)
	}
	for _, cell := range all[len(all)-1] {
		if strings.HasPrefix(cell, "=") {
			t.Errorf("a formula for a spreadsheet: %s", cell)
		}
	}
	return len(all) - 1
}

// jsonRecords returns the number of records in an NDJSON file, each with an ID.
func jsonRecords(t *testing.T, text string) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil || record["id"] == "" {
			t.Fatalf("%v: %s", err, line)
		}
		n++
	}
	return n
}
