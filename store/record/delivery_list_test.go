package record_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"service/store"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/storetest"
	"service/test/seed"
	"service/webhook"
)

// A cursor is valid only in its own list.
func TestCursorsAreBound(t *testing.T) {
	ctx := context.Background()
	s := storetest.Open(t, "p", "q")
	subs := []webhook.Subscription{storetest.Subscribe(t, s, "p", "content_updated"), storetest.Subscribe(t, s, "p", "content_updated"),
		storetest.Subscribe(t, s, "q", "content_updated")}
	for _, sub := range subs {
		for range 2 {
			queuePing(t, s, sub)
		}
	}
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	publish(t, s, "q", "content_updated", "content_updated")

	list := func(of, raw, cursor string) (next string, err error) {
		programID, id, found := strings.Cut(of, "/")
		if !found {
			q := storetest.Query(t, webhook.EventList, raw)
			q.Cursor = cursor
			_, next, err = s.Events().Page(ctx, programID, q)
			return next, err
		}
		q := storetest.Query(t, webhook.DeliveryList, raw)
		q.Cursor = cursor
		_, next, err = s.Deliveries().Page(ctx, programID, subs[int(id[0]-'0')].ID, q)
		return next, err
	}
	type which struct{ of, raw string }
	lists := []which{
		{"p", "page[size]=1"}, {"q", "page[size]=1"}, {"p", "page[size]=1&sort=received_at"}, {"p", "page[size]=1&filter[name]=content_updated"},
		{"p", "page[size]=1&filter[received_at.from]=2000-01-01"},
		{"p/0", "page[size]=1"}, {"p/1", "page[size]=1"}, {"q/2", "page[size]=1"}, {"p/0", "page[size]=1&sort=created_at"},
		{"p/0", "page[size]=1&filter[status]=pending"}, {"p/0", "page[size]=1&filter[status]=pending,failed"},
	}
	for _, made := range lists {
		cursor, err := list(made.of, made.raw, "")
		if err != nil || cursor == "" {
			t.Fatalf("%v: no cursor (%v)", made, err)
		}
		for _, used := range lists {
			_, err := list(used.of, used.raw, cursor)
			if used == made && err != nil {
				t.Errorf("%v: own cursor: got %v", made, err)
			} else if used != made {
				storetest.WantCode(t, err, webhook.CodeInvalid)
			}
		}
		if _, err := list(made.of, strings.Replace(made.raw, "=1", "=2", 1), cursor); err != nil {
			t.Errorf("%v: own cursor with another page size: got %v", made, err)
		}
		for _, forged := range []string{"x", cursor[:len(cursor)-1], cursor + "A", "A" + cursor[1:], cursor + "=", "\n" + cursor,
			strings.Repeat("A", len(cursor))} {
			if forged != cursor {
				_, err := list(made.of, made.raw, forged)
				storetest.WantCode(t, err, webhook.CodeInvalid)
			}
		}
	}
}

// modelDelivery is a delivery in a simple model. Its times are Unix milliseconds; 0 is NULL.
type modelDelivery struct {
	num                      int64
	id, status, code         string
	response                 int
	names                    []string
	created, completed, next int64
}

// deliveries is a store with the deliveries of two subscriptions, and a model of the first
// one's.
type deliveries struct {
	t       *testing.T
	s       *store.Store
	random  *rand.Rand
	mine    webhook.Subscription
	other   webhook.Subscription
	seqs    map[string][]int64
	now     int64
	num     int64
	model   []*modelDelivery
	foreign []int64 // nums of the other subscription's deliveries
}

var modelNames = []string{"content_updated", "content_deleted", "channel_created"}

func newDeliveries(t *testing.T, random *rand.Rand) *deliveries {
	s := storetest.Open(t, "p")
	d := &deliveries{t: t, s: s, random: random, seqs: make(map[string][]int64), now: date("2026-03-14")}
	d.mine, d.other = storetest.Subscribe(t, s, "p", modelNames...), storetest.Subscribe(t, s, "p", modelNames...)
	for range 12 {
		name := modelNames[min(d.random.IntN(8)/3, 2)] // the last name is rare
		d.seqs[name] = append(d.seqs[name], publish(t, s, "p", name)[0].Seq)
	}
	d.exec("DELETE FROM deliveries") // the pings of the new subscriptions
	return d
}

func date(s string) int64 {
	at, err := time.Parse(time.DateOnly, s)
	if err != nil {
		panic(err)
	}
	return at.UnixMilli()
}

func (d *deliveries) exec(query string, args ...any) {
	d.t.Helper()
	if err := write(d.s, func(t *sqlite.Tx) error { return t.Exec(query, args...) }); err != nil {
		d.t.Fatalf("%s: %v", query, err)
	}
}

func null[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// arrive adds a delivery, sometimes of the other subscription.
func (d *deliveries) arrive() {
	d.now += int64(d.random.IntN(2))
	d.num += 1 + int64(d.random.IntN(8)/7) // with gaps, as retention leaves
	m := &modelDelivery{num: d.num, id: webhook.NewID(), status: "pending", created: d.now, next: d.now + int64(d.random.IntN(5))}
	sub := d.mine
	var ping, seqs any
	if d.random.IntN(8) == 0 {
		m.names, ping = []string{"ping"}, webhook.PingEvent(webhook.NewID(), time.UnixMilli(d.now))
	} else {
		var places []int64
		for _, name := range modelNames {
			if all := d.seqs[name]; len(all) > 0 && d.random.IntN(3) == 0 {
				m.names = append(m.names, name)
				places = append(places, all[d.random.IntN(len(all))])
			}
		}
		if places == nil {
			m.names, places = modelNames[:1], d.seqs[modelNames[0]][:1]
		}
		seqs = sqlite.JSON(places)
	}
	if d.random.IntN(5) == 0 {
		sub = d.other
		d.foreign = append(d.foreign, m.num)
	} else {
		d.model = append(d.model, m)
	}
	d.exec("INSERT INTO deliveries (num, id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, "+
		"seqs, ping, created_at, counted_at) VALUES (?1, ?2, ?3, (SELECT num FROM subscriptions WHERE id = ?3), 'p', 'pending', 0, "+
		"?4, ?5, ?6, ?7, 1)",
		m.num, record.ShortID(m.id), sub.ID, m.next, seqs, sqlite.Blob(bytesOf(ping)), m.created)
	if seqs != nil {
		must(d.t, write(d.s, func(t *sqlite.Tx) error { return link(t, "p", m.num, seqs.(string)) }))
	}
}

func bytesOf(v any) []byte {
	b, _ := v.([]byte)
	return b
}

// attempt completes a delivery, or makes it due for a retry.
func (d *deliveries) attempt() {
	var open []*modelDelivery
	for _, m := range d.model {
		if m.completed == 0 {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return
	}
	m := open[d.random.IntN(len(open))]
	d.now += int64(d.random.IntN(2))
	m.response, m.code = []int{200, 200, 202, 404, 410, 500, 503, 0}[d.random.IntN(8)], ""
	if m.response == 0 {
		m.code = []string{"timeout", "dns", "connect"}[d.random.IntN(3)]
	}
	var reason any
	switch {
	case m.response/100 == 2:
		m.status, m.next, m.completed = "success", 0, d.now
	case m.response/100 == 4 || d.random.IntN(2) == 0:
		m.status, m.next, m.completed, reason = "failed", 0, d.now, "rejected"
	default:
		m.status, m.next = "retryable", d.now+int64(d.random.IntN(5))
	}
	d.exec("UPDATE deliveries SET status = ?, failure_reason = ?, attempts_made = 1, next_attempt_at = ?, completed_at = ?, "+
		"response_status = ?, error = ? WHERE num = ?",
		m.status, reason, null(m.next), null(m.completed), null(m.response), null(m.code), m.num)
}

// matches reports whether a delivery matches a query.
func (m *modelDelivery) matches(q *webhook.ListQuery) bool {
	any := func(name string, match func(string) bool) bool {
		values := q.Filters[name]
		return values == nil || slices.ContainsFunc(values, match)
	}
	within := func(name string, at int64) bool {
		r, ok := q.Ranges[name]
		return !ok || at != 0 && (r.From.IsZero() || at >= r.From.UnixMilli()) && (r.To.IsZero() || at < r.To.UnixMilli())
	}
	return any("status", func(v string) bool { return v == m.status }) &&
		any("error", func(v string) bool { return v == m.code }) &&
		any("event", func(v string) bool { return slices.Contains(m.names, v) }) &&
		any("response_status", func(v string) bool {
			return v == fmt.Sprint(m.response) || strings.HasSuffix(v, "xx") && m.response/100 == int(v[0]-'0')
		}) &&
		within("created_at", m.created) && within("completed_at", m.completed) && within("next_attempt_at", m.next)
}

// sorted compares two deliveries in the order of a query.
func sorted(q *webhook.ListQuery) func(a, b *modelDelivery) int {
	return func(a, b *modelDelivery) int { return list.Down(q.Sort[0].Descending, cmp.Compare(a.num, b.num)) }
}

// randomQuery returns a query that matches rows of a small model.
func (d *deliveries) randomQuery() string {
	r := d.random
	raw := fmt.Sprintf("page[size]=%d", 1+r.IntN(7))
	raw += []string{"", "&sort=created_at", "&sort=-created_at"}[r.IntN(3)]
	pick := func(name string, values ...string) {
		if r.IntN(5) == 0 {
			raw += "&filter[" + name + "]=" + values[r.IntN(len(values))]
		}
	}
	pick("status", "pending", "retryable", "success", "failed", "failed,retryable", "pending,success", "pending,failed,retryable")
	pick("event", "content_updated", "content_deleted", "channel_created", "ping", "ping,channel_created", "user_notification_deleted")
	pick("response_status", "404", "4xx", "5xx,410", "200", "2xx,404", "3xx", "503")
	pick("error", "timeout", "dns,connect", "tls")
	for _, name := range []string{"created_at", "completed_at", "next_attempt_at"} {
		for _, end := range []string{"from", "to"} {
			if r.IntN(8) == 0 {
				at := date("2026-03-14") + r.Int64N(d.now-date("2026-03-14")+3)
				raw += "&filter[" + name + "." + end + "]=" + webhook.FormatTime(time.UnixMilli(at))
			}
		}
	}
	return raw
}

// Random lists, read while rows are added and changed, match a simple model: unchanged rows are
// read once and in order, and none is read twice. Without changes the pages contain exactly the
// matches, in order.
func TestDeliveriesAgainstAModel(t *testing.T) {
	walks := 60
	if testing.Short() {
		walks = 20
	}
	first := seed.Fresh(t)
	for i, limits := range []list.Limits{
		{Set: 4, Scan: 6, CostlyScan: 3}, {Set: 4, Scan: 6, CostlyScan: 3}, {Set: 1, Scan: 1, CostlyScan: 1},
		{Set: 1000, Scan: 1000, CostlyScan: 1000}, {Set: 1, Scan: 1000, CostlyScan: 1000}, {Set: 20, Scan: 5, CostlyScan: 20},
	} {
		d := newDeliveries(t, seed.New(first+uint64(i)))
		*limitsOf(d.s) = limits
		for range 40 {
			d.arrive()
			if d.random.IntN(3) > 0 {
				d.attempt()
			}
		}
		for walk := range walks {
			raw := d.randomQuery()
			d.walk(fmt.Sprintf("limits %d, walk %d: %s", i, walk, raw), storetest.Query(t, webhook.DeliveryList, raw), walk%3 == 0)
			if t.Failed() {
				return
			}
		}
	}
}

// walk reads a list to its end. If moving, rows are added and changed between pages.
func (d *deliveries) walk(name string, q *webhook.ListQuery, moving bool) {
	always := make(map[string]bool) // matched since the first page
	for _, m := range d.model {
		always[m.id] = m.matches(q)
	}
	var read []*modelDelivery
	seen := make(map[string]bool)
	for pages := 0; ; pages++ {
		page, next, err := d.s.Deliveries().Page(context.Background(), "p", d.mine.ID, q)
		if err != nil || len(page) > q.Size || pages > 30*len(d.model) {
			d.t.Fatalf("%s: page %d has %d rows (%v)", name, pages, len(page), err)
		}
		byID := d.byID()
		for _, got := range page {
			m := byID[got.ID]
			d.checkRow(fmt.Sprintf("%s: page %d", name, pages), &got, m, q)
			if seen[got.ID] {
				d.t.Fatalf("%s: page %d repeats %+v", name, pages, *m)
			}
			seen[got.ID] = true
			read = append(read, m)
		}
		if next == "" {
			break
		}
		q.Cursor = next
		if moving {
			d.move(pages)
			byID := d.byID()
			for id := range always {
				always[id] = always[id] && byID[id].matches(q)
			}
		}
	}
	q.Cursor = ""
	for id, should := range always {
		if should && !seen[id] {
			d.t.Fatalf("%s: %+v is missing", name, *d.byID()[id])
		}
	}
	d.checkOrder(name, q, read, moving)
}

func (d *deliveries) byID() map[string]*modelDelivery {
	byID := make(map[string]*modelDelivery, len(d.model))
	for _, m := range d.model {
		byID[m.id] = m
	}
	return byID
}

// checkRow compares a row with the model, nil if the model has no such row.
func (d *deliveries) checkRow(name string, got *webhook.Delivery, m *modelDelivery, q *webhook.ListQuery) {
	switch {
	case m == nil:
		d.t.Fatalf("%s: unexpected delivery", name)
	case !m.matches(q):
		d.t.Fatalf("%s: %+v does not match the filters", name, *m)
	case string(got.Status) != m.status || len(got.Events) != len(m.names):
		d.t.Fatalf("%s: got %+v, want %+v", name, got, *m)
	}
}

// move adds and changes rows after a number of pages.
func (d *deliveries) move(pages int) {
	d.now++ // nothing else completes in the millisecond that was read
	for range d.random.IntN(4) {
		if pages < 8 { // so that a list with new rows at its end still ends
			d.arrive()
		}
		if pages >= 8 || d.random.IntN(4) == 0 { // keep some incomplete, which come last
			d.attempt()
		}
	}
}

// checkOrder compares the rows that were read with the model. Unless moving, all must have been
// read.
func (d *deliveries) checkOrder(name string, q *webhook.ListQuery, read []*modelDelivery, moving bool) {
	want := slices.Clone(read)
	if !moving {
		want = slices.DeleteFunc(slices.Clone(d.model), func(m *modelDelivery) bool { return !m.matches(q) })
	}
	slices.SortFunc(want, sorted(q))
	for i := range want {
		if i >= len(read) || read[i] != want[i] {
			d.t.Fatalf("%s: row %d of %d differs: want %+v", name, i, len(want), *want[i])
		}
	}
}

// modelEvent is an event in a simple model.
type modelEvent struct {
	id, name        string
	received, stamp time.Time
}

func (m *modelEvent) matches(q *webhook.ListQuery) bool {
	names, ids := q.Filters["name"], q.Filters["id"]
	return (names == nil || slices.Contains(names, m.name)) && (ids == nil || slices.Contains(ids, m.id)) &&
		within(q, "received_at", m.received) && within(q, "timestamp", m.stamp)
}

// within reports whether a time is in a range of a query, if it has one.
func within(q *webhook.ListQuery, name string, at time.Time) bool {
	r := q.Ranges[name]
	return (r.From.IsZero() || !at.Before(r.From)) && (r.To.IsZero() || at.Before(r.To))
}

// modelLog is a log with random events, and a simple model of it.
type modelLog struct {
	t      *testing.T
	s      *store.Store
	random *rand.Rand
	now    time.Time
	model  []modelEvent
}

// arrive publishes an event.
func (l *modelLog) arrive() {
	r := l.random
	l.now = l.now.Add(time.Duration(r.IntN(2)) * time.Millisecond)
	e := storetest.Event(modelNames[r.IntN(len(modelNames))])
	stamp := l.now.Add(time.Duration(r.IntN(20)-10) * 100 * time.Microsecond)
	text := stamp.Format([]string{"2006-01-02T15:04:05.000Z", "2006-01-02T15:04:05.999999999Z", "2006-01-02T15:04:05.000000000+00:00",
		"2006-01-02T15:04:05Z", "2006-01-02T15:04:05.000+00:00"}[r.IntN(5)])
	stamp, err := time.Parse(time.RFC3339Nano, text)
	must(l.t, err)
	e.ReceivedAt = l.now
	e.JSON = fmt.Appendf(nil, `{"id":%q,"timestamp":%q,"name":%q,"version":"1"}`, e.ID, text, e.Name)
	_, err = l.s.Events().Publish(l.t.Context(), "p", []webhook.Event{e})
	must(l.t, err)
	l.model = append(l.model, modelEvent{e.ID, e.Name, l.now, stamp})
}

// randomQuery returns the parameters of a random query.
func (l *modelLog) randomQuery() string {
	r := l.random
	any := func() *modelEvent { return &l.model[r.IntN(len(l.model))] }
	raw := fmt.Sprintf("page[size]=%d", 1+r.IntN(5)) + []string{"", "&sort=received_at", "&sort=-received_at"}[r.IntN(3)]
	if r.IntN(3) == 0 {
		raw += "&filter[name]=" + []string{"content_updated", "channel_created,content_deleted", "ping", "ping,channel_created"}[r.IntN(4)]
	}
	if r.IntN(5) == 0 {
		raw += "&filter[id]=" + any().id + "," + strings.ToUpper(any().id) + "," + webhook.NewID()
	}
	for _, name := range []string{"received_at.from", "received_at.to", "timestamp.from", "timestamp.to"} {
		if r.IntN(5) == 0 {
			raw += "&filter[" + name + "]=" + any().received.Format("2006-01-02T15:04:05.000Z")
		}
	}
	return raw
}

// walk reads the log to its end. If moving, events are published after the first pages.
func (l *modelLog) walk(name string, q *webhook.ListQuery, moving bool) {
	start, pages := len(l.model), 0
	got := readPages(l.t, name, q, 20*start, func(ctx context.Context, q *webhook.ListQuery) ([]webhook.Event, string, error) {
		if pages > 0 && pages <= 2 && moving {
			l.arrive()
		}
		pages++
		return l.s.Events().Page(ctx, "p", q)
	}, func(e webhook.Event) string { return e.ID })
	seen := l.model
	if q.Sort[0].Descending {
		seen = seen[:start] // the others are newer
	}
	var want []string
	for i := range seen {
		if seen[i].matches(q) {
			want = append(want, seen[i].id)
		}
	}
	if q.Sort[0].Descending {
		slices.Reverse(want)
	} else if missing := len(want) - len(got); missing > 0 && missing <= len(l.model)-start {
		want = want[:len(got)] // the others were published after the last page
	}
	if !slices.Equal(got, want) {
		l.t.Fatalf("%s: got %d events %v, want %d %v", name, len(got), got, len(want), want)
	}
}

// Random lists of events match a simple model, while events are published.
func TestEventsAgainstAModel(t *testing.T) {
	s := storetest.Open(t)
	*limitsOf(s) = list.Limits{Set: 4, Scan: 6, CostlyScan: 3}
	storetest.Program(t, s, "p")
	l := &modelLog{t: t, s: s, random: seed.Rand(t), now: time.Date(2026, 3, 14, 8, 0, 0, 0, time.UTC)}
	for range 40 {
		l.arrive()
	}
	for walk := range 150 {
		raw := l.randomQuery()
		l.walk(fmt.Sprintf("walk %d, %s", walk, raw), storetest.Query(t, webhook.EventList, raw), walk%2 == 0)
	}
}

// randomSubscriptions stores subscriptions of two programs, and returns a simple model of the
// subscriptions of p.
func randomSubscriptions(t *testing.T, s *store.Store, r *rand.Rand) (model []webhook.Subscription) {
	storetest.Program(t, s, "p")
	storetest.Program(t, s, "q")
	for i := range 30 {
		sub := storetest.Subscribe(t, s, []string{"p", "p", "q"}[i%3], modelNames[:1+r.IntN(3)]...)
		sub.URL = fmt.Sprintf("https://partner.example/%d,%d", r.IntN(6), r.IntN(2))
		sub.Active, sub.Status = r.IntN(3) > 0, webhook.HealthHealthy
		if sub.Active && r.IntN(3) == 0 {
			sub.Status = webhook.HealthFailing
		}
		sub.CreatedAt = time.UnixMilli(date("2026-03-14") + int64(i/4)).UTC()
		sub.UpdatedAt = sub.CreatedAt.Add(time.Duration(r.IntN(4)) * time.Millisecond)
		err := write(s, func(t *sqlite.Tx) error {
			return t.Exec("UPDATE subscriptions SET url = ?, active = ?, status = ?, created_at = ?, updated_at = ? WHERE id = ?",
				sub.URL, sub.Active, string(sub.Status), sub.CreatedAt.UnixMilli(), sub.UpdatedAt.UnixMilli(), sub.ID)
		})
		must(t, err)
		switch {
		case i%7 == 0:
			_, err := storetest.DeleteSubscription(t.Context(), s, sub.ProgramID, sub.ID)
			must(t, err)
		case sub.ProgramID == "p":
			model = append(model, sub)
		}
	}
	return model
}

// subscriptionKeys compare subscriptions by the sort fields of the list.
func subscriptionKeys() map[string]func(a, b *webhook.Subscription) int {
	return map[string]func(a, b *webhook.Subscription) int{
		"created_at": func(a, b *webhook.Subscription) int { return a.CreatedAt.Compare(b.CreatedAt) },
		"updated_at": func(a, b *webhook.Subscription) int { return a.UpdatedAt.Compare(b.UpdatedAt) },
		"url":        func(a, b *webhook.Subscription) int { return strings.Compare(a.URL, b.URL) },
		"id":         func(a, b *webhook.Subscription) int { return strings.Compare(a.ID, b.ID) },
	}
}

// randomSubscriptionQuery returns the parameters of a random query.
func randomSubscriptionQuery(r *rand.Rand, model []webhook.Subscription) url.Values {
	var fields []string
	for _, name := range webhook.SubscriptionList.Sort {
		if r.IntN(2) == 0 {
			fields = append(fields, []string{"", "-"}[r.IntN(2)]+name)
		}
	}
	values := url.Values{"page[size]": {fmt.Sprint(1 + r.IntN(6))}, "page[number]": {fmt.Sprint(1 + r.IntN(5))}}
	if fields != nil {
		r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		values.Set("sort", strings.Join(fields, ","))
	}
	pick := func(name string, of ...string) {
		if r.IntN(4) == 0 {
			values.Set(name, of[r.IntN(len(of))])
		}
	}
	pick("filter[active]", "true", "false", "true,false")
	pick("filter[status]", "healthy", "failing", "disabled", "failing,disabled")
	pick("filter[event]", "content_updated", "channel_created", "ping,content_deleted")
	pick("filter[url]", model[0].URL, model[1].URL, "https://partner.example/")
	for _, name := range []string{"filter[created_at.from]", "filter[created_at.to]", "filter[updated_at.from]", "filter[updated_at.to]"} {
		pick(name, webhook.FormatTime(model[r.IntN(len(model))].UpdatedAt))
	}
	return values
}

// listed returns the subscriptions that match a query, in its order.
func listed(model []webhook.Subscription, q *webhook.ListQuery) []webhook.Subscription {
	in := func(name string, values ...string) bool {
		return q.Filters[name] == nil || slices.ContainsFunc(values, func(v string) bool { return slices.Contains(q.Filters[name], v) })
	}
	all := slices.DeleteFunc(slices.Clone(model), func(m webhook.Subscription) bool {
		return !(in("active", fmt.Sprint(m.Active)) && in("status", string(m.Status)) && in("event", m.Events...) && in("url", m.URL) &&
			within(q, "created_at", m.CreatedAt) && within(q, "updated_at", m.UpdatedAt))
	})
	keys := subscriptionKeys()
	slices.SortFunc(all, func(a, b webhook.Subscription) int {
		for _, f := range append(slices.Clone(q.Sort), webhook.SortField{Name: "id", Descending: q.Sort[0].Descending}) {
			if c := keys[f.Name](&a, &b); c != 0 {
				if f.Descending {
					return -c
				}
				return c
			}
		}
		return 0
	})
	return all
}

// Random lists of subscriptions match a simple model.
func TestSubscriptionsAgainstAModel(t *testing.T) {
	s := storetest.Open(t)
	r := seed.Rand(t)
	model := randomSubscriptions(t, s, r)
	for range 300 {
		values := randomSubscriptionQuery(r, model)
		q := storetest.Query(t, webhook.SubscriptionList, values.Encode())
		want := listed(model, q)
		total := len(want)
		first := min((q.Number-1)*q.Size, total)
		want = want[first:min(first+q.Size, total)]
		got, gotTotal, err := s.Subscriptions().Page(t.Context(), "p", q)
		must(t, err)
		same := slices.EqualFunc(got, want, func(a, b webhook.Subscription) bool { return a.ID == b.ID })
		if !same || gotTotal != total {
			t.Fatalf("%s: got %d of %d, want %d of %d", values.Encode(), len(got), gotTotal, len(want), total)
		}
	}
	if _, total, err := s.Subscriptions().Page(t.Context(), "p",
		storetest.Query(t, webhook.SubscriptionList, "page[number]=2147483647&page[size]=100")); err != nil || total != len(model) {
		t.Errorf("last possible page: total %d (%v), want %d", total, err, len(model))
	}
}

// The list over all programs supports the filters and cursors of a subscription's list, but
// its cursors are not valid there.
func TestAllDeliveries(t *testing.T) {
	ctx := context.Background()
	s := storetest.Open(t)
	var want []string // failed ones, oldest first
	var sub webhook.Subscription
	for _, id := range []string{"p", "q"} {
		storetest.Program(t, s, id)
		sub = storetest.Subscribe(t, s, id, "content_updated")
		for i := range 6 {
			publish(t, s, id, "content_updated")
			status := webhook.StatusSuccess
			if i%2 == 0 {
				status = webhook.StatusFailed
			}
			if c := deliver(t, s, sub.ID, status); i%2 == 0 {
				want = append(want, c.ID)
			}
		}
	}
	slices.Reverse(want)
	var got []string
	for cursor := ""; ; {
		q := storetest.Query(t, webhook.AllDeliveryList, "filter[status]=failed&page[size]=2")
		q.Cursor = cursor
		page, next, err := s.Deliveries().PageAll(ctx, q)
		must(t, err)
		for _, d := range page {
			got = append(got, d.ID)
		}
		if next == "" {
			break
		}
		cursor = next
		mine := storetest.Query(t, webhook.DeliveryList, "filter[status]=failed&page[size]=2")
		mine.Cursor = next
		_, _, err = s.Deliveries().Page(ctx, sub.ProgramID, sub.ID, mine)
		storetest.WantCode(t, err, webhook.CodeInvalid)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A page with filters stops when its time is up, but not before it has read enough for a page
// without filters. The next page continues.
func TestListsEndInTime(t *testing.T) {
	s := storetest.Open(t)
	const entries = 3 * list.MinScan
	err := s.Write(t.Context(), func(w store.Write) error {
		for i := range entries {
			action := webhook.ActionTokenCreate
			if i == 0 || i == entries/2 {
				action = webhook.ActionTokenRevoke
			}
			if err := w.Audit(webhook.AuditEntry{Admin: "ada@example.com", Action: action, SubjectID: "x", ProgramID: "p"}); err != nil {
				return err
			}
		}
		return nil
	})
	must(t, err)
	for limit, want := range map[time.Duration]int{0: 1, time.Hour: 1, time.Nanosecond: 3} {
		limitsOf(s).Time = limit
		q := storetest.Query(t, webhook.AuditList, "filter[action]=token.revoke")
		found, pages := 0, 0
		for next := ""; pages == 0 || next != ""; pages++ {
			q.Cursor = next
			var page []webhook.AuditEntry
			if page, next, err = s.Audit().Page(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			found += len(page)
		}
		if found != 2 || pages < want || want == 1 && pages > 1 {
			t.Errorf("limit %s: got %d entries on %d pages, want 2 on %d", limit, found, pages, want)
		}
		page, _, err := s.Audit().Page(t.Context(), storetest.Query(t, webhook.AuditList, "page[size]=100"))
		if err != nil || len(page) != 100 {
			t.Errorf("limit %s: page without filters: got %d entries (%v), want 100", limit, len(page), err)
		}
	}
}
