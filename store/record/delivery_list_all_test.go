package record_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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

// anyDelivery is a row of the list over all programs in a simple model.
type anyDelivery struct {
	modelDelivery
	program, subscription, url, original, replay, run string
	made                                              int
	reason                                            string
	events                                            []string // IDs
}

func (m *anyDelivery) matchesAll(q *webhook.ListQuery) bool {
	in := func(name, value string) bool {
		return q.Filters[name] == nil || slices.Contains(q.Filters[name], value)
	}
	least := 0
	if v := q.Filters["attempts_made.from"]; v != nil {
		least, _ = strconv.Atoi(v[0])
	}
	named := func(part string) bool { return strings.Contains(strings.ToLower(m.url), strings.ToLower(part)) }
	if parts := q.Filters["subscription_url"]; parts != nil && !slices.ContainsFunc(parts, named) {
		return false
	}
	return m.matches(q) && in("program_id", m.program) && in("subscription_id", m.subscription) && in("id", m.id) &&
		(q.Filters["event_id"] == nil || slices.ContainsFunc(m.events, func(id string) bool { return in("event_id", id) })) &&
		in("failure_reason", m.reason) && in("redelivery_of", m.original) && in("replay_id", m.replay) && in("bulk_run_id", m.run) &&
		m.made >= least
}

// allDeliveries is a store with random deliveries of two programs, and a simple model of them.
type allDeliveries struct {
	t       *testing.T
	s       *store.Store
	random  *rand.Rand
	subs    []webhook.Subscription       // the last one is deleted
	seqs    map[string]map[string]int64  // seqs of the single event of each program and name
	ids     map[string]map[string]string // their IDs
	replays []string                     // replays and bulk runs
	model   []*anyDelivery               // newest first
}

func newAllDeliveries(t *testing.T, random *rand.Rand) *allDeliveries {
	s := storetest.Open(t)
	d := &allDeliveries{t: t, s: s, random: random, seqs: make(map[string]map[string]int64),
		ids: make(map[string]map[string]string), replays: []string{webhook.NewID(), webhook.NewID()}}
	for _, id := range d.replays {
		must(t, s.Write(t.Context(), func(w store.Write) error {
			_, err := w.BulkRuns().Create(&store.NewBulkRun{ID: id, Action: webhook.BulkRedeliver,
				Query: storetest.Query(t, webhook.AllDeliveryList, ""), Audit: webhook.AuditEntry{Admin: "ada@example.com"}})
			return err
		}))
	}
	for _, p := range []string{"p", "q"} {
		storetest.Program(t, s, p)
		d.seqs[p], d.ids[p] = make(map[string]int64), make(map[string]string)
		for _, name := range modelNames {
			e := publish(t, s, p, name)[0]
			d.seqs[p][name], d.ids[p][name] = e.Seq, e.ID
		}
		d.subs = append(d.subs, storetest.Subscribe(t, s, p, modelNames...), storetest.Subscribe(t, s, p, modelNames...))
	}
	err := write(s, func(tx *sqlite.Tx) error {
		for i := range d.subs {
			sub := &d.subs[i]
			sub.URL = fmt.Sprintf("https://%s-%d.Example/in?n=%d", sub.ProgramID, i, i%2)
			err := tx.Exec("UPDATE subscriptions SET url = ?1, deleted_at = CASE WHEN ?2 THEN created_at END, counted_at = CASE WHEN ?2 THEN 1 END "+
				"WHERE id = ?3", sub.URL, i == len(d.subs)-1, sub.ID)
			if err != nil {
				return err
			}
		}
		return tx.Exec("DELETE FROM deliveries")
	})
	must(t, err)
	for i := range 80 {
		d.insert(i)
	}
	slices.Reverse(d.model)
	return d
}

// insert stores the next delivery, of a random subscription and in a random state.
func (d *allDeliveries) insert(i int) {
	r := d.random
	sub := d.subs[r.IntN(len(d.subs))]
	m := &anyDelivery{program: sub.ProgramID, subscription: sub.ID, url: sub.URL, made: 1 + r.IntN(4)}
	m.num, m.id, m.created = int64(3+2*i), webhook.NewID(), date("2026-03-14")+int64(i/2)
	var ping, seq, reason, claimed any
	if r.IntN(6) == 0 {
		m.names, ping = []string{"ping"}, webhook.PingEvent(webhook.NewID(), time.UnixMilli(m.created))
	} else {
		m.names = []string{modelNames[min(r.IntN(7)/3, 2)]}
		if other := modelNames[r.IntN(3)]; other > m.names[0] {
			m.names = append(m.names, other)
		}
		var seqs []int64
		for _, name := range m.names {
			seqs, m.events = append(seqs, d.seqs[sub.ProgramID][name]), append(m.events, d.ids[sub.ProgramID][name])
		}
		seq = sqlite.JSON(seqs)
	}
	state := r.IntN(10)
	if sub.ID == d.subs[len(d.subs)-1].ID { // deleted: nothing is pending
		state = r.IntN(6)
	}
	switch state {
	case 0, 1, 2, 3:
		m.status, m.response, m.completed = "success", []int{200, 202}[r.IntN(2)], m.created+int64(r.IntN(4))
	case 4, 5:
		m.reason = []string{"rejected", "attempts_exhausted"}[r.IntN(2)]
		m.status, m.response, m.completed, reason = "failed", []int{404, 500}[r.IntN(2)], m.created+int64(r.IntN(4)), m.reason
	case 6, 7:
		m.status, m.code, m.next = "retryable", []string{"timeout", "dns"}[r.IntN(2)], m.created+int64(r.IntN(9))
	case 8:
		m.status, m.made, m.next = "pending", 0, m.created // queued
	case 9:
		m.status, claimed = "pending", m.created // in flight
	}
	if i > 10 && r.IntN(6) == 0 {
		m.original, m.run = d.any().id, d.replays[r.IntN(2)]
	} else if r.IntN(6) == 0 {
		m.replay = d.replays[r.IntN(2)]
	}
	d.model = append(d.model, m)
	err := write(d.s, func(tx *sqlite.Tx) error {
		err := tx.Exec("INSERT INTO deliveries (num, id, subscription_id, subscription, program_id, status, failure_reason, attempts_made, "+
			"claimed_at, next_attempt_at, response_status, error, seqs, ping, redelivery_of, replay_id, created_at, completed_at, counted_at) "+
			"VALUES (?1, ?2, ?3, (SELECT num FROM subscriptions WHERE id = ?3), ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, 1)",
			m.num, record.ShortID(m.id), m.subscription, m.program, m.status, reason, m.made, claimed, null(m.next),
			null(m.response), null(m.code), seq,
			sqlite.Blob(bytesOf(ping)), null(record.ShortID(m.original)), null(m.replay), m.created, null(m.completed))
		if err == nil && seq != nil {
			err = link(tx, m.program, m.num, seq.(string))
		}
		if err == nil && m.run != "" {
			err = tx.Exec("INSERT INTO bulk_run_deliveries (run, delivery) SELECT num, ? FROM bulk_runs WHERE id = ?", m.num, m.run)
		}
		return err
	})
	must(d.t, err)
}

func (d *allDeliveries) any() *anyDelivery { return d.model[d.random.IntN(len(d.model))] }

// randomQuery returns the parameters of a random query.
func (d *allDeliveries) randomQuery() string {
	r := d.random
	raw := fmt.Sprintf("page[size]=%d", 1+r.IntN(7)) + []string{"", "&sort=created_at"}[r.IntN(2)]
	pick := func(often int, name string, values ...string) {
		if r.IntN(often) == 0 {
			raw += "&filter[" + name + "]=" + values[r.IntN(len(values))]
		}
	}
	pick(3, "status", "pending", "retryable", "success", "failed", "failed,retryable", "pending,failed", "pending,failed,retryable")
	pick(6, "event", "content_updated", "channel_created", "ping", "ping,content_deleted")
	pick(6, "response_status", "404", "4xx,5xx", "2xx,404", "500")
	pick(8, "error", "timeout", "dns,timeout", "tls")
	pick(4, "program_id", "p", "q", "p,q", "unknown")
	pick(4, "subscription_id", d.subs[0].ID, d.subs[1].ID+","+d.subs[2].ID, webhook.NewID())
	pick(5, "subscription_url", "P-0", "p-1.EXAMPLE,q-3", "n=1", "example", "nowhere", "https://q-2")
	pick(5, "attempts_made.from", "1", "2", "3", "5")
	pick(6, "event_id", d.ids["p"][modelNames[0]], d.ids["p"][modelNames[0]]+","+d.ids["p"][modelNames[1]],
		d.ids["q"][modelNames[1]]+","+d.ids["p"][modelNames[2]]+","+webhook.NewID())
	pick(8, "failure_reason", "rejected", "attempts_exhausted,rejected", "expired")
	pick(12, "id", d.any().id, d.any().id+","+d.any().id+","+webhook.NewID())
	pick(12, "redelivery_of", d.any().id, webhook.NewID())
	pick(12, "replay_id", d.replays[0], d.replays[0]+","+d.replays[1])
	pick(12, "bulk_run_id", d.replays[0], d.replays[0]+","+d.replays[1])
	for _, name := range []string{"next_attempt_at.from", "created_at.from", "created_at.to", "completed_at.to"} {
		pick(8, name, webhook.FormatTime(time.UnixMilli(d.any().created)))
	}
	return raw
}

// matching returns the IDs of the deliveries that match a query, newest first.
func (d *allDeliveries) matching(q *webhook.ListQuery, after int64) (ids []string) {
	for _, m := range d.model {
		if m.num > after && m.matchesAll(q) {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// checkPages reads a list to its end.
func (d *allDeliveries) checkPages(name string, q *webhook.ListQuery) {
	want := d.matching(q, 0)
	if !q.Sort[0].Descending {
		slices.Reverse(want)
	}
	got := readPages(d.t, name, q, 5*len(d.model), d.s.Deliveries().PageAll, func(d webhook.Delivery) string { return d.ID })
	if !slices.Equal(got, want) {
		d.t.Fatalf("%s:\ngot  %s\nwant %s", name, strings.Join(got, " "), strings.Join(want, " "))
	}
	if q.Filters["program_id"] != nil {
		return
	}
	want = slices.DeleteFunc(want, func(id string) bool {
		return d.model[slices.IndexFunc(d.model, func(m *anyDelivery) bool { return m.id == id })].program != "p"
	})
	ofProgram := func(ctx context.Context, q *webhook.ListQuery) ([]webhook.Delivery, string, error) {
		return d.s.Deliveries().PageProgram(ctx, "p", q)
	}
	got = readPages(d.t, name, q, 5*len(d.model), ofProgram, func(d webhook.Delivery) string { return d.ID })
	if !slices.Equal(got, want) {
		d.t.Fatalf("%s, program p:\ngot  %s\nwant %s", name, strings.Join(got, " "), strings.Join(want, " "))
	}
}

// checkAfter reads the deliveries after a num. The nums of the model are not dense, but
// without filters arrivals are counted by num.
func (d *allDeliveries) checkAfter(name string, q *webhook.ListQuery) {
	after, fresh := d.any().num, 0
	a, err := d.s.Deliveries().Arrivals(d.t.Context(), q, after, 5)
	if err != nil || a.Newest != d.model[0].num {
		d.t.Fatalf("%s: got newest %d (%v)", name, a.Newest, err)
	}
	want := d.matching(q, after)
	if fresh = len(want); len(q.Filters)+len(q.Ranges) == 0 && a.Newest-after > 5 {
		fresh = int(a.Newest - after)
	}
	if a.Count > fresh || a.Count < fresh && !a.More {
		d.t.Fatalf("%s after %d: got %d arrivals, want %d (more: %v)", name, after, a.Count, fresh, a.More)
	}
	if shown := a.Rows != nil; shown != (!a.More && a.Count > 0 && a.Count <= 5) {
		d.t.Fatalf("%s after %d: rows of %d arrivals read: %v (more: %v)", name, after, a.Count, shown, a.More)
	}
	for i, got := range a.Rows {
		if got.ID != want[i] || d.idOf(a.Nums[i]) != got.ID {
			d.t.Fatalf("%s after %d: row %d: got %s, want one of %v", name, after, i, got.ID, want)
		}
	}
	page, nums, err := d.s.Deliveries().UpTo(d.t.Context(), q, after, 5)
	older := d.matching(q, 0)[len(want):]
	for i, got := range page {
		if got.ID != older[i] || d.idOf(nums[i]) != got.ID {
			d.t.Fatalf("%s up to %d: row %d: got %s, want one of %v", name, after, i, got.ID, older)
		}
	}
	if err != nil || len(page) > 5 {
		d.t.Fatalf("%s up to %d: got %d rows (%v)", name, after, len(page), err)
	}
}

// idOf returns the ID of the delivery with a num.
func (d *allDeliveries) idOf(num int64) string { return d.model[len(d.model)-1-int(num-3)/2].id }

// checkPicked reads all matches in ascending order, as bulk runs do.
func (d *allDeliveries) checkPicked(name string, q *webhook.ListQuery) {
	var picked []string
	for at, more := int64(0), true; more; {
		var nums []int64
		before := at
		query := *q
		query.Size = 50
		f, err := d.s.Deliveries().DeliveryFeed(d.t.Context(), "", "", webhook.AllDeliveryList, &query)
		must(d.t, err)
		f.Low = max(f.Low, at)
		err = db(d.s).View(d.t.Context(), func(v *sqlite.View) error {
			nums, at, more, err = f.Walk(v, false, list.Start(false))
			return err
		})
		if err != nil || more && at <= before {
			d.t.Fatalf("%s: read from %d to %d (%v)", name, before, at, err)
		}
		for _, num := range nums {
			picked = append(picked, d.idOf(num))
		}
	}
	want := d.matching(q, 0)
	if slices.Reverse(want); !slices.Equal(picked, want) {
		d.t.Fatalf("%s:\ngot  %v\nwant %v", name, picked, want)
	}
}

// Random lists over all programs match a simple model, with limits so small that every path is
// taken.
func TestAllDeliveriesAgainstAModel(t *testing.T) {
	first := seed.Fresh(t)
	for i, limits := range []list.Limits{{Set: 4, Scan: 6, CostlyScan: 3}, {Set: 1000, Scan: 100, CostlyScan: 100},
		{Set: 20, Scan: 20, CostlyScan: 20}} {
		d := newAllDeliveries(t, seed.New(first+uint64(i)))
		*limitsOf(d.s) = limits
		for walk := range 150 {
			raw := d.randomQuery()
			if walk < 4 { // few of one kind, read as a set, with many of the others, read by an index
				raw = fmt.Sprintf("filter[status]=pending,failed,retryable&filter[attempts_made.from]=%d&page[size]=%d", 3+walk%2, 5+20*(walk/2))
			}
			name := fmt.Sprintf("limits %d, walk %d, %s", i, walk, raw)
			q := storetest.Query(t, webhook.AllDeliveryList, raw)
			d.checkPages(name, q)
			d.checkAfter(name, q)
			d.checkPicked(name, q)
		}
	}
}

// If the streams of subscriptions are too many, only the index of all deliveries is read, and
// each delivery is listed once.
func TestDeliveriesOfTooManyStreams(t *testing.T) {
	s := storetest.Open(t, "p")
	var want []string
	for range record.ListSubscriptions/2 + 1 {
		sub := storetest.Subscribe(t, s, "p", "content_updated")
		for _, status := range []int{404, 410} {
			publish(t, s, "p", "content_updated")
			c := form(t, s, sub.ID, 1)
			_, err := s.Queues().Record(c, &webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultFailed, ResponseStatus: status},
				webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureRejected}, webhook.HealthPolicy{})
			must(t, err)
			want = append(want, c.ID)
		}
	}
	slices.Reverse(want)
	q := storetest.Query(t, webhook.AllDeliveryList, "filter[program_id]=p&filter[response_status]=4xx")
	got := readPages(t, "4xx", q, len(want), s.Deliveries().PageAll, func(d webhook.Delivery) string { return d.ID })
	if !slices.Equal(got, want) {
		t.Errorf("got %d deliveries, want %d", len(got), len(want))
	}
}

// A part of a URL that matches too many subscriptions is refused, instead of returning some of
// them. A filter by program helps.
func TestDeliveriesByTooManyURLs(t *testing.T) {
	s := storetest.Open(t, "p", "q")
	first := storetest.Subscribe(t, s, "p", "content_updated")
	storetest.Subscribe(t, s, "q", "content_updated")
	more := func(from, to int) {
		t.Helper()
		err := write(s, func(tx *sqlite.Tx) error {
			if err := tx.Exec("CREATE TEMP TABLE one AS SELECT * FROM subscriptions WHERE id = ?", first.ID); err != nil {
				return err
			}
			for i := from; i < to; i++ {
				if err := tx.Exec("UPDATE one SET num = ?, id = ?", 1000+i, fmt.Sprintf("00000000-0000-7000-8000-%012x", i)); err != nil {
					return err
				}
				if err := tx.Exec("INSERT INTO subscriptions SELECT * FROM one"); err != nil {
					return err
				}
			}
			return tx.Exec("DROP TABLE one")
		})
		must(t, err)
	}
	list := func(raw, want string) {
		t.Helper()
		_, _, err := s.Deliveries().PageAll(t.Context(), storetest.Query(t, webhook.AllDeliveryList, raw))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(fmt.Sprint(err), want)) {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
	more(0, record.MaxNamed-2)
	list("filter[subscription_url]=partner", "")
	more(record.MaxNamed-2, record.MaxNamed-1)
	list("filter[subscription_url]=partner", "matches more than 1000 subscriptions; use a longer part")
	list("filter[subscription_url]=partner&filter[program_id]=q", "")
	list("filter[subscription_url]=partner&filter[subscription_id]="+first.ID, "")
	list("filter[subscription_url]=nowhere", "")
	more(record.MaxNamed-1, record.NamedAmong)
	list("filter[subscription_url]=nowhere", "cannot be searched in more than 10000 subscriptions")
	list("filter[subscription_url]=nowhere&filter[program_id]=q", "")
}
