package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"time"

	"service/store/erasure"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const (
	// maxBulkRuns is the maximum number of running bulk runs per program, and of running ones
	// for all programs.
	maxBulkRuns = 4
	// bulkPage is how many deliveries one read of a bulk run returns.
	bulkPage = 500
)

// BulkPlan is the effect that a bulk run would have now.
type BulkPlan struct {
	Matched   int                      // deliveries that match
	Done      int                      // of Matched: those that would be processed
	Skipped   map[webhook.BulkSkip]int // of Matched: the others, by reason
	Succeeded int                      // of Done: those already delivered
	Newest    int64                    // the num of the newest delivery examined
	Complete  bool                     // all deliveries were examined, oldest first
	Share     float64                  // share of the deliveries examined, 1 when complete
	From, To  time.Time                // when the oldest and the newest match examined were created
}

// NewBulkRun is a bulk run to create.
type NewBulkRun struct {
	ID        string // makes creation idempotent
	ProgramID string // the program that it and its query are limited to; "" for all
	Action    webhook.BulkAction
	Query     *webhook.ListQuery // of webhook.AllDeliveryList; its page is ignored
	Newest    int64              // the num of the newest delivery to include, 0 for the newest of all
	Audit     webhook.AuditEntry // the actor who creates it
}

// ErrBegun reports that a run with this ID has been created before. Nothing was done.
var ErrBegun = errors.New("store: the bulk run already exists")

// The outcome of a bulk run for a delivery d of a subscription s: the empty string if it is
// processed, else the reason for skipping it.
const (
	redeliverOutcome = `CASE
		WHEN d.ping IS NOT NULL THEN 'ping'
		WHEN d.completed_at IS NULL THEN 'not_ended'
		WHEN s.deleted_at IS NOT NULL THEN 'subscription_deleted'
		WHEN s.active = 0 THEN 'subscription_paused'
		WHEN ` + erasure.AllErased + ` THEN 'erased'
		WHEN ` + hasUnsubscribed + ` THEN 'unsubscribed'
		WHEN d.status = 'failed' AND EXISTS (SELECT 1 FROM recovered r WHERE r.delivery = d.num) THEN 'recovered'
		WHEN d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num) THEN 'splitting'
		WHEN EXISTS (SELECT 1 FROM deliveries r WHERE r.redelivery_of = d.id AND r.redelivery_of IS NOT NULL) THEN 'redelivered'
		WHEN d.status = 'failed' AND EXISTS (SELECT 1 FROM undelivered u WHERE u.delivery = d.num)
			AND NOT EXISTS (SELECT 1 FROM undelivered u WHERE u.delivery = d.num AND NOT EXISTS (SELECT 1 FROM delivery_events x
				CROSS JOIN deliveries r ON r.num = x.delivery
				WHERE x.program_id = d.program_id AND x.seq = u.seq AND x.delivery > d.num AND r.subscription = d.subscription))
			THEN 'sent_again'
		ELSE '' END`
	cancelOutcome = `CASE
		WHEN d.completed_at IS NOT NULL OR d.next_attempt_at IS NOT NULL AND s.deleted_at IS NOT NULL THEN 'ended'
		WHEN d.next_attempt_at IS NULL THEN 'in_flight'
		ELSE '' END`

	bulkRows        = " FROM json_each(?1) i CROSS JOIN deliveries d ON d.num = i.value CROSS JOIN subscriptions s ON s.id = d.subscription_id"
	countRedeliver  = "SELECT " + redeliverOutcome + ", d.status = 'success', count(*)" + bulkRows + " GROUP BY 1, 2"
	countCancel     = "SELECT " + cancelOutcome + ", d.status = 'success', count(*)" + bulkRows + " GROUP BY 1, 2"
	selectRedeliver = "SELECT d.num, " + redeliverOutcome + ", d.subscription_id" + bulkRows + " ORDER BY i.key"
	selectCancel    = "SELECT d.num, " + cancelOutcome + ", d.subscription_id" + bulkRows + " ORDER BY i.key"

	insertRedeliveries = `INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at,
		seqs, redelivery_of, created_at, counted_at)
		SELECT i.value ->> 1, s.id, s.num, d.program_id, 'pending', 0, ?2, ` + erasure.RemainingSeqs + `, d.id, ?3, ?4
		FROM json_each(?1) i CROSS JOIN deliveries d ON d.num = i.value ->> 0 CROSS JOIN subscriptions s ON s.id = d.subscription_id
		ORDER BY i.key`
	linkRedeliveries = "INSERT INTO delivery_events (program_id, seq, delivery) SELECT d.program_id, x.value, d.num FROM deliveries d " +
		"CROSS JOIN json_each(d.seqs) x WHERE d.num > ?"
	linkBulkRun = "INSERT INTO bulk_run_deliveries (run, delivery) SELECT ?, num FROM deliveries WHERE num > ?"

	cancelWaiting = `UPDATE deliveries SET status = 'failed', failure_reason = 'cancelled', next_attempt_at = NULL,
		completed_at = ?2, counted_at = ?3 WHERE num IN (SELECT value FROM json_each(?1)) AND next_attempt_at IS NOT NULL
		RETURNING num, id, subscription_id, ping IS NOT NULL`

	selectCreated = "SELECT created_at FROM deliveries WHERE num = ?"

	bulkRunColumns = "num, id, program_id, action, query, newest, after_num, status, stopped, coalesce(total, -1), done, skipped, " +
		"admin, address, created_at, completed_at, (SELECT count(*) FROM bulk_run_waits w WHERE w.run = bulk_runs.num)"
	selectBulkRun  = "SELECT " + bulkRunColumns + " FROM bulk_runs WHERE id = ?"
	selectBulkRuns = "SELECT " + bulkRunColumns + " FROM bulk_runs WHERE ?1 = '' OR program_id = ?1 " +
		"ORDER BY created_at DESC, id DESC LIMIT ?2"
	selectBulkRunsOf = "SELECT r.* FROM json_each(?) i CROSS JOIN (SELECT " + bulkRunColumns + " FROM bulk_runs) r ON r.num = i.value " +
		"ORDER BY i.key"
	selectBulkResults = "SELECT d.status, count(*) FROM bulk_run_deliveries x CROSS JOIN deliveries d ON d.num = x.delivery " +
		"WHERE x.run = (SELECT num FROM bulk_runs WHERE id = ?) GROUP BY 1"
)

// bulkOutcomes returns the queries that count and list the outcomes of an action.
func bulkOutcomes(a webhook.BulkAction) (count, find string) {
	if a == webhook.BulkCancel {
		return countCancel, selectCancel
	}
	return countRedeliver, selectRedeliver
}

// storedBulkRun is a bulk run with its progress.
type storedBulkRun struct {
	webhook.BulkRun
	num     int64
	after   int64 // all deliveries up to this num are processed, except those of waiting subscriptions
	address string
}

// bulkQuery is the stored part of a bulk run's query.
type bulkQuery struct {
	Filters map[string][]string          `json:"filters,omitempty"`
	Ranges  map[string]webhook.TimeRange `json:"ranges,omitempty"`
}

// scanBulkRun reads a row of bulkRunColumns.
func scanBulkRun(scan func(...any) error) (r storedBulkRun, err error) {
	var query, skipped string
	err = scan(&r.num, &r.ID, &r.ProgramID, &r.Action, &query, &r.Newest, &r.after, &r.Status, &r.Stopped, &r.Total, &r.Done, &skipped,
		&r.Admin, &r.address, (*sqlite.Time)(&r.CreatedAt), (*sqlite.Time)(&r.CompletedAt), &r.Waiting)
	if err != nil {
		return r, err
	}
	var q bulkQuery
	err = errors.Join(json.Unmarshal([]byte(query), &q), json.Unmarshal([]byte(skipped), &r.Skipped))
	r.Query = webhook.ListQuery{Sort: webhook.AllDeliveryList.Default, Filters: q.Filters, Ranges: q.Ranges, Size: webhook.DefaultPageSize,
		Number: 1}
	return r, err
}

// bulkRunOf reads a bulk run of a program, "" for any.
func bulkRunOf(programID string, scan func(...any) error) (storedBulkRun, error) {
	r, err := scanBulkRun(scan)
	if err == nil && programID != "" && r.ProgramID != programID {
		err = sql.ErrNoRows
	}
	return r, sqlite.NoRows(err, webhook.NotFound("bulk run"))
}

// Plan returns the effect of a bulk run on the deliveries that match a query of
// webhook.AllDeliveryList, regardless of its page, up to the num newest; 0 for the newest of
// all. It stops when ctx ends, or after limit unless that is 0, with an incomplete plan. It
// calls progress, unless nil, in between.
func (s BulkRuns) Plan(ctx context.Context, a webhook.BulkAction, q *webhook.ListQuery, newest int64, limit time.Duration,
	progress func(BulkPlan)) (BulkPlan, error) {
	count, _ := bulkOutcomes(a)
	p := BulkPlan{Skipped: make(map[webhook.BulkSkip]int), Newest: newest}
	if newest == 0 {
		if err := s.db.Scan(ctx, record.SelectNewestNum, nil, &p.Newest); err != nil {
			return p, err
		}
	}
	began := time.Now()
	var first, last, oldest int64
	for at := int64(0); !p.Complete; {
		nums, next, more, err := s.bulkPage(ctx, q, at, p.Newest)
		if err == nil {
			err = s.countOutcomes(ctx, &p, count, nums)
		}
		if err != nil {
			return p, err
		}
		if len(nums) > 0 {
			last = nums[len(nums)-1]
			if first == 0 {
				first = nums[0]
			}
		}
		if at == 0 {
			oldest = next
		}
		at, p.Complete, p.Share = next, !more, 1
		if more {
			p.Share = float64(at-oldest) / float64(max(p.Newest-oldest, 1))
		}
		if progress != nil {
			progress(p)
		}
		if limit > 0 && time.Since(began) > limit {
			break
		}
	}
	var err error
	if p.From, err = s.createdAt(ctx, first); err == nil {
		p.To, err = s.createdAt(ctx, last)
	}
	return p, err
}

// DryRun is Plan for at most dryRunTime, up to the newest delivery. The error is [ErrDryRuns] if the
// program has maxDryRuns.
func (s BulkRuns) DryRun(ctx context.Context, programID string, a webhook.BulkAction, q *webhook.ListQuery) (BulkPlan, error) {
	end, err := s.beginDryRun(programID)
	if err != nil {
		return BulkPlan{}, err
	}
	defer end()
	return s.Plan(asList(ctx), a, q, 0, dryRunTime, nil)
}

// createdAt returns when a delivery was created, the zero time if it was removed.
func (s BulkRuns) createdAt(ctx context.Context, num int64) (at time.Time, err error) {
	err = s.db.Scan(ctx, selectCreated, []any{num}, (*sqlite.Time)(&at))
	return at, sqlite.NoRows(err, nil)
}

// countOutcomes adds deliveries to a plan.
func (s BulkRuns) countOutcomes(ctx context.Context, p *BulkPlan, count string, nums []int64) error {
	if len(nums) == 0 {
		return nil
	}
	seen := 0
	err := s.db.Each(ctx, count, []any{sqlite.JSON(nums)}, func(scan func(...any) error) error {
		var skip webhook.BulkSkip
		var succeeded bool
		var n int
		if err := scan(&skip, &succeeded, &n); err != nil {
			return err
		}
		seen += n
		if skip != "" {
			p.Skipped[skip] += n
			return nil
		}
		p.Done += n
		if succeeded {
			p.Succeeded += n
		}
		return nil
	})
	p.Matched += len(nums)
	if gone := len(nums) - seen; gone > 0 { // removed by retention since
		p.Skipped[webhook.SkipGone] += gone
	}
	return err
}

// bulkPage returns the nums, above after and at most upto, of the deliveries that match a query, in
// ascending order, and how far it read. more reports that it stopped early. Each read is short.
func (s *core) bulkPage(ctx context.Context, q *webhook.ListQuery, after, upto int64) (nums []int64, at int64, more bool, err error) {
	query := *q
	query.Size = bulkPage
	f, err := s.records.DeliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return nil, after, false, err
	}
	f.Low, f.High = max(f.Low, after), min(f.High, upto+1)
	err = s.db.View(ctx, func(v *sqlite.View) error {
		nums, at, more, err = f.Walk(v, false, list.Start(false))
		return err
	})
	if !more {
		at = upto
	}
	return nums, at, more, err
}

// Count returns how many deliveries match a query of webhook.AllDeliveryList. It stops after
// limit unless that is 0; more reports that it did.
func (s BulkRuns) Count(ctx context.Context, q *webhook.ListQuery, limit time.Duration) (n int, more bool, err error) {
	var newest int64
	if err := s.db.Scan(ctx, record.SelectNewestNum, nil, &newest); err != nil {
		return 0, false, err
	}
	return s.countMatching(ctx, q, newest, limit)
}

// countMatching is Count for deliveries up to a num.
func (s *core) countMatching(ctx context.Context, q *webhook.ListQuery, upto int64, limit time.Duration) (n int, more bool, err error) {
	began := time.Now()
	for at := int64(0); ; {
		var nums []int64
		if nums, at, more, err = s.bulkPage(ctx, q, at, upto); err != nil {
			return n, false, err
		}
		if n += len(nums); !more || limit > 0 && time.Since(began) > limit {
			return n, more, nil
		}
	}
}

// Create creates a bulk run. The error is [ErrBegun] if its ID exists.
func (w BulkRunWrites) Create(n *NewBulkRun) (webhook.BulkRun, error) {
	s, t := w.t.s, w.t
	var begun bool
	var running int
	if err := t.use(n.ProgramID, ""); err != nil {
		return webhook.BulkRun{}, err
	}
	if err := t.Scan("SELECT EXISTS (SELECT 1 FROM bulk_runs WHERE id = ?)", []any{n.ID}, &begun); err != nil {
		return webhook.BulkRun{}, err
	}
	if begun {
		return webhook.BulkRun{}, ErrBegun
	}
	if err := t.Scan("SELECT count(*) FROM bulk_runs WHERE status = 'running' AND program_id = ?", []any{n.ProgramID}, &running); err != nil {
		return webhook.BulkRun{}, err
	}
	if running >= maxBulkRuns {
		return webhook.BulkRun{}, webhook.NewError(webhook.CodeConflict,
			webhook.Count(running, "bulk run")+" are running, the maximum. Wait for one to finish, or cancel one.")
	}
	newest := n.Newest
	if newest == 0 {
		if err := t.Scan(record.SelectNewestNum, nil, &newest); err != nil {
			return webhook.BulkRun{}, err
		}
	}
	err := t.Exec("INSERT INTO bulk_runs (id, program_id, action, query, newest, after_num, status, stopped, total, done, skipped, "+
		"admin, address, created_at) VALUES (?, ?, ?, ?, ?, 0, 'running', '', NULL, 0, '{}', ?, ?, ?)",
		n.ID, n.ProgramID, string(n.Action), sqlite.JSONText(bulkQuery{n.Query.Filters, n.Query.Ranges}), newest,
		n.Audit.Admin, n.Audit.Address, s.clock.Now().UnixMilli())
	if err != nil {
		return webhook.BulkRun{}, err
	}
	t.AfterCommit(func() { wake(s.housekeeping.bulk) })
	r, err := scanBulkRun(t.Row(selectBulkRun, n.ID))
	if err != nil {
		return webhook.BulkRun{}, err
	}
	selection := webhook.AllDeliveryList.Selection(n.Query)
	if selection == "" {
		selection = "everything"
	}
	return r.BulkRun, w.auditRun(&r, n.Audit, "Created: deliveries selected by "+selection)
}

// creator returns an audit entry with the creator of a bulk run, in whose name the service ends it.
func (r *storedBulkRun) creator() webhook.AuditEntry {
	return webhook.AuditEntry{Admin: cmp.Or(r.Admin, webhook.Service), Address: r.address}
}

// auditRun records an action of by on a bulk run.
func (w BulkRunWrites) auditRun(r *storedBulkRun, by webhook.AuditEntry, detail string) error {
	return w.t.people.Record(by, r.Action.Audited(), r.ProgramID, webhook.BulkRunSubject(r.ID), detail)
}

// Get returns a bulk run of a program, "" for any.
func (s BulkRuns) Get(ctx context.Context, programID, id string) (webhook.BulkRun, error) {
	r, err := bulkRunOf(programID, s.db.Row(ctx, selectBulkRun, id))
	if err != nil {
		return webhook.BulkRun{}, err
	}
	if r.Action == webhook.BulkRedeliver {
		r.Results = make(map[webhook.Status]int)
		err = s.db.Each(ctx, selectBulkResults, []any{id}, func(scan func(...any) error) error {
			var status webhook.Status
			var n int
			err := scan(&status, &n)
			r.Results[status] = n
			return err
		})
	}
	return r.BulkRun, err
}

// bulkRunsOfProgram reads all bulk runs, which are few.
var bulkRunsOfProgram = list.Along("n.num", "n.num", list.AllOf(list.IsIn("n.program_id"), list.IsIn("n.status"), list.IsIn("n.action")),
	"FROM bulk_runs n WHERE TRUE")

// Page returns a page of the bulk runs of a program, without their results, and the cursor of
// the next page, "" on the last. It reads a bounded number of runs, so a page with a cursor may
// be short or empty.
func (s BulkRuns) Page(ctx context.Context, programID string, q *webhook.ListQuery) (all []webhook.BulkRun, next string, err error) {
	b := list.BindsOf(q)
	b["program_id"] = sqlite.JSON([]string{programID})
	f := &list.Feed{
		Reader: s.lists, Query: q, Binds: b, High: math.MaxInt64, Budget: s.lists.Limits.Scan,
		Streams: []list.Stream{{Access: bulkRunsOfProgram}},
		Scope:   list.Scope{List: "bulk_runs", ProgramID: programID, Selection: webhook.BulkRunList.Selection(q)},
	}
	return list.Rows(ctx, f, selectBulkRunsOf, nil, scanRun)
}

// scanRun is scanBulkRun without the progress.
func scanRun(scan func(...any) error) (webhook.BulkRun, error) {
	r, err := scanBulkRun(scan)
	return r.BulkRun, err
}

// Recent returns the newest bulk runs of a program, "" for all, newest first and without their
// results.
func (s BulkRuns) Recent(ctx context.Context, programID string, limit int) (all []webhook.BulkRun, err error) {
	err = s.db.Each(ctx, selectBulkRuns, []any{programID, limit}, sqlite.ScanInto(&all, scanRun))
	return all, err
}

// Check returns an error for a query that cannot be run, for example because too many
// subscriptions match a part of a URL.
func (s BulkRuns) Check(ctx context.Context, q *webhook.ListQuery) error {
	query := *q
	query.Size, query.Cursor = 1, ""
	_, _, err := (record.Deliveries{Reads: s.records}).PageAll(ctx, &query)
	return err
}

// Cancel stops a bulk run of a program, "" for any. Its effects so far remain. The error is
// a *webhook.Error with CodeConflict if the run is no longer running.
func (w BulkRunWrites) Cancel(programID, id string, by webhook.AuditEntry) (webhook.BulkRun, error) {
	row := w.t.Row(selectBulkRun, id)
	r, err := bulkRunOf(programID, row)
	if err != nil {
		return webhook.BulkRun{}, err
	}
	if err := w.t.use(r.ProgramID, ""); err != nil {
		return webhook.BulkRun{}, err
	}
	if r.Status != webhook.BulkRunning {
		return r.BulkRun, webhook.NewError(webhook.CodeConflict, "The bulk run is no longer running: its status is "+string(r.Status)+".")
	}
	if err := w.end(&r, webhook.BulkCancelled, "", by); err != nil {
		return webhook.BulkRun{}, err
	}
	r, err = scanBulkRun(row)
	return r.BulkRun, err
}

// end ends a bulk run. by is the actor who ended it.
func (w BulkRunWrites) end(r *storedBulkRun, status webhook.BulkStatus, stopped string, by webhook.AuditEntry) error {
	total := any(r.Processed())
	if status != webhook.BulkDone {
		if total = nil; r.Total >= 0 {
			total = r.Total
		}
	}
	err := w.t.Exec("UPDATE bulk_runs SET status = ?, stopped = ?, total = ?, completed_at = ?, counted_at = ? "+
		"WHERE id = ? AND status = 'running'", string(status), stopped, total, w.t.s.clock.Now().UnixMilli(), w.t.counted(), r.ID)
	if err == nil {
		err = w.t.Exec("DELETE FROM bulk_run_waits WHERE run = ?", r.num)
	}
	if err != nil {
		return err
	}
	w.t.AfterCommit(func() { wake(w.t.s.housekeeping.bulk) })
	return w.auditRun(r, by, bulkEnd(r, status, stopped))
}

// bulkEnd describes how a bulk run ended.
func bulkEnd(r *storedBulkRun, status webhook.BulkStatus, stopped string) string {
	text := "Completed: "
	if status == webhook.BulkCancelled {
		text = "Cancelled: "
	}
	text += webhook.Count(r.Done, "delivery") + " done, " + webhook.Count(r.Processed()-r.Done, "delivery") + " skipped"
	if stopped != "" {
		text += ". " + stopped
	}
	return text
}

// redeliverAll queues new deliveries with the events of existing ones, in their order, for a
// bulk run.
func (s *core) redeliverAll(t *tx, nums []int64, run int64) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	pairs := make([][2]any, len(nums))
	for i, num := range nums {
		pairs[i] = [2]any{num, record.ShortID(webhook.NewID())}
	}
	var before int64
	if err := t.Scan(record.SelectNewestNum, nil, &before); err != nil {
		return err
	}
	if err := t.Exec(insertRedeliveries, sqlite.JSON(pairs), s.clock.Wait(s.clock.Now()), now, t.counted()); err != nil {
		return err
	}
	t.deliveryChanged(0)
	if err := t.Exec(linkBulkRun, run, before); err != nil {
		return err
	}
	return t.Exec(linkRedeliveries, before)
}

// cancel cancels pending deliveries, and returns how many.
func (s *core) cancel(t *tx, nums []int64) (n int, err error) {
	now, err := t.now()
	if err != nil {
		return 0, err
	}
	queues := make(map[string]struct{})
	var pings []string
	var cancelled []int64 // excluding pings
	err = t.Each(cancelWaiting, []any{sqlite.JSON(nums), now, t.counted()}, func(scan func(...any) error) error {
		var num int64
		var id, subscription string
		var ping bool
		if err := scan(&num, (*record.DeliveryID)(&id), &subscription, &ping); err != nil {
			return err
		}
		n++
		queues[subscription] = struct{}{}
		if ping {
			pings = append(pings, id)
		} else {
			cancelled = append(cancelled, num)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, num := range nums {
		t.deliveryChanged(num)
	}
	if err := t.noteAllUndelivered(cancelled); err != nil {
		return 0, err
	}
	t.AfterCommit(func() {
		for _, id := range pings {
			s.watchers.Attempts.End(id, nil)
		}
		// The queue's next due time was that of a cancelled delivery, and an ordered
		// queue waits for it: the next claim updates it.
		for id := range queues {
			s.watchers.Queued(id)
		}
		s.metrics.Ended[webhook.FailureCancelled].Add(float64(n))
	})
	return n, nil
}

const selectCancellable = "SELECT num, status, attempts_made, next_attempt_at IS NOT NULL, " +
	"EXISTS (SELECT 1 FROM splits p WHERE p.delivery = num) FROM deliveries WHERE id = ? AND subscription_id = ?"

// Cancel cancels a delivery that waits for an attempt, so that nothing more of it is sent, or the
// split of a failed delivery; the split's deliveries so far continue. The error is a *webhook.Error
// with CodeConflict if the delivery has completed or is in flight.
func (w DeliveryWrites) Cancel(programID, subscriptionID, id string, by webhook.AuditEntry) error {
	if _, err := w.t.subscription(programID, subscriptionID); err != nil {
		return err
	}
	var num int64
	var attempts int
	var status webhook.Status
	var waits, splitting bool
	err := w.t.Scan(selectCancellable, []any{record.ShortID(id), subscriptionID}, &num, &status, &attempts, &waits, &splitting)
	if err != nil {
		return sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	switch {
	case splitting:
		w.t.deliveryChanged(num)
		w.t.AfterCommit(func() { w.t.s.watchers.SubscriptionChanged(subscriptionID) })
		err = w.t.Exec(deleteSplit, num)
	case status.Final():
		return webhook.NewError(webhook.CodeConflict, "The delivery is already completed: its status is "+string(status)+".")
	case !waits:
		return webhook.NewError(webhook.CodeConflict, "The delivery is in flight and cannot be cancelled. Try again when it waits for a retry.")
	default:
		_, err = w.t.s.cancel(w.t, []int64{num})
	}
	if err != nil {
		return err
	}
	return w.t.people.Record(by, webhook.ActionDeliveryCancel, programID, id, "after "+webhook.Count(attempts, "attempt"))
}
