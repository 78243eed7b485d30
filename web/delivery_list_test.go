package web

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/a-h/templ"

	"service/store"
	"service/test/harness"
	"service/web/ui"
	"service/webhook"
)

// sender is a store with subscriptions whose deliveries the test completes.
type sender struct {
	t *testing.T
	s *store.Store
}

func (s sender) subscribe(program, address string) webhook.Subscription {
	s.t.Helper()
	newProgramToken(s.t, s.s, program)
	return createSubscription(s.t, s.s, program, webhook.SubscriptionFields{URL: &address, Events: &[]string{"content_updated"}})
}

// deliver publishes an event, records a response with a status, and returns its delivery.
func (s sender) deliver(sub webhook.Subscription, status int) string {
	s.t.Helper()
	publishIn(s.t, s.s, sub.ProgramID, "content_updated")
	c := spend(s.t, s.s, sub.ID, store.Credit{Count: 1})
	s.record(c, status)
	return c.ID
}

func (s sender) record(c *store.Claim, status int) {
	s.t.Helper()
	recordStatus(s.t, s.s, c, status, webhook.HealthPolicy{})
}

func sending(t *testing.T) (visitor, sender, *Web) {
	t.Helper()
	v, w := startSignedIn(t, nil)
	return v, sender{t, w.store}, w
}

var rowID = regexp.MustCompile(`<tr role="row" id="d-([0-9a-f-]{36})"`)

// listed returns the IDs of the rows of a page, in order.
func (p page) listed() (ids []string) {
	for _, m := range rowID.FindAllStringSubmatch(p.body, -1) {
		ids = append(ids, m[1])
	}
	return ids
}

func (p page) link(t *testing.T, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(p.body)
	if m == nil {
		t.Fatalf("no link %s on\n%s", pattern, p.body)
	}
	return strings.ReplaceAll(m[1], "&amp;", "&")
}

// The list accepts the filters of the API, and its pages lead forward and back.
func TestDeliveryList(t *testing.T) {
	v, s, _ := sending(t)
	v.do("GET", "/deliveries").want(t, 200, "No deliveries yet.")
	a, b := s.subscribe("acme", "https://a.example/in?key=secret"), s.subscribe("globex", "https://b.example/")
	var all, failed []string
	for i := range 60 {
		sub, status := a, 200
		if i%3 == 0 {
			sub, status = b, 410
		}
		id := s.deliver(sub, status)
		all = append([]string{id}, all...)
		if status == 410 {
			failed = append([]string{id}, failed...)
		}
	}

	first := v.do("GET", "/deliveries")
	first.want(t, 200, "Select all matching deliveries")
	if got := first.listed(); !slices.Equal(got, all[:25]) {
		t.Errorf("the first page has %v", got)
	}
	first.hasNot(t, "key=secret")
	second := v.do("GET", first.link(t, `rel="next" href="([^"]+)"`))
	third := v.do("GET", second.link(t, `rel="next" href="([^"]+)"`))
	s.deliver(a, 200) // must not shift a page
	for name, tt := range map[string]struct {
		p    page
		want []string
	}{
		"second":    {second, all[25:50]},
		"third":     {third, all[50:]},
		"to second": {v.do("GET", third.link(t, `rel="prev" href="([^"]+)"`)), all[25:50]},
		"to first":  {v.do("GET", v.do("GET", second.Request.URL.RequestURI()).link(t, `rel="prev" href="([^"]+)"`)), all[:25]},
	} {
		if got := tt.p.listed(); !slices.Equal(got[:min(len(got), len(tt.want))], tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
	second.hasNot(t, "data-live=") // an older page does not follow what is new

	gone := v.do("GET", "/deliveries?filter[status]=failed&page[size]=100")
	gone.want(t, 200, "rejected")
	if got := gone.listed(); !slices.Contains(got, failed[0]) || len(got) != len(failed) {
		t.Errorf("failed: %d, want %d", len(got), len(failed))
	}
	for query, want := range map[string]int{
		"filter[response_status]=4xx&program=globex&page[size]=100":                 len(failed),
		"filter[response_status]=4xx&program=acme":                                  0,
		"filter[program_id]=globex&program=acme":                                    0,
		"filter[subscription_id]=" + b.ID + "&filter[status]=failed&page[size]=100": len(failed),
		"filter[id]=" + failed[1] + "," + failed[2]:                                 2,
		"filter[attempts_made.from]=2":                                              0,
		"filter[subscription_url]=B.EXAMPLE&filter[status]=failed&page[size]=100":   len(failed),
		"filter[subscription_url]=nowhere":                                          0,
		"span=1h&filter[status]=failed&page[size]=100":                              len(failed),
	} {
		p := v.do("GET", "/deliveries?"+query)
		text := `class="tools"`
		if want == 0 {
			text = "No results."
		}
		p.want(t, 200, text)
		if got := len(p.listed()); got != want {
			t.Errorf("%s: %d rows, want %d", query, got, want)
		}
	}
	v.do("GET", "/deliveries?filter[status]=late").want(t, 400, `href="#filter-status"`)
	v.do("GET", "/deliveries?filter[attempts_made.from]=9").want(t, 400, "must be from 1 to 5")
	v.do("GET", "/deliveries?page[cursor]=x").want(t, 400, "page[cursor]")
}

// formOf reads the confirmation form of a run.
func (p page) formOf(t *testing.T) (action string, fields []string) {
	t.Helper()
	action = p.link(t, `<form class="confirm" method="post" action="([^"]+)"`)
	for _, m := range regexp.MustCompile(`<input type="hidden" name="(run|newest)" value="([^"]+)"`).FindAllStringSubmatch(p.body, -1) {
		fields = append(fields, m[1], m[2])
	}
	return action, fields
}

// Resending or canceling all matches covers every page, and happens once even if the form is sent
// twice.
func TestBulkOverPages(t *testing.T) {
	v, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	const failed = 40
	for range failed {
		s.deliver(sub, 410)
	}
	s.deliver(sub, 200)
	list := v.do("GET", "/deliveries?filter[status]=failed&span=24h")
	chosen := v.do("GET", "/deliveries/redeliver?ticked=1&all=1&filter[id][]="+list.listed()[0]+"&matching="+url.QueryEscape(list.link(t,
		`name="matching" value="([^"]+)"`)))
	chosen.want(t, 303, "")
	ask := v.do("GET", chosen.Header.Get("Location"))
	ask.want(t, 200, "40 deliveries will be resent.")
	action, fields := ask.formOf(t)
	s.deliver(sub, 410) // after the confirmation

	sent := v.send(action, fields...)
	sent.want(t, 303, "")
	run := sent.Header.Get("Location")
	again := v.send(action, fields...)
	again.want(t, 303, "")
	again.wantHeader(t, "Location", run)
	v.do("GET", run).want(t, 200, "Counting matching deliveries…")
	v.ended(w, run).want(t, 200, "40 deliveries resent.")
	v.do("GET", run).has(t, "40 pending")
	v.do("GET", "/bulk-runs").want(t, 200, `href="`+run+`"`)
	v.do("GET", "/audit").want(t, 200, "Completed: 40 deliveries done, 0 deliveries skipped", `href="`+run+`"`)
	pending := func() int { return len(v.do("GET", "/deliveries?filter[status]=pending&page[size]=100").listed()) }
	if got := pending(); got != failed+1 { // including the ping
		t.Errorf("%d are pending, want %d", got, failed+1)
	}
	created := v.do("GET", run).link(t, `href="([^"]*bulk_run_id[^"]*)"`)
	if got := len(v.do("GET", created+"&page[size]=100").listed()); got != failed {
		t.Errorf("%d deliveries were created by the run, want %d", got, failed)
	}

	// The run skips a delivery that was already resent.
	v.do("GET", "/deliveries/redeliver?filter[status]=failed").want(t, 200, "40: already resent")

	ask = v.do("GET", "/deliveries/cancel?filter[status]=pending,failed&filter[event]=content_updated")
	ask.want(t, 200, "40 deliveries will be cancelled.")
	action, fields = ask.formOf(t)
	v.ended(w, v.send(action, fields...).Header.Get("Location")).want(t, 200, "41: already completed")
	if got := pending(); got != 1 {
		t.Errorf("%d are pending, want the ping", got)
	}
	v.do("GET", "/deliveries?filter[status]=failed").want(t, 200, "cancelled")
}

// ended lets the store work until a bulk run has ended, and returns its page.
func (v visitor) ended(w *Web, run string) page {
	v.t.Helper()
	ctx, stop := context.WithCancel(v.t.Context())
	ended := make(chan error)
	go func() { ended <- w.store.BulkRuns().Run(ctx) }()
	id := strings.TrimPrefix(run, "/bulk-runs/")
	harness.WaitFor(v.t, "the end of the bulk run", func() bool {
		r, err := w.store.BulkRuns().Get(ctx, "", id)
		must(v.t, err)
		return r.Status != webhook.BulkRunning
	})
	stop()
	<-ended
	return v.do("GET", run)
}

// The page of a running bulk run follows the run, and can cancel it.
func TestBulkRunPage(t *testing.T) {
	v, s, w := sending(t)
	v.do("GET", "/bulk-runs").want(t, 200, "No bulk runs yet.")
	sub := s.subscribe("acme", "https://a.example/in")
	s.deliver(sub, 410)
	action, fields := v.do("GET", "/deliveries/redeliver?filter[status]=failed&program=acme").formOf(t)
	run := v.send(action, fields...).Header.Get("Location")
	page := v.do("GET", run)
	page.want(t, 200, "running")
	f := followList(v, page.link(t, `hx-sse:connect="([^"]+)"`), page.link(t, `Last-Event-ID&#34;:&#34;([^&]+)&#34;`))
	v.send(run+"/cancel").want(t, 303, "")
	if _, data := f.next("Cancelled after 0 deliveries"); !strings.Contains(data, `id="bulk-run"`) {
		t.Errorf("the stream sent %s", data)
	}
	v.do("GET", run).want(t, 200, "Cancelled after 0 deliveries: 0 resent.")
	v.send(run+"/cancel").want(t, 409, "no longer running")
	v.ended(w, run).hasNot(t, "data-live=")
	v.do("GET", "/bulk-runs?program=acme").want(t, 200, `href="`+run+`"`)
	v.do("GET", "/bulk-runs?program=other").hasNot(t, run)
	v.do("GET", "/bulk-runs/"+webhook.NewID()).want(t, 404, "")
}

// A slow count shows its progress.
func TestBulkCount(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	for range 3 {
		s.deliver(sub, 410)
	}
	id := webhook.NewID()
	f := followList(v, "/deliveries/redeliver/count?filter[status]=failed&newest=99&run="+id, "")
	event, data := f.next("3 deliveries will be resent.")
	if event != countedEvent || !strings.Contains(data, `name="run" value="`+id+`"`) || !strings.Contains(data, `name="newest" value="99"`) {
		t.Errorf("the stream sent %s: %s", event, data)
	}
	v.do("GET", "/deliveries/count?filter[status]=failed").want(t, 200, "Select all 3 matching deliveries")
	v.do("GET", "/deliveries/count?filter[status]=x").want(t, 400, "must be one of")
	v.do("GET", "/deliveries/redeliver/count?run=x").want(t, 400, "not that of a confirmation")
	v.do("GET", "/deliveries/redeliver?count=all&filter[status]=failed").want(t, 200, "3 deliveries will be resent.")

	form := &bulkForm{verb: bulkRedeliver, list: &ui.Listing{List: webhook.AllDeliveryList, Path: "/deliveries"}, id: id, back: "/"}
	form.plan = store.BulkPlan{Matched: 1234, Done: 1200, Share: 0.34, Skipped: map[webhook.BulkSkip]int{webhook.SkipRedelivered: 34}}
	form.list.Query.Sort = webhook.AllDeliveryList.Default
	contains(t, "the page", rendered(t, bulkPage(fixedFrame(), form)), []string{"Counting… 1,234 deliveries match so far",
		"(34 % counted)", "Resend all matching</button>", "34: already resent"}, nil)
}

func TestBulkOfWhatIsTicked(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	one, two := s.deliver(sub, 410), s.deliver(sub, 410)
	s.deliver(sub, 410)
	v.do("GET", "/deliveries/redeliver?ticked=1&filter[id][]="+one+"&filter[id][]="+two).want(t, 200, "2 deliveries will be resent.")
	none := v.do("GET", "/deliveries/redeliver?ticked=1")
	none.want(t, 303, "")
	v.do("GET", none.Header.Get("Location")).want(t, 200, "No delivery is selected.")

	ask := v.do("GET", "/deliveries/cancel?filter[id]="+one)
	ask.want(t, 200, "No matching delivery can be cancelled.")
	v.do("GET", "/deliveries/cancel?filter[status]=nothing").want(t, 400, "must be one of")
	v.do("GET", "/deliveries/cancel?all=1&matching=%25zz").want(t, 400, "invalid escape")
	if to := v.do("GET", "/deliveries/cancel?all=1&matching="+url.QueryEscape(
		"//elsewhere.example")).Header.Get("Location"); !strings.HasPrefix(to, "/deliveries/cancel?") {
		t.Errorf("the choice of all leads to %s", to)
	}
	v.send("/deliveries/redeliver?filter[id]="+one).want(t, 400, "does not contain the ID of its run")
	v.send("/deliveries/redeliver", "run", webhook.NewID(), "newest", "x").want(t, 400, "must be a number")
	v.send("/deliveries/redeliver?filter[id]=x", "run", webhook.NewID()).want(t, 400, "must be UUIDs")
}

// An export contains all matches regardless of the page, and no cell that a spreadsheet would
// evaluate.
func TestDeliveryExport(t *testing.T) {
	v, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in?key=secret")
	var want []string
	for range webhook.MaxPageSize + 3 {
		want = append([]string{s.deliver(sub, 410)}, want...)
	}
	lines := v.do("GET", "/deliveries/export?format=ndjson&filter[status]=failed&page[size]=1")
	lines.want(t, 200, `"subscription_url":"https://a.example/in?…"`)
	if got := lines.Header.Get("Content-Disposition"); !regexp.MustCompile(
		`^attachment; filename="deliveries-\d{8}-\d{6}\.ndjson"$`).MatchString(got) {
		t.Errorf("Content-Disposition: %s", got)
	}
	var got []string
	for scan := bufio.NewScanner(strings.NewReader(lines.body)); scan.Scan(); {
		var e struct {
			ID, Status     string
			ResponseStatus int   `json:"response_status"`
			DurationMS     int64 `json:"duration_ms"`
			MaxAttempts    int   `json:"max_attempts"`
			Events         []webhook.EventRef
		}
		if err := json.Unmarshal(scan.Bytes(), &e); err != nil || e.Status != "failed" || e.ResponseStatus != 410 || e.DurationMS != 12 ||
			e.MaxAttempts != webhook.MaxAttempts || len(e.Events) != 1 {
			t.Fatalf("%s: %v", scan.Text(), err)
		}
		got = append(got, e.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d lines, want %d in order", len(got), len(want))
	}
	columns := []string{
		"id", "program_id", "subscription_id", "subscription_url", "status", "failure_reason", "attempts_made", "next_attempt_at",
		"response_status", "error", "duration_ms", "events", "event_ids", "redelivery_of", "split_of", "recovered_at",
		"created_at", "completed_at",
	}
	table, err := csv.NewReader(strings.NewReader(v.do("GET", "/deliveries/export?format=csv&filter[status]=failed").body)).ReadAll()
	if err != nil || len(table) != len(want)+1 || !slices.Equal(table[0], columns) || table[1][0] != want[0] ||
		table[1][8] != "410" {
		t.Errorf("CSV: %d lines (%v)", len(table), err)
	}
	v.do("GET", "/deliveries/export?format=xls").want(t, 400, "must be ndjson or csv")
	v.do("HEAD", "/deliveries/export?format=csv").want(t, 200, "")
	v.do("GET", "/audit").want(t, 200, "csv of ?filter[status]=failed")
	entries, _, err := w.store.Audit().Page(t.Context(), &webhook.ListQuery{Sort: webhook.AuditList.Default, Size: 10,
		Filters: map[string][]string{"action": {string(webhook.ActionDeliveryExport)}}})
	if err != nil || len(entries) != 2 {
		t.Errorf("%d exports are in the audit (%v), want 2", len(entries), err)
	}
	for text, want := range map[string]string{"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\tx": "'\tx", "a=b": "a=b", "": ""} {
		if got := escapeFormula(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// followed is an open stream of a page.
type followed struct {
	t    *testing.T
	body io.ReadCloser
	scan *bufio.Scanner
}

// followList opens the stream of a list or of another page, after an event ID that may be empty.
func followList(v visitor, address, point string) *followed {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), harness.Timeout())
	v.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", v.base+address, nil)
	must(v.t, err)
	r.Header.Set("Last-Event-ID", point)
	resp, err := v.client.Do(r)
	must(v.t, err)
	v.t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		v.t.Fatalf("%s %s", resp.Status, got)
	}
	f := &followed{t: v.t, body: resp.Body, scan: bufio.NewScanner(resp.Body)}
	f.scan.Buffer(nil, 1<<20)
	return f
}

// next returns the next message that contains a text, and the message's ID.
func (f *followed) next(has string) (id, data string) {
	f.t.Helper()
	for f.scan.Scan() {
		switch line := f.scan.Text(); {
		case strings.HasPrefix(line, "id: "):
			id = line[4:]
		case strings.HasPrefix(line, "data: "):
			data += line[6:] + "\n"
		case line == "" && strings.Contains(data, has):
			return id, data
		case line == "":
			id, data = "", ""
		}
	}
	f.t.Fatalf("the stream ended before %q: %v", has, f.scan.Err())
	return "", ""
}

// The stream sends new matching deliveries, and after a reconnection those it has missed.
func TestDeliveryStream(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	s.deliver(sub, 410)
	from := v.do("GET", "/deliveries?filter[status]=failed")
	address := from.link(t, `hx-sse:connect="([^"]+)"`)
	point := from.link(t, `Last-Event-ID&#34;:&#34;([\d-]+)&#34;`)

	s.deliver(sub, 200) // does not match
	f := followList(v, address, point)
	one := s.deliver(sub, 410)
	id, data := f.next(`data-count="1"`)
	if !strings.Contains(data, `id="d-`+one+`"`) || strings.Count(data, "data-row") != 1+strings.Count(data, "data-update")+strings.Count(data,
		"data-late") {
		t.Fatalf("got %s", data)
	}
	f.body.Close()
	two := s.deliver(sub, 410) // while disconnected
	f = followList(v, address, id)
	if _, data = f.next(`data-count="1"`); !strings.Contains(data, `id="d-`+two+`"`) {
		t.Fatalf("after a cut: %s", data)
	}
	if _, err := url.Parse(address); err != nil || !strings.HasPrefix(address, "/deliveries/stream?") {
		t.Errorf("the stream's address is %s", address)
	}
	v.do("GET", "/deliveries/stream?filter[status]=x").want(t, 400, "must be one of")
}

// The stream sends only rows of the page that have changed, marked as changed, including those that
// changed while it was disconnected.
func TestDeliveryStreamChanges(t *testing.T) {
	v, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	other := s.subscribe("other", "https://b.example/in")
	page := v.do("GET", "/deliveries?program=acme")
	address := page.link(t, `hx-sse:connect="([^"]+)"`)
	point := page.link(t, `Last-Event-ID&#34;:&#34;([\d-]+)&#34;`)

	f := followList(v, address, point)
	elsewhere, c := claimPing(t, w, other.ID), claimPing(t, w, sub.ID)
	id, data := f.next("1 of 5 attempts")
	if !strings.Contains(data, `id="d-`+c.ID+`"`) || !strings.Contains(data, "data-update") || strings.Contains(data, elsewhere.ID) {
		t.Fatalf("a change: %s", data)
	}
	f.body.Close()
	s.record(c, 200)
	f = followList(v, address, id)
	if _, data = f.next("state-success"); !strings.Contains(data, `id="d-`+c.ID+`"`) || !strings.Contains(data, "data-update") {
		t.Fatalf("a change while it was cut: %s", data)
	}
}

// The stream sends a delivery that starts to match the filter when it changes, even if that
// happened just before, and the page inserts it by its time.
func TestDeliveryStreamLate(t *testing.T) {
	v, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	c := claimPing(t, w, sub.ID)
	newer := s.deliver(sub, 410)
	page := v.do("GET", "/deliveries?filter[status]=failed")
	page.want(t, 200, newer)
	page.hasNot(t, c.ID)
	address := page.link(t, `hx-sse:connect="([^"]+)"`)
	point := page.link(t, `Last-Event-ID&#34;:&#34;([\d-]+)&#34;`)

	f := followList(v, address, point)
	next := s.deliver(sub, 200)
	s.record(c, 410)
	id, data := f.next(c.ID)
	if !strings.Contains(data, `id="d-`+c.ID+`" data-row data-late`) || !strings.Contains(data, `data-count="0"`) ||
		strings.Contains(data, next) {
		t.Fatalf("a delivery that failed later: got %s", data)
	}
	f.body.Close()
	if f = followList(v, address, point); !strings.Contains(id, "-") {
		t.Errorf("the id of the update is %q", id)
	}
	if _, data = f.next(c.ID); !strings.Contains(data, `id="d-`+c.ID+`" data-row data-late`) {
		t.Fatalf("a delivery that failed before the stream began: got %s", data)
	}
	f = followList(v, "/deliveries/stream?filter[event]=ping", id)
	if _, data = f.next(c.ID); strings.Contains(data, "data-late") {
		t.Fatalf("without a filter that a change concerns: got %s", data)
	}
}

// failedLiveList returns the live list of failed deliveries.
func failedLiveList(t *testing.T, w *Web) *liveList {
	t.Helper()
	q := webhook.ListQuery{Sort: webhook.AllDeliveryList.Default, Size: 25, Filters: map[string][]string{"status": {"failed"}}}
	l, err := w.pages.deliveries.newLiveList(t.Context(), &q, "")
	must(t, err)
	return l
}

// The stream sends a delivery that was stored while the page followed the list and that fails
// later.
func TestLiveListLate(t *testing.T) {
	_, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	s.deliver(sub, 410)
	l := failedLiveList(t, w)
	update := func(late int) {
		t.Helper()
		newest, err := w.store.Deliveries().Newest(t.Context())
		must(t, err)
		u, err := l.update(t.Context(), map[int64]struct{}{newest: {}})
		if err != nil || u.count != 0 || len(u.late) != late {
			t.Fatalf("got %d new and %d late rows, want none and %d (%v)", u.count, len(u.late), late, err)
		}
	}
	update(1) // the page may lack it: it completed just before
	other := s.subscribe("acme", "https://b.example/in")
	c := claimPing(t, w, other.ID)
	update(0)
	s.record(c, 410)
	update(1)
	update(0)
}

// The stream sends a delivery that fails after the stream has read the rows of the page and before
// the first update.
func TestLiveListLateAtTheStart(t *testing.T) {
	_, s, w := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	c := claimPing(t, w, sub.ID)
	watcher := w.store.WatchDeliveries()
	defer watcher.Close()
	l := failedLiveList(t, w)
	s.record(c, 410)
	for i, want := range []int{1, 0} {
		u, err := l.update(t.Context(), watcher.Take().Deliveries)
		if err != nil || len(u.late) != want {
			t.Fatalf("update %d: got %d late rows, want %d (%v)", i+1, len(u.late), want, err)
		}
	}
}

// A list shows the number of rows stored since its first page was loaded. Its links keep the mark
// of that page.
func TestNewRows(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	for range 3 {
		s.deliver(sub, 410)
	}
	for _, c := range []struct{ path, query string }{
		{"/deliveries", "page[size]=1&filter[status]=failed"}, {"/events", "page[size]=1"},
		{"/events", "page[size]=1&program=acme&filter[name]=content_updated"},
		{"/subscriptions", "page[size]=1&sort=-created_at"}, {"/audit", "page[size]=1"},
	} {
		s.subscribe("acme", "https://b.example/in") // a second one for the list of subscriptions
		v.do("GET", "/events/export?format=csv")    // an entry for the audit log
		first := v.do("GET", c.path+"?"+c.query)
		first.want(t, 200, "")
		second := first.link(t, `rel="next" href="([^"]+)"`)
		v.do("GET", second).hasNot(t, " new · Show")
		s.deliver(sub, 410)
		s.deliver(sub, 200)
		s.subscribe("acme", "https://c.example/in")
		v.do("GET", "/events/export?format=csv")
		want := map[string]string{"/deliveries": "1 new · Show", "/events": "2 new · Show", "/subscriptions": "1 new · Show",
			"/audit": "1 new · Show"}[c.path]
		page := v.do("GET", second)
		page.want(t, 200, want)
		part := page.link(t, `id="new-rows" data-part="([^"]+)"`)
		v.do("GET", part).want(t, 200, want)
		to := page.link(t, `<a class="choice" href="([^"]+)">`+want)
		if got := v.do("GET", part).link(t, `<a class="choice" href="([^"]+)">`+want); got != to || !strings.Contains(to, "page[size]=1") {
			t.Errorf("%s: the first page is at %s, and later at %s", c.path, to, got)
		}
		shown := v.do("GET", to)
		shown.hasNot(t, " new · Show")
		third := page.link(t, `rel="next" href="([^"]+)"`)
		v.do("GET", third).want(t, 200, want)
	}
	v.do("GET", "/deliveries/arrivals?sort=created_at&since=1").want(t, 400, "newest rows first")
	v.do("GET", "/events/arrivals?filter[x]=1").want(t, 400, "")
	v.do("GET", "/events/arrivals?since=-5").want(t, 200, `id="new-rows"`)
}

// Deliveries beyond what the list can show are counted but not read, with and without a filter.
// Rows are sent again once the rate falls. With a filter that a change can affect, the count is a
// lower bound.
func TestDeliveryStreamCounts(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	for range liveRows + 4 { // including a ping
		s.deliver(sub, 200)
	}
	for i, address := range []string{"?program=acme", "", "?filter[status]=success"} {
		want := liveRows + 5 + i
		if strings.Contains(address, "success") {
			want--
		}
		f := followList(v, "/deliveries/stream"+address, "0-0-0")
		_, data := f.next("data-live-batch")
		if !strings.Contains(data, fmt.Sprintf(`data-count="%d"`, want)) || strings.Contains(data, "data-row") ||
			strings.Contains(data, "data-more") != strings.Contains(address, "status") {
			t.Errorf("%s: got %s", address, data)
		}
		one := s.deliver(sub, 200)
		if _, data = f.next("data-row"); !strings.Contains(data, `id="d-`+one+`"`) || strings.Count(data, "data-row") != 1+strings.Count(data,
			"data-update")+strings.Count(data, "data-late") {
			t.Errorf("%s: got %s", address, data)
		}
		f.body.Close()
	}
}

// The link to older rows leads to the rows after the last remaining one, including those that live
// updates removed from the end.
func TestDeliveriesBehind(t *testing.T) {
	v, s, _ := sending(t)
	sub := s.subscribe("acme", "https://a.example/in")
	var ids []string
	for range 5 {
		ids = append(ids, s.deliver(sub, 410))
	}
	for _, query := range []string{"?filter[status]=failed&behind=", "?filter[status]=failed&span=24h&program=acme&behind="} {
		to := v.do("GET", "/deliveries"+query+ids[2])
		to.want(t, 303, "")
		if got := v.do("GET", to.Header.Get("Location")).listed(); !slices.Equal(got, []string{ids[1], ids[0]}) {
			t.Errorf("%s: got %v, want %v", query, got, []string{ids[1], ids[0]})
		}
	}
	v.do("GET", "/deliveries?behind="+webhook.NewID()).want(t, 404, "")
	v.do("GET", "/deliveries").has(t, `<p class="actions" data-live-older hidden>`)
}

// Text from outside is escaped in the list, in the confirmation of a run, and in the stream.
func TestHostileDeliveries(t *testing.T) {
	const hostile = "\"'><script>alert(1)</script>\u202e\x00<a href=\"javascript:alert(1)\" onclick=alert(1)>"
	d := deliveryRow{url: hostile}
	d.ID, d.SubscriptionID, d.ProgramID, d.Status = webhook.NewID(), webhook.NewID(), hostile, webhook.StatusFailed
	d.Events = []webhook.EventRef{{ID: hostile, Name: hostile}, {ID: hostile, Name: hostile + "2"}}
	v := &ui.Listing{List: webhook.AllDeliveryList, Path: "/deliveries", Values: url.Values{"filter[event]": {hostile}}}
	v.Query = webhook.ListQuery{Sort: webhook.AllDeliveryList.Default, Filters: map[string][]string{"event": {hostile}}, Size: 25}
	form := &bulkForm{verb: bulkCancel, list: v, selection: selectionOf(v.List, &v.Query, hostile), back: v.Selection("/deliveries"), id: d.ID}
	form.plan = store.BulkPlan{Matched: 2, Done: 1, Complete: true, Skipped: map[webhook.BulkSkip]int{webhook.SkipPing: 1}}
	for name, c := range map[string]templ.Component{
		"list":   deliveriesPage(fixedFrame(), &deliveryList{list: v, rows: []deliveryRow{d}, next: hostile}),
		"empty":  deliveriesPage(fixedFrame(), &deliveryList{list: v, failed: d.ID}),
		"form":   bulkPage(fixedFrame(), form),
		"stream": liveBatch(ui.Clock{}, &liveUpdate{count: 1, fresh: []deliveryRow{d}, changed: []deliveryRow{d}}),
		"run": bulkRunPage(fixedFrame(), &bulkRunRecord{BulkRun: webhook.BulkRun{ID: d.ID, Stopped: hostile, Admin: hostile}, verb: bulkCancel,
			selection: form.selection, matching: "/"}),
		"runs": bulkRunsPage(fixedFrame(), []*bulkRunRecord{{BulkRun: webhook.BulkRun{ID: d.ID, ProgramID: hostile, Admin: hostile},
			verb: bulkCancel}}),
	} {
		shown := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(rendered(t, c), "") // without attribute values, which are not displayed
		contains(t, name, shown, nil, []string{"<script>a", "onclick=alert(1)>", "\u202e", "\x00"})
	}
}

// A URL filter that matches too many subscriptions is rejected at its field, by the list, the bulk
// actions and the exports, before anything happens.
func TestTooManyURLs(t *testing.T) {
	v, s, w := sending(t)
	one := s.subscribe("acme", "https://a.example/in")
	db := harness.OpenDatabase(t, w.store.Dir())
	defer db.Close()
	tx, err := db.Begin()
	must(t, err)
	do := func(query string, args ...any) {
		t.Helper()
		_, err := tx.Exec(query, args...)
		must(t, err)
	}
	do("CREATE TEMP TABLE one AS SELECT * FROM subscriptions WHERE id = ?", one.ID)
	for i := range 1000 {
		do("UPDATE one SET num = ?, id = ?", 1000+i, fmt.Sprintf("00000000-0000-7000-8000-%012x", i))
		do("INSERT INTO subscriptions SELECT * FROM one")
	}
	must(t, tx.Commit())
	const query, refused = "filter[subscription_url]=a.example", "matches more than 1000 subscriptions"
	for _, path := range []string{"/deliveries?", "/deliveries/redeliver?", "/deliveries/export?format=csv&"} {
		v.do("GET", path+query).want(t, 400, refused)
	}
	v.do("GET", "/deliveries?"+query).has(t, `href="#filter-subscription_url"`)
	v.post("/deliveries/redeliver?"+query, "run="+webhook.NewID()).want(t, 400, refused)
}
