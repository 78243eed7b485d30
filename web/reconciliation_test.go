package web

import (
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// everyState are the states of events for a subscription that is not deleted.
func everyState() (all []record.DeliveryState) {
	for _, status := range []string{"success", "retryable", "pending", "waiting"} {
		all = append(all, record.DeliveryState{Status: record.DeliveryStatus(status)})
	}
	for _, reason := range webhook.FailureReasons() {
		all = append(all, record.DeliveryState{Status: record.DeliveryStatus(webhook.StatusFailed), Reason: string(reason)})
	}
	for _, reason := range []string{record.NotSentNew, record.NotSentPaused, record.NotSentGone, record.NotSentErased,
		string(webhook.FailureSubscriptionDeleted)} {
		all = append(all, record.DeliveryState{Status: record.DeliveryNone, Reason: reason})
	}
	return all
}

// TestReconciliationGolden renders an event in each state.
func TestReconciliationGolden(t *testing.T) {
	address, err := url.Parse("/subscriptions/0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5/reconciliation")
	must(t, err)
	f := fixedFrame()
	f.Title, f.Address = "Reconciliation", address.String()
	v, err := ui.ParseListing(address, f.Clock, webhook.ReconciliationList)
	must(t, err)
	p := &reconciliation{SubscriptionView: &record.SubscriptionView{}, list: v, api: "curl",
		counts: record.Owed{States: make(map[record.DeliveryState]int), Complete: true}}
	p.Subscription = webhook.Subscription{ID: "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5", ProgramID: "acme", URL: "https://partner.example/in",
		Active: true, Status: webhook.HealthHealthy}
	for i, state := range everyState() {
		p.counts.States[state] = i + 1
		p.counts.Total += i + 1
		e := record.OwedEvent{DeliveryState: state, Event: webhook.Event{ProgramID: "acme", Seq: int64(i + 1),
			Name: "content_updated", Version: "1", ID: "0198f6a2-7c1e-7d4b-9a41-0000000000" + strconv.Itoa(10+i),
			ReceivedAt: testNow.Add(-time.Minute), JSON: []byte(`{"id":"","timestamp":"","name":"content_updated","version":"1","content_id":1}`)}}
		if state.Status != record.DeliveryNone && state.Status != record.DeliveryWaiting {
			e.DeliveryID = "0198f6a3-7c1e-7d4b-9a41-0000000000" + strconv.Itoa(10+i)
		}
		p.rows = append(p.rows, e)
	}
	wantGolden(t, "reconciliation", rendered(t, reconciliationPage(f, p)))
}

var countsOfPage = regexp.MustCompile(`<dt>([^<]*)</dt><dd>(?:<a [^>]*>)?([^<]*)`)

// owedCounts are the counts of a page, by their name.
func (p page) owedCounts() string {
	var all []string
	for _, m := range countsOfPage.FindAllStringSubmatch(p.body, -1) {
		all = append(all, m[1]+" "+m[2])
	}
	return strings.Join(all, ", ")
}

var owedRows = regexp.MustCompile(`id="e-([^"]*)"`)

func (p page) owedRows() (ids []string) {
	for _, m := range owedRows.FindAllStringSubmatch(p.body, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

// Admins and partners see the same counts and events, each count leads to its events, and the file has
// all of them as the API returns them.
func TestReconciliation(t *testing.T) {
	w := testWeb(t, nil)
	l := newEventSource(t, w, "https://partner.example/in")
	admin := visit(t, w)
	makeAdmin(t, w, "viewer@example.com")
	admin.signIn(w)
	partner := enter(t, w, "acme", webhook.PortalRead)
	elsewhere := enter(t, w, "other", webhook.PortalWrite)

	var want []string // oldest first
	publish := func(n int) {
		for range n {
			want = append(want, l.publish("content_updated", strconv.Itoa(n))[0].ID)
		}
	}
	publish(30)
	l.end(l.form(), webhook.Attempt{ResponseStatus: 200})
	publish(1)
	rejected := l.form()
	l.end(rejected, webhook.Attempt{ResponseStatus: 404})
	publish(1)
	l.end(l.form(), webhook.Attempt{ResponseStatus: 503})
	l.publish("channel_created", "7") // which it does not select
	updateSubscription(t, w.store, l.sub.ID, webhook.SubscriptionFields{Active: new(false)})
	publish(1)

	newest := slices.Clone(want)
	slices.Reverse(newest)
	path := subscriptionPath(l.sub.ID) + "/reconciliation"
	elsewhere.do("GET", "/portal"+path).want(t, 404, "")
	elsewhere.do("GET", "/portal"+path+"/export?format=ndjson").want(t, 404, "")
	admin.do("GET", path+"/export?format=csv").want(t, 400, "must be ndjson")
	for v, root := range map[visitor]string{admin: "", partner: "/portal"} {
		p := v.do("GET", root+subscriptionPath(l.sub.ID))
		p = v.do("GET", p.link(t, `href="([^"]*/reconciliation)"`))
		p.want(t, 200, "Download NDJSON")
		const counts = "Owed 33, Delivered 30, Failed 1, Waiting 1, Not sent 1"
		if got := p.owedCounts(); got != counts {
			t.Errorf("%q: got %s", root, got)
		}
		p.has(t, "1 failed: rejected.", "1 retrying: another attempt follows.", "1 not sent: paused or not selected.",
			`href="`+root+"/deliveries/"+rejected.ID+`"`)
		if diff := cmp.Diff(newest[:25], p.owedRows()); diff != "" {
			t.Errorf("%q, the list (-want +got):\n%s", root, diff)
		}
		older := v.do("GET", p.link(t, `rel="next" href="([^"]*)"`))
		if diff := cmp.Diff(newest[25:], older.owedRows()); diff != "" || older.owedCounts() != counts {
			t.Errorf("%q, the next page with %s (-want +got):\n%s", root, older.owedCounts(), diff)
		}
		failed := v.do("GET", p.link(t, `<a class="bad" href="([^"]*)"`))
		if diff := cmp.Diff(newest[2:3], failed.owedRows()); diff != "" || failed.owedCounts() != counts {
			t.Errorf("%q, failed with %s (-want +got):\n%s", root, failed.owedCounts(), diff)
		}
		if p = v.do("GET", root+path+"?span=yesterday"); p.owedCounts() != "Owed 0, Delivered 0, Failed 0, Waiting 0, Not sent 0" {
			t.Errorf("%q: yesterday: %s", root, p.owedCounts())
		}
		v.do("GET", root+path+"?span=1h").want(t, 400, "Today, Yesterday or 7 d")
		v.do("GET", root+path+"?filter[status]=lost").want(t, 400, "must be one of")
		checkOwedFile(t, w, v.do("GET", older.link(t, `href="([^"]*/reconciliation/export[^"]*)"`)), &l.sub, newest)
	}
	if p := admin.do("GET", "/audit?filter[action]=event.export"); strings.Count(p.body, l.sub.ID) < 2 {
		t.Error("the audit log does not tell which events were exported")
	}
}

// checkOwedFile checks that a file has the rows of the list, as the API returns them.
func checkOwedFile(t *testing.T, w *Web, got page, sub *webhook.Subscription, newest []string) {
	t.Helper()
	got.want(t, 200, "")
	if got.Header.Get("Content-Type") != "application/x-ndjson" ||
		!regexp.MustCompile(`^attachment; filename="events-\d{8}-\d{6}\.ndjson"$`).MatchString(got.Header.Get("Content-Disposition")) {
		t.Errorf("the header of the file is %v", got.Header)
	}
	q, _ := webhook.SubscriptionLog.Parse(url.Values{"from": {"2000-01-01"}, "page[size]": {"100"}})
	pulled, err := w.store.Events().Pull(t.Context(), "acme", sub, &q)
	must(t, err)
	lines := strings.Split(strings.TrimSuffix(got.body, "\n"), "\n")
	if len(lines) != len(newest) || len(pulled.Events) != len(newest) {
		t.Fatalf("the file has %d lines and the API returns %d, want %d", len(lines), len(pulled.Events), len(newest))
	}
	for i, line := range lines {
		var e struct {
			ID             string `json:"id"`
			DeliveryStatus string `json:"delivery_status"`
		}
		must(t, json.Unmarshal([]byte(line), &e))
		n := len(lines) - 1 - i
		if want := pulled.Events[n].AppendLogged(nil, string(pulled.Statuses[n])); e.ID != newest[i] || line != string(want) {
			t.Errorf("line %d is %s, want %s", i+1, line, want)
		}
	}
}

// A page that has no time to count all says so, and leads to a longer count.
func TestReconciliationCountsForAWhile(t *testing.T) {
	w := testWeb(t, nil)
	l := newEventSource(t, w, "https://partner.example/in")
	fields := slices.Repeat([]string{"7"}, 500)
	for range 3 {
		l.publish("content_updated", fields...)
	}
	v := enter(t, w, "acme", webhook.PortalRead)
	path := "/portal" + subscriptionPath(l.sub.ID) + "/reconciliation"
	w.pages.subscriptions.quickCount = 0
	p := v.do("GET", path)
	// One part of at most 1,000 events is counted, fewer if reading them takes its time.
	counts := p.owedCounts()
	n, _, _ := strings.Cut(strings.TrimPrefix(counts, "Owed at least "), ", D")
	if n == "1,500" || counts != "Owed at least "+n+", Delivered 0 or more, Failed 0 or more, Waiting at least "+n+", Not sent 0 or more" {
		t.Errorf("a short count: %s", counts)
	}
	p.has(t, "The newest "+n+" events are counted.", `hx-trigger="load"`)
	more := p.link(t, `hx-get="([^"]*)"`)
	if link := p.link(t, `<a href="([^"]*)">Count the others</a>`); link != more {
		t.Errorf("without JavaScript the count continues at %s, with it at %s", link, more)
	}
	p = v.do("GET", more)
	if got := p.owedCounts(); got != "Owed 1,500, Delivered 0, Failed 0, Waiting 1,500, Not sent 0" {
		t.Errorf("a long count: %s", got)
	}
	p.hasNot(t, "are counted", "hx-trigger=\"load\"")
}
