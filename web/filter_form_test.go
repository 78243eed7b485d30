package web

import (
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"service/webhook"
)

var filterModelPattern = regexp.MustCompile(`data-filter-model="([^"]*)"`)

// modelOf returns the filterModel on a page.
func modelOf(t *testing.T, p page) (m filterModel) {
	t.Helper()
	found := filterModelPattern.FindStringSubmatch(p.body)
	if found == nil {
		t.Fatalf("no model in\n%s", p.body)
	}
	must(t, json.Unmarshal([]byte(html.UnescapeString(found[1])), &m))
	return m
}

// TestFilterForm checks what the script and the form's button receive: the counts, the errors, and
// the conditions.
func TestFilterForm(t *testing.T) {
	v, w, l, path := subscribed(t)
	l.publish("content_published", `"x","content_id":7`)
	look := func(to, filters string, more ...string) page {
		form := url.Values{"events": {"content_published", "content_updated"}, "filters": {filters}, "for_program": {"acme"}}
		for i := 0; i < len(more); i += 2 {
			form.Set(more[i], more[i+1])
		}
		return v.post(to, form.Encode(), "Origin", v.base, "Sec-Fetch-Site", "same-origin")
	}
	const big = `{"content_published":{"any":[{"path":"content_id","op":"lt","value":9007199254740993}]}}`
	for _, to := range []string{"/subscriptions/filters", path + "/filters"} {
		p := look(to, big)
		p.want(t, 200, "1 of 1 event of the last 7 days", "<code>content_published</code>: would have sent", "content_id 7")
		m := modelOf(t, p)
		if len(m.Filters) != 1 || m.Filters[0].Group != "any" || len(m.Filters[0].Conditions) != 1 ||
			m.Filters[0].Conditions[0] != (filterRow{"content_id", "lt", `"9007199254740993"`}) {
			t.Errorf("%s: got %+v", to, m.Filters)
		}
		if len(m.Types["content_updated"].Fields) == 0 || m.Types["channel_updated"].Fields != nil {
			t.Errorf("%s: got the fields %v, want those of the selected events", to, m.Types)
		}
		p = look(to, `{"content_published":{"not":{"path":"content_id","op":"gte","value":0}}}`)
		p.has(t, "would have sent", "0 of 1 event of the last 7 days", "Not sent")
		if m := modelOf(t, p); m.Filters[0].Conditions != nil {
			t.Errorf("not: got the conditions %+v, want none", m.Filters[0].Conditions)
		}
		p = look(to, `{"content_published":{"all":[{"path":"title","op":"eq","value":1}]},
			"content_updated":{"all":[{"path":"content_id","op":"eq","value":1}]}}`)
		p.want(t, 200, `data-filter-fault="content_published.all[0].path"`)
		p.has(t, "title is not a field of content_published; it has: ", "0 events of the last 7 days")
		p.hasNot(t, "1 event")
		for _, unreadable := range []string{`{"content_published":`, `{"content_published":{"all":[]},` + big[1:], `[]`} {
			if m := modelOf(t, look(to, unreadable)); m.Filters != nil {
				t.Errorf("%s: got %+v, want null", unreadable, m.Filters)
			}
		}
		const text = `{"content_published":{"all":[{"path":"x","op":"eq","value":"\u202e😀"}]}}`
		unescaped := strings.ReplaceAll(text, `\u202e`, "\u202e")
		if p := look(to, unescaped); strings.ContainsRune(p.body, '\u202e') || len(modelOf(t, p).Filters) != 1 {
			t.Errorf("an invisible character: got\n%s", p.body)
		}
		if m := modelOf(t, look(to, "")); m.Filters == nil || len(m.Filters) > 0 {
			t.Errorf("no filters: got %+v, want an empty list", m.Filters)
		}
	}
	look("/subscriptions/filters", big, "for_program", "none").want(t, 200, "0 of 0 events of the last 7 days")

	p := look("/subscriptions/new", big, "step", "filters")
	p.want(t, 200, "1 of 1 event of the last 7 days")
	p = look(path+"/edit", big, "step", "filters")
	p.want(t, 200, "1 of 1 event of the last 7 days", "9007199254740993")
	if got := listSubscriptions(t, w, ""); len(got) != 1 || got[0].Filters != nil {
		t.Errorf("testing changed %+v", got)
	}
}

// TestPortalFilterForm checks that partners see results of their filters only for their own
// program.
func TestPortalFilterForm(t *testing.T) {
	w := testWeb(t, nil)
	newEventSource(t, w, "https://partner.example/in").publish("content_published", `"x","content_id":7`) // in acme
	const filter = `{"content_published":{"all":[{"path":"content_id","op":"gte","value":0}]}}`
	p := insidePortal(t, &furnished{t: t, w: w}, webhook.PortalWrite).send("/portal/subscriptions/filters", "events", "content_published",
		"filters", filter, "for_program", "acme")
	p.want(t, 200, "0 of 0 events of the last 7 days")
}
