package web

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"

	"service/store"
	"service/webhook"
)

// Subscriptions, tokens and the audit are exported as their lists are filtered,
// over all pages, as JSON and for a spreadsheet, without secrets; and the audit
// has it.
func TestExports(t *testing.T) {
	v, w := subscribing(t)
	w.cfg.MaxSubscriptions = 0
	ctx := t.Context()
	for i := range webhook.MaxPageSize + 3 {
		_, _, err := w.store.CreateToken(ctx, webhook.NewToken{ProgramID: []string{"acme", "other"}[i%2], UserID: "u", Name: "=1+1", Scopes: webhook.Scopes()})
		if err != nil {
			t.Fatal(err)
		}
		url := "https://partner.example/in?key=canary-of-a-partner"
		if _, _, err := w.store.CreateSubscription(ctx, []string{"acme", "other"}[i%2], "u", &webhook.SubscriptionFields{URL: &url, Events: &[]string{"content_updated", "ping"}}, 0); err != nil {
			t.Fatal(err)
		}
		err = w.store.Write(ctx, func(sw store.Write) error {
			return sw.Audit(webhook.AuditEntry{Admin: "=cmd", Action: webhook.ActionEventPublish, ProgramID: []string{"acme", "other"}[i%2]})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
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
		page.want(t, 200, "All that match, at most 100,000")
		for _, format := range []string{"ndjson", "csv"} {
			got := v.do("GET", page.link(t, `href="([^"]*/export\?[^"]*format=`+format+`[^"]*)"`))
			got.want(t, 200, "")
			got.hasNot(t, "canary-of-a-partner", "whsec_")
			if d := got.Header.Get("Content-Disposition"); !strings.HasSuffix(d, "."+format+`"`) {
				t.Errorf("%s: the file is %s", tt.path, d)
			}
			n := 0
			if format == "csv" {
				all, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
				if err != nil || len(all) == 0 {
					t.Fatalf("%s: %v", tt.path, err)
				}
				n = len(all) - 1
				for _, cell := range all[len(all)-1] {
					if strings.HasPrefix(cell, "=") {
						t.Errorf("%s: a formula for a spreadsheet: %s", tt.path, cell)
					}
				}
			} else {
				for line := range strings.Lines(got.body) {
					var record map[string]any
					if err := json.Unmarshal([]byte(line), &record); err != nil || record["id"] == "" {
						t.Fatalf("%s: %v: %s", tt.path, err, line)
					}
					n++
				}
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
