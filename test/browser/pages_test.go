package browser

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/store"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

var (
	pagesDeliveries = flag.Int("pages.deliveries", 10_000, "number of deliveries in the data of TestPages")
	pagesTimes      = flag.Int("pages.times", 1, "number of requests to each page; from 20 on their time is checked")
	pagesRate       = flag.Int("pages.rate", 50, "events published and delivered per second during the run")
	pagesData       = flag.String("pages.data", "", "folder that keeps the data of TestPages for another run; temporary when empty")
	pagesOnly       = flag.String("pages.only", "", "regular expression for the names of the pages to request; all when empty")
)

const (
	pagesTime  = 50 * time.Millisecond // limit of a page's response time, 95th percentile
	pagesFirst = 60 << 10              // limit of a first load in bytes, compressed, with style sheet and script

	pagesPrograms = 50
	pagesEmail    = "ana@example.com"
	pagesPassword = "correct horse battery staple"
)

// TestPages requests every page of the admin UI, and lists with expensive filters, while
// events are published and delivered. It checks rows and size. It always prints the response
// times, and checks them with 20 requests or more:
//
//	go test ./test/browser -run TestPages -v -timeout 30m -pages.deliveries 1000000 -pages.times 40 -pages.rate 500
//
// A time covers the whole response, as a client on the same machine sees it. cpu is the
// processor time of the service per request, including the load at that time.
func TestPages(t *testing.T) {
	harness.Long(t)
	dir := *pagesData
	if dir == "" {
		dir = t.TempDir()
	}
	dir = filepath.Join(dir, "data")
	if _, err := os.Stat(dir); err != nil {
		began := time.Now()
		fillPages(t, dir, *pagesDeliveries)
		t.Logf("%d deliveries stored in %s", *pagesDeliveries, time.Since(began).Round(time.Millisecond))
	}
	db := openPages(t, dir)
	sample := samplePages(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	in := harness.NewInstance(t, harness.Build(t), dir, "--max-subscriptions", "0", "--log-level", "warn")
	load := in.Token("load")
	run := in.MustStart()
	t.Logf("ready %s after the start", run.Ready.Sub(run.Started).Round(time.Millisecond))
	l := startPagesLoad(t, in, load)
	b := pageVisitor{t: t, base: in.URL(), assets: make(map[string]int), cpu: func() time.Duration {
		return harness.ProcessorTime(t,
			run.PID())
	}}
	b.signIn()
	var only *regexp.Regexp
	if *pagesOnly != "" {
		only = regexp.MustCompile(*pagesOnly)
	}
	for _, p := range pagesOf(sample) {
		if only == nil || only.MatchString(p.name) {
			b.measure(&p)
		}
	}
	rate := l.end(t)
	if len(b.nothing) > 0 {
		t.Logf("baseline page /preferences: p50 %.1f ms, p95 %.1f ms", inMillis(harness.Percentile(b.nothing, 50)),
			inMillis(harness.Percentile(b.nothing, 95)))
	}
	t.Logf("load: %.0f events/s published and delivered", rate)
	if status := in.Stop(run); status != harness.ExitOK {
		t.Errorf("got exit status %d, want %d", status, harness.ExitOK)
	}
}

// pagesLoad publishes events at a steady rate to a receiver that accepts them.
type pagesLoad struct {
	in         *harness.Instance
	token      string
	cancel     context.CancelFunc
	publishers sync.WaitGroup
	pending    sync.WaitGroup // events that the receiver has not got yet
	published  atomic.Int64
	began      time.Time
}

func startPagesLoad(t *testing.T, in *harness.Instance, token string) *pagesLoad {
	t.Helper()
	l := &pagesLoad{in: in, token: token, began: time.Now()}
	in.Subscribe(token, harness.Subscription{URL: harness.Listen(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for range harness.Numbers(body) {
			l.pending.Done()
		}
	})), Events: harness.Events(harness.NumberedEvent)})
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	const publishers = 8
	for range publishers {
		l.publishers.Go(func() { l.publish(ctx, publishers*time.Second/time.Duration(*pagesRate)) })
	}
	return l
}

// publish publishes an event at each tick until ctx ends.
func (l *pagesLoad) publish(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	base, _ := l.in.AwaitURL(ctx)
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		l.pending.Add(1)
		status, err := l.in.Call(context.WithoutCancel(ctx), l.token, "POST", base+"/v2/events",
			harness.AppendEvent(nil, int(l.published.Add(1))), nil)
		if err != nil || status != http.StatusCreated {
			l.in.TB.Errorf("publish: status %d, %v", status, err)
			l.pending.Done()
			return
		}
	}
}

// end stops the publishers, waits until all events have arrived, and returns the rate in
// events per second.
func (l *pagesLoad) end(t *testing.T) float64 {
	t.Helper()
	l.cancel()
	l.publishers.Wait()
	rate := float64(l.published.Load()) / time.Since(l.began).Seconds()
	delivered := make(chan struct{})
	go func() {
		l.pending.Wait()
		close(delivered)
	}()
	harness.Receive(t, "the arrival of all events", delivered)
	return rate
}

// page is a page to request, with its expectations.
type page struct {
	name, path string
	rows       int  // minimum number of rows, over all pages that walk visits
	walk       bool // follow the pagination until rows are found
	stream     bool // an endless or long response: read only its header
}

// pageSample contains the IDs in the URLs of the pages.
type pageSample struct {
	deliveries  int
	now         time.Time
	large       string // a delivery with five attempts and long responses
	plain       string // a delivery that succeeded at the first attempt, in the middle
	big         string // the program with the most events
	backlog     string // a failing subscription with a backlog
	incident    string // the incident of backlog
	busy        string // a subscription with many deliveries
	fan         string // an event with a delivery to every subscription of fanProgram
	fanProgram  string
	someEvent   string
	token       string
	rareProgram string
}

// at returns a time in the past for a URL.
func (s *pageSample) at(ago time.Duration) string {
	return url.QueryEscape(webhook.FormatTime(s.now.Add(-ago)))
}

func pagesOf(s *pageSample) []page {
	all := []page{
		{name: "overview", path: "/"},
		{name: "overview, failed", path: "/?filter[status]=failed"},
		{name: "overview of a program", path: "/?program=" + s.big},
		{name: "status", path: "/status"},
		{name: "incidents", path: "/incidents", rows: 1}, // a group
		{name: "incidents, open", path: "/incidents?filter[status]=open", rows: 5},
		{name: "incidents, resolved", path: "/incidents?filter[status]=resolved"},
		{name: "incidents, of a program", path: "/incidents?program=" + s.big + "&filter[failing_reason]=unreachable", rows: 5},
		{name: "one incident", path: "/incidents/" + s.incident},
		{name: "subscriptions", path: "/subscriptions", rows: 25},
		{name: "subscriptions, oldest first, 100", path: "/subscriptions?sort=created_at&page[size]=100", rows: 100},
		{name: "subscriptions, failing", path: "/subscriptions?filter[status]=failing&page[size]=100", rows: 5},
		{name: "subscriptions, disabled", path: "/subscriptions?filter[status]=disabled"},
		{name: "subscriptions, healthy", path: "/subscriptions?filter[status]=healthy", rows: 25},
		{name: "subscriptions, paused", path: "/subscriptions?filter[active]=false", rows: 1, walk: true},
		{name: "subscriptions, deleted", path: "/subscriptions?filter[deleted]=true", rows: 1, walk: true},
		{name: "subscriptions, with losses", path: "/subscriptions?filter[losses]=true"},
		{name: "subscriptions, by event", path: "/subscriptions?filter[event]=channel_created", rows: 25},
		{name: "subscriptions, an event without subscribers", path: "/subscriptions?filter[event]=user_notification_deleted"},
		{name: "subscriptions, by name", path: "/subscriptions?filter[search]=nowhere.example"},
		{name: "subscriptions, of a program", path: "/subscriptions?program=" + s.big + "&page[size]=100", rows: 100},
		{name: "subscription, busy", path: "/subscriptions/" + s.busy, rows: 5},
		{name: "subscription, busy, 7 d", path: "/subscriptions/" + s.busy + "?span=7d", rows: 5},
		{name: "subscription with a backlog", path: "/subscriptions/" + s.backlog, rows: 5},
		{name: "subscription, edit", path: "/subscriptions/" + s.busy + "/edit"},
		{name: "subscription, replay", path: "/subscriptions/" + s.busy + "/replay"},
		{name: "subscription, delete", path: "/subscriptions/" + s.backlog + "/delete"},
		{name: "subscription, new", path: "/subscriptions/new"},
		{name: "one delivery", path: "/deliveries/" + s.plain},
		{name: "one delivery, five long answers", path: "/deliveries/" + s.large},
		{name: "one delivery, redeliver", path: "/deliveries/" + s.large + "/redeliver"},
		{name: "one delivery, its bytes", path: "/deliveries/" + s.large + "/body.json.txt"},
		{name: "one delivery, stream", path: "/deliveries/" + s.plain + "/stream", stream: true},
		{name: "deliveries, stream", path: "/deliveries/stream", stream: true},
		{name: "bulk redeliver, failed", path: "/deliveries/redeliver?filter[status]=failed"},
		{name: "bulk redeliver, failed of a program", path: "/deliveries/redeliver?filter[status]=failed&program=" + s.big},
		{name: "bulk redeliver, everything", path: "/deliveries/redeliver"},
		{name: "bulk redeliver, rare event", path: "/deliveries/redeliver?filter[event]=channel_created"},
		{name: "bulk redeliver, nothing matches", path: "/deliveries/redeliver?filter[status]=success&filter[response_status]=299"},
		{name: "bulk cancel, waiting", path: "/deliveries/cancel?filter[status]=retryable"},
		{name: "export of deliveries, NDJSON", path: "/deliveries/export?format=ndjson", stream: true},
		{name: "export of deliveries, CSV, failed", path: "/deliveries/export?format=csv&filter[status]=failed", stream: true},
		{name: "events", path: "/events", rows: 25},
		{name: "events, of a program", path: "/events?program=" + s.big, rows: 25},
		{name: "events, oldest first", path: "/events?sort=received_at&page[size]=100", rows: 100},
		{name: "events, from a time in the middle", path: "/events?filter[received_at.to]=" + s.at(12*24*time.Hour), rows: 25},
		{name: "events, common name", path: "/events?filter[name]=content_updated", rows: 25},
		{name: "events, rare name", path: "/events?filter[name]=channel_created", rows: 1, walk: true},
		{name: "events, old name", path: "/events?filter[name]=content_deleted", rows: 1, walk: true},
		{name: "events, unknown name", path: "/events?filter[name]=user_notification_deleted"},
		{name: "events, rare name of a program", path: "/events?filter[name]=channel_created&program=" + s.rareProgram, rows: 1},
		{name: "events, by id", path: "/events?filter[id]=" + s.someEvent, rows: 1},
		{name: "events, by timestamp", path: "/events?filter[timestamp.to]=2000-01-01"},
		{name: "events, by timestamp, of a program", path: "/events?filter[timestamp.to]=2000-01-01&program=" + s.big},
		{name: "one event", path: "/events/" + s.big + "/" + s.someEvent},
		{name: "one event, to very many", path: "/events/" + s.fanProgram + "/" + s.fan},
		{name: "export of events", path: "/events/export?format=ndjson", stream: true},
		{name: "export of events, CSV, rare name", path: "/events/export?format=csv&filter[name]=channel_created", stream: true},
		{name: "publish an event", path: "/events/publish?program=" + s.big},
		{name: "event types", path: "/event-types"},
		{name: "event types of a program", path: "/event-types?program=" + s.fanProgram},
		{name: "one event type", path: "/event-types/content_updated"},
		{name: "one event type without subscribers", path: "/event-types/user_notification_deleted"},
	}
	return slices.Concat(all, settingPages(s), deliveryLists(s))
}

// settingPages returns the pages of tokens, system, audit, search and account.
func settingPages(s *pageSample) []page {
	return []page{
		{name: "tokens", path: "/tokens"},
		{name: "tokens, revoked", path: "/tokens?filter[state]=revoked"},
		{name: "tokens, last page", path: "/tokens?page[number]=30"},
		{name: "one token", path: "/tokens/" + s.token},
		{name: "token, new", path: "/tokens/new"},
		{name: "system", path: "/system"},
		{name: "audit", path: "/audit", rows: 25},
		{name: "audit, an action", path: "/audit?filter[action]=token.revoke"},
		{name: "audit, an unknown admin", path: "/audit?filter[admin]=unknown@example.com"},
		{name: "audit, a program", path: "/audit?filter[program_id]=nowhere"},
		{name: "find, a delivery", path: "/find?q=" + s.plain[:18]},
		{name: "find, many", path: "/find?q=0"},
		{name: "preferences", path: "/preferences"},
		{name: "account", path: "/account"},
	}
}

// deliveryLists returns the lists of deliveries by span and by each filter: of all programs,
// of a large program and, where that may be slow, of a small one.
func deliveryLists(s *pageSample) (all []page) {
	for _, span := range []string{"1h", "24h", "7d", "30d"} {
		all = append(all,
			page{name: "deliveries, " + span, path: "/deliveries?span=" + span, rows: 1},
			page{name: "events, " + span, path: "/events?span=" + span, rows: 1})
	}
	for _, d := range []struct {
		name, filter string
		rows         int
		walk         bool
	}{
		{"", "", 25, false},
		{"100 of them", "page[size]=100", 100, false},
		{"oldest first", "sort=created_at", 25, false},
		{"deep", "filter[created_at.to]=" + s.at(12*24*time.Hour), 25, false},
		{"of a span long ago", "filter[created_at.from]=" + s.at(20*24*time.Hour) + "&filter[created_at.to]=" + s.at(20*24*time.Hour-time.Hour),
			1, false},
		{"success", "filter[status]=success", 25, false},
		{"failed", "filter[status]=failed", 25, false},
		{"retryable", "filter[status]=retryable", 25, false},
		{"pending", "filter[status]=pending", 0, false},
		{"pending or success", "filter[status]=pending,success", 25, false},
		{"class of responses", "filter[response_status]=5xx", 25, false},
		{"rare response", "filter[response_status]=404", 1, false},
		{"rare response and status", "filter[response_status]=404&filter[status]=failed&filter[attempts_made.from]=1", 1, false},
		{"rare success", "filter[response_status]=202", 1, true},
		{"common error", "filter[error]=timeout", 25, false},
		{"rare error", "filter[error]=tls", 1, false},
		{"attempts", "filter[attempts_made.from]=4", 25, false},
		{"attempts that succeeded", "filter[attempts_made.from]=4&filter[status]=success", 1, true},
		{"common event", "filter[event]=content_updated", 25, false},
		{"rare event", "filter[event]=channel_created", 1, true},
		{"old event", "filter[event]=content_deleted", 1, true},
		{"unknown event", "filter[event]=user_notification_deleted", 0, false},
		{"pings", "filter[event]=ping", 0, false},
		{"failed with a rare event", "filter[event]=channel_created&filter[status]=failed", 0, false},
		{"failed with a common event", "filter[event]=content_updated&filter[status]=failed", 25, false},
		{"due", "filter[next_attempt_at.from]=2000-01-01", 25, false},
		{"completed long ago", "filter[completed_at.to]=" + s.at(23*24*time.Hour), 1, true},
		{"by id", "filter[id]=" + s.plain, 1, false},
		{"redeliveries of one", "filter[redelivery_of]=" + s.plain, 0, false},
		{"of a replay", "filter[replay_id]=" + s.plain, 0, false},
		{"of a subscription", "filter[subscription_id]=" + s.busy, 5, false},
		{"failed of a subscription", "filter[status]=failed&filter[subscription_id]=" + s.busy, 1, false},
		{"rare event of a subscription", "filter[event]=channel_created&filter[subscription_id]=" + s.busy, 0, false},
		{"nothing matches", "filter[status]=success&filter[response_status]=299", 0, false},
		{"a long ago, nothing matches", "filter[status]=success&filter[response_status]=299&filter[created_at.to]=" + s.at(12*24*time.Hour), 0,
			false},
	} {
		path := "/deliveries"
		if d.filter != "" {
			path += "?" + d.filter
		}
		name := "deliveries"
		if d.name != "" {
			name += ", " + d.name
		}
		all = append(all, page{name: name, path: path, rows: d.rows, walk: d.walk})
		joint := map[bool]string{true: "&", false: "?"}[d.filter != ""]
		all = append(all, page{name: name + ", of a program", path: path + joint + "program=" + s.big})
		if d.walk || d.filter == "" {
			all = append(all, page{name: name + ", of a small program", path: path + joint + "program=" + s.rareProgram})
		}
	}
	return all
}

// pageVisitor is a signed-in admin whose client has no cache.
type pageVisitor struct {
	t      *testing.T
	base   string
	client *http.Client
	assets map[string]int // compressed sizes, by path

	cpu     func() time.Duration
	nothing []time.Duration // times of a baseline page that reads almost nothing
}

func (b *pageVisitor) signIn() {
	b.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.client = &http.Client{Jar: jar, Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 4}}
	b.t.Cleanup(b.client.CloseIdleConnections)
	resp, err := b.client.PostForm(b.base+"/sign-in", url.Values{"email": {pagesEmail}, "password": {pagesPassword}})
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Request.URL.Path != "/" {
		b.t.Fatalf("sign in: got status %d at %s, want 200 at /", resp.StatusCode, resp.Request.URL)
	}
}

var (
	pageAsset = regexp.MustCompile(`(?:href|src)="(/assets/[^"]+)"`)
	pageOlder = regexp.MustCompile(`<a class="action" rel="next" href="([^"]+)"`)
	pageRow   = regexp.MustCompile(`<(tr|li)[^>]*\bdata-row\b`)
)

// measure requests a page pagesTimes times, checks it and logs its figures.
func (b *pageVisitor) measure(p *page) {
	b.t.Helper()
	var times []time.Duration
	var body []byte
	size, rows, pages := 0, 0, 0
	for path := p.path; ; {
		var took time.Duration
		took, body, size = b.get(path, p.stream)
		times = append(times, took)
		pages++
		if p.stream {
			break
		}
		rows += len(pageRow.FindAll(body, -1))
		older := pageOlder.FindSubmatch(body)
		if !p.walk || rows >= max(p.rows, 1) || older == nil {
			break
		}
		path = strings.ReplaceAll(string(older[1]), "&amp;", "&")
	}
	if rows < p.rows {
		b.t.Errorf("%s: got %d rows of %s on %d pages, want at least %d", p.name, rows, p.path, pages, p.rows)
	}
	walked := pages
	before := b.cpu()
	for range *pagesTimes - 1 {
		took, _, _ := b.get(p.path, p.stream)
		times = append(times, took)
		took, _, _ = b.get("/preferences", false)
		b.nothing = append(b.nothing, took)
	}
	cpu := (b.cpu() - before) / time.Duration(max(*pagesTimes-1, 1))
	first := size
	for _, m := range pageAsset.FindAllSubmatch(body, -1) {
		first += b.asset(string(m[1]))
	}
	p95 := harness.Percentile(times, 95)
	slow := ""
	if p95 > pagesTime {
		slow = "  SLOW"
		if *pagesTimes >= 20 {
			b.t.Errorf("%s: %s: got a p95 of %s, want at most %s", p.name, p.path, p95, pagesTime)
		}
	}
	if !p.stream && first > pagesFirst {
		b.t.Errorf("%s: %s: got a first load of %d bytes, want at most %d", p.name, p.path, first, pagesFirst)
	}
	b.t.Logf("%-55s p50 %7.1f ms  p95 %7.1f ms  max %7.1f ms  cpu %5.1f ms  %6d bytes, first load %6d  %3d rows, %d pages walked%s",
		p.name, inMillis(harness.Percentile(times, 50)), inMillis(p95), inMillis(slices.Max(times)), inMillis(cpu), size, first, rows, walked,
		slow)
}

func inMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// get requests a page and returns the time, the decompressed body and the size as sent. With
// firstByte it returns when the header has arrived.
func (b *pageVisitor) get(path string, firstByte bool) (took time.Duration, body []byte, size int) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", b.base+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	if !firstByte {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	began := time.Now()
	resp, err := b.client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	if !firstByte {
		body, err = io.ReadAll(resp.Body)
	}
	took = time.Since(began)
	size = len(body)
	if err == nil && resp.Header.Get("Content-Encoding") == "gzip" {
		var z *gzip.Reader
		if z, err = gzip.NewReader(bytes.NewReader(body)); err == nil {
			body, err = io.ReadAll(z)
		}
	}
	if err != nil || resp.StatusCode != http.StatusOK || bytes.Contains(body, []byte("could not be loaded")) {
		b.t.Errorf("%s: got status %d, want 200; error %v\n%.2000s", path, resp.StatusCode, err, body)
	}
	return took, body, size
}

func (b *pageVisitor) asset(path string) int {
	b.t.Helper()
	if _, ok := b.assets[path]; !ok {
		_, _, b.assets[path] = b.get(path, false)
	}
	return b.assets[path]
}

// openPages opens the database of a data directory that no process has open.
func openPages(tb testing.TB, dir string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "service.db"))
	if err != nil {
		tb.Fatal(err)
	}
	db.SetMaxOpenConns(1)
	return db
}

// pagesFill fills a data directory for TestPages.
type pagesFill struct {
	tb         testing.TB
	db         *sql.DB
	deliveries int
	many       int   // subscriptions of the last program, beyond its first 16
	begin      int64 // milliseconds, of the first event
}

// pagesSpan is how far back the deliveries go.
const pagesSpan = 24 * 24 * time.Hour

// fillPages creates a data directory with deliveries of the last 24 days. Half belong to one
// program with 200 subscriptions, the rest to 50 programs with 16 each. The last program has
// many more subscriptions, and one event with a delivery to each. Some subscriptions are
// failing, with half of the log as backlog. Most deliveries succeeded at the first attempt;
// see the query.
func fillPages(tb testing.TB, dir string, deliveries int) {
	tb.Helper()
	p := &pagesFill{tb: tb, deliveries: deliveries, many: deliveries / 100, begin: time.Now().Add(-pagesSpan).UnixMilli()}
	ids := p.createSubscriptions(dir)
	p.db = openPages(tb, dir)
	p.exec("PRAGMA synchronous = OFF")
	p.exec("PRAGMA cache_size = -200000")
	p.exec("DELETE FROM deliveries") // the pings of their creation
	p.exec("CREATE TEMP TABLE subs (program INTEGER, number INTEGER, id TEXT, PRIMARY KEY (program, number)) WITHOUT ROWID")
	p.exec("BEGIN")
	for at, id := range ids {
		p.exec("INSERT INTO subs VALUES (?, ?, ?)", at.program, at.number, id)
	}
	p.exec("COMMIT")
	p.insertDeliveries()
	p.exec("BEGIN")
	p.insertAttempts()
	p.changeSubscriptions()
	p.insertStats()
	p.insertOthers()
	p.exec("COMMIT")
	if err := p.db.Close(); err != nil {
		tb.Fatal(err)
	}
}

func (p *pagesFill) exec(query string, args ...any) {
	p.tb.Helper()
	if _, err := p.db.Exec(query, args...); err != nil {
		p.tb.Fatalf("%s: %v", query, err)
	}
}

// pagesPlace identifies a subscription by its number within a program.
type pagesPlace struct{ program, number int }

// createSubscriptions creates the data directory with an admin, tokens and subscriptions, and
// returns the IDs of the subscriptions.
func (p *pagesFill) createSubscriptions(dir string) map[pagesPlace]string {
	tb := p.tb
	tb.Helper()
	s, err := store.Open(tb.Context(), store.Config{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	hash := webhook.HashPassword(pagesPassword)
	err = s.Write(tb.Context(), func(w store.Write) error {
		_, err := w.Admins().CreateFirst(pagesEmail, hash)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	const dead = "http://127.0.0.1:9" // the discard port, where no server listens
	places := make(chan pagesPlace)
	var mu sync.Mutex
	ids := make(map[pagesPlace]string)
	names := []string{"content_updated", "content_published", "channel_created", "content_deleted"}
	var making sync.WaitGroup
	for range 64 {
		making.Go(func() {
			for at := range places {
				url := fmt.Sprintf("%s/partner-%d/%d", dead, at.program, at.number)
				sub, _, err := storetest.CreateSubscription(tb.Context(), s, pagesProgram(at.program), "tester", &webhook.SubscriptionFields{URL: &url,
					Events: &names})
				if err != nil {
					tb.Error(err)
				}
				mu.Lock()
				ids[at] = sub.ID
				mu.Unlock()
			}
		})
	}
	for program := range pagesPrograms + 1 {
		if _, _, err := storetest.CreateToken(tb.Context(), s, webhook.NewToken{ProgramID: pagesProgram(program), UserID: "tester", Name: "fill",
			Scopes: []webhook.Scope{webhook.ScopeEventsRead}}); err != nil {
			tb.Fatal(err)
		}
		number := map[int]int{0: 200, pagesPrograms: 16 + p.many}[program]
		if number == 0 {
			number = 16
		}
		for n := range number {
			places <- pagesPlace{program, n}
		}
	}
	close(places)
	making.Wait()
	if err := s.Close(); err != nil || tb.Failed() {
		tb.Fatal(err)
	}
	return ids
}

// insertDeliveries inserts the events and the deliveries.
func (p *pagesFill) insertDeliveries() {
	p.tb.Helper()
	step := int64(pagesSpan/time.Millisecond) / int64(p.deliveries)
	// The event with index j belongs to program k, with sequence number seq.
	const events = `WITH RECURSIVE n(j) AS (SELECT ?1 UNION ALL SELECT j + 1 FROM n WHERE j + 1 < ?2),
		e AS (SELECT j, iif(j % 100 < 50, 0, j % 100 - 49) AS k, iif(j % 100 < 50, j / 100 * 50 + j % 100, j / 100) + 1 AS seq, ?3 + 2 * ?4 * j AS at,
			CASE WHEN j % 10007 = 77 THEN 'channel_created' WHEN j % 50 = 3 AND j * 10 < ?5 THEN 'content_deleted' WHEN j % 4 = 1 THEN 'content_published' ELSE 'content_updated' END AS name FROM n) `
	const programOf = "printf('program-%02d', k)"
	count := p.deliveries / 2
	const chunk = 50_000
	for from := 0; from < count; from += chunk {
		p.exec("BEGIN")
		args := []any{from, min(from+chunk, count), p.begin, step, count}
		p.exec(events+`INSERT INTO events (program_id, seq, id, name, received_at, json)
			SELECT `+programOf+`, seq, `+pageID("at", "0", "j")+`, name, at,
				CAST(printf('{"id":"%s","timestamp":"%s.000Z","name":"%s","version":"1","content_id":%d,"channel_ids":[11,12,13]}', `+pageID("at", "0",
			"j")+`, strftime('%Y-%m-%dT%H:%M:%S', at / 1000, 'unixepoch'), name, j) AS BLOB) FROM e`, args...)
		// Two deliveries per event, to subscriptions of its program in turn. x selects the results
		// among 20,000 deliveries.
		p.exec(events+`, d AS (SELECT 2 * j + i.value + 1 AS num, k, seq, at + ?4 * i.value AS at, (2 * j + i.value) % 20000 AS x,
				(j / 100 + j % 100 + i.value) % iif(k = 0, 200, 16) AS number FROM e CROSS JOIN json_each('[0,1]') i),
			o AS (SELECT *, CASE
				WHEN x = 1 THEN '["failed","rejected",1,404,null]'
				WHEN x = 2 THEN '["failed","attempts_exhausted",5,null,"tls"]'
				WHEN x = 3 THEN '["success",null,1,202,null]'
				WHEN x = 5 THEN '["failed","blocked",1,null,"blocked"]'
				WHEN x % 1000 = 4 THEN '["success",null,4,200,null]'
				WHEN x % 100 = 50 THEN '["retryable",null,2,503,null]'
				WHEN x % 100 = 51 THEN '["failed","attempts_exhausted",5,500,null]'
				WHEN x % 100 = 52 THEN '["failed","rejected",1,410,null]'
				WHEN x % 100 = 53 THEN '["failed","attempts_exhausted",5,null,"timeout"]'
				ELSE '["success",null,1,200,null]' END AS so FROM d)
			INSERT INTO deliveries (num, id, subscription_id, subscription, program_id, status, failure_reason, attempts_made, next_attempt_at, response_status, error, seqs, redelivery_of, created_at, completed_at, counted_at)
			SELECT ?6 + num, printf('%021d-', num), s.id, (SELECT x.num FROM subscriptions x WHERE x.id = s.id), `+programOf+`, so ->> 0, so ->> 1, so ->> 2, iif(so ->> 0 = 'retryable', ?7 + num, NULL), so ->> 3, so ->> 4,
				'[' || seq || ']', iif(x = 6, printf('%021d-', num - 7), NULL), at, iif(so ->> 0 = 'retryable', NULL, at + 20 + num % 97), 1
			FROM o CROSS JOIN temp.subs s ON s.program = k AND s.number = o.number`,
			append(args, p.many, time.Now().Add(24*time.Hour).UnixMilli())...)
		p.exec(events+"INSERT INTO delivery_events (program_id, seq, delivery) SELECT "+programOf+", seq, ?6 + 2 * j + i.value + 1 FROM e "+
			"CROSS JOIN json_each('[0,1]') i", append(args, p.many)...)
		p.exec("COMMIT")
	}
}

// insertAttempts inserts the deliveries of the event that goes to every subscription of the last
// program, and the attempts of all deliveries.
func (p *pagesFill) insertAttempts() {
	p.tb.Helper()
	p.exec(`INSERT INTO deliveries (num, id, subscription_id, subscription, program_id, status, attempts_made, response_status, seqs, created_at, completed_at, counted_at)
		SELECT number - 15, printf('fan%018d-', number), s.id, (SELECT x.num FROM subscriptions x WHERE x.id = s.id), ?2, 'success', 1, 200, '[1]', ?1, ?1, 1
		FROM temp.subs s WHERE program = ?3 AND number >= 16`,
		p.begin, pagesProgram(pagesPrograms), pagesPrograms)
	p.exec("INSERT INTO delivery_events (program_id, seq, delivery) SELECT program_id, 1, num FROM deliveries WHERE num <= ?", p.many)
	p.exec(`INSERT INTO attempts (delivery, number, started_at, duration_ms, result, response_status, error, response_header, response_body, response_truncated)
		SELECT d.num, n.value, d.created_at + 300000 * (n.value - 1), 10 + d.num % 90,
			CASE WHEN n.value < d.attempts_made OR d.status = 'retryable' OR d.failure_reason = 'attempts_exhausted' THEN 'retryable' ELSE d.status END,
			iif(n.value < d.attempts_made AND d.status = 'success', 503, d.response_status), d.error,
			'Content-Type: application/json', CAST(iif(d.num % 1000 = (52 + ?1) % 1000, printf('{"error": "%.*c"}', 16000, 'x'), '{"ok": true}') AS BLOB), 0
		FROM json_each('[1,2,3,4,5]') n CROSS JOIN deliveries d WHERE d.attempts_made >= n.value`, p.many)
	p.exec("UPDATE cursors SET seq = (SELECT max(e.seq) FROM subscriptions s CROSS JOIN events e ON e.program_id = s.program_id WHERE s.id " +
		"= subscription_id)")
}

// changeSubscriptions sets some subscriptions to failing, paused or deleted.
func (p *pagesFill) changeSubscriptions() {
	p.tb.Helper()
	// Every tenth subscription of the first program, and one of every other program, is failing.
	const failing = "(SELECT id FROM temp.subs WHERE program = 0 AND number % 10 = 7 OR number = 3)"
	p.exec("UPDATE subscriptions SET status = 'failing' WHERE id IN " + failing)
	p.exec("UPDATE cursors SET seq = seq / 2 WHERE subscription_id IN " + failing)
	p.exec("INSERT INTO failures (subscription_id, count, rejected, first_at, failing_reason, failing_since, next_probe_at) SELECT id, 20, "+
		"0, ?1, 'unreachable', ?1 + program, ?1 + program FROM temp.subs WHERE id IN "+failing, time.Now().Add(-24*time.Hour).UnixMilli())
	p.exec("INSERT INTO incidents (id, program_id, subscription_id, opened_at, first_at) SELECT "+pageID("?1", "5",
		"row_number() OVER ()")+", s.program_id, s.id, ?1, ?1 FROM subscriptions s WHERE s.id IN "+failing,
		time.Now().Add(-24*time.Hour).UnixMilli())
	p.exec("UPDATE failures SET failed = 3, last_status = 503, incident = (SELECT i.num FROM incidents i WHERE i.subscription_id = " +
		"failures.subscription_id)")
	p.exec("UPDATE subscriptions SET active = 0 WHERE id IN (SELECT id FROM temp.subs WHERE number = 5)")
	p.exec("DELETE FROM interests WHERE subscription_id IN (SELECT id FROM subscriptions WHERE active = 0)")
	p.exec("UPDATE subscriptions SET deleted_at = ?, counted_at = 1 WHERE id IN (SELECT id FROM temp.subs WHERE program < 20 AND "+
		"number = 6)", p.begin)
	p.exec("DELETE FROM interests WHERE subscription_id IN (SELECT id FROM subscriptions WHERE deleted_at IS NOT NULL)")
	p.exec("INSERT INTO losses (subscription_id, events, first_at, last_at) SELECT id, 17, ?1, ?1 FROM temp.subs WHERE number = 9", p.begin)
}

// insertStats inserts statistics: per minute for two days and per hour, in total and for each
// program, and per hour for each subscription.
func (p *pagesFill) insertStats() {
	p.tb.Helper()
	now := time.Now()
	for _, of := range []struct {
		subjects string
		span     time.Duration
		long     time.Duration
	}{
		{"SELECT '' AS program, '' AS subscription UNION ALL SELECT id, '' FROM programs", time.Minute,
			min(48*time.Hour, time.Duration(p.deliveries/20)*time.Minute)},
		{"SELECT '' AS program, '' AS subscription UNION ALL SELECT id, '' FROM programs", time.Hour, pagesSpan},
		{"SELECT printf('program-%02d', program) AS program, id AS subscription FROM temp.subs WHERE number < 200", time.Hour,
			min(7*24*time.Hour, time.Duration(p.deliveries/200)*time.Hour)},
	} {
		p.exec(`WITH RECURSIVE n(at) AS (SELECT ?1 UNION ALL SELECT at + ?2 FROM n WHERE at + ?2 <= ?3), s AS (`+of.subjects+`)
			INSERT INTO stats (program_id, subscription_id, span, at, success, failed, retryable, answers, durations, counted_at)
			SELECT s.program, s.subscription, ?2, n.at, 40, 2, 3, '{"200":40,"410":2,"500":1,"503":1,"timeout":1}', '{"10":20,"11":12,"12":8,"15":4,"20":1}', 1 FROM s CROSS JOIN n`,
			now.Add(-of.long).Truncate(of.span).UnixMilli(), of.span.Milliseconds(), now.UnixMilli())
	}
}

// insertOthers inserts entries of the audit log and tokens.
func (p *pagesFill) insertOthers() {
	p.tb.Helper()
	p.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
		INSERT INTO audit (id, at, actor, admin, address, request_id, action, program_id, subject_id, detail, salt, digest, hash) SELECT `+pageID("?2", "3",
		"i")+", ?2 + i, 'admin:', 'ana@example.com', '127.0.0.1', '', 'subscription.pause', 'program-00', '', 'as the partner asked for', "+
		"zeroblob(16), zeroblob(32), zeroblob(32) FROM n",
		p.deliveries/10, p.begin)
	p.exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
		INSERT INTO tokens (id, hash, hint, program_id, user_id, name, scopes, created_at) SELECT `+pageID("?1", "4",
		"i")+", CAST(printf('%032d', i) AS BLOB), 'abcd', 'program-01', 'tester', 'token ' || i, 'events.read', ?1 + i FROM n", p.begin)
}

func pagesProgram(number int) string { return fmt.Sprintf("program-%02d", number) }

// pageID returns SQL for an ID made of a time in milliseconds, a kind and a number.
func pageID(at, kind, number string) string {
	return fmt.Sprintf("printf('%%08x-%%04x-7%%03x-8000-%%012x', (%s) >> 16, (%s) & 65535, %s, %s)", at, at, kind, number)
}

// deliveryID returns the ID of a delivery as shown on pages. The store has a short form of it: 16
// bytes in characters that sort like the bytes.
func deliveryID(tb testing.TB, stored string) string {
	tb.Helper()
	short := base64.NewEncoding("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz").WithPadding(base64.NoPadding)
	b, err := short.DecodeString(stored)
	if err != nil {
		tb.Fatalf("%q: %v", stored, err)
	}
	id, err := uuid.FromBytes(b)
	if err != nil {
		tb.Fatalf("%q: %v", stored, err)
	}
	return id.String()
}

// samplePages picks the records whose pages TestPages requests.
func samplePages(tb testing.TB, db *sql.DB) *pageSample {
	tb.Helper()
	s := pageSample{now: time.Now(), big: pagesProgram(0), fanProgram: pagesProgram(pagesPrograms)}
	scan := func(query string, to any, args ...any) {
		tb.Helper()
		if err := db.QueryRow(query, args...).Scan(to); err != nil {
			tb.Fatalf("%s: %v", query, err)
		}
	}
	scan("SELECT count(*) FROM deliveries", &s.deliveries)
	scan("SELECT d.id FROM attempts a JOIN deliveries d ON d.num = a.delivery WHERE a.number = 5 AND length(a.response_body) > 15000 LIMIT 1",
		&s.large)
	scan("SELECT id FROM deliveries WHERE num >= ? AND status = 'success' LIMIT 1", &s.plain, s.deliveries/2)
	s.large, s.plain = deliveryID(tb, s.large), deliveryID(tb, s.plain)
	scan("SELECT id FROM subscriptions WHERE program_id = ? AND status = 'failing' LIMIT 1", &s.backlog, s.big)
	scan("SELECT id FROM incidents WHERE subscription_id = ? AND closed_at IS NULL", &s.incident, s.backlog)
	scan("SELECT s.id FROM subscriptions s JOIN deliveries d ON d.subscription_id = s.id WHERE s.program_id = ? AND s.status = 'healthy' "+
		"AND s.active AND s.deleted_at IS NULL GROUP BY s.id ORDER BY count(*) DESC LIMIT 1", &s.busy, s.big)
	scan("SELECT id FROM events WHERE program_id = ? AND seq = 1", &s.fan, s.fanProgram)
	scan("SELECT id FROM events WHERE program_id = ? AND seq = 1", &s.someEvent, s.big)
	scan("SELECT id FROM tokens LIMIT 1", &s.token)
	scan("SELECT program_id FROM events WHERE name = 'channel_created' AND program_id <> ? LIMIT 1", &s.rareProgram, s.big)
	return &s
}
