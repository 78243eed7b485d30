package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"service/webhook"
)

const (
	// BulkLimit is how many deliveries one bulk action picks.
	BulkLimit = 10_000
	// bulkPage is how many of them one read looks for.
	bulkPage = 500
)

// BulkPlan says what a bulk action would do just now, to what could be picked
// in the time that a page may take.
type BulkPlan struct {
	Picked    int                      // deliveries that match, newest first, at most BulkLimit
	Done      int                      // it would be done to
	Skipped   map[webhook.BulkSkip]int // the others, by reason
	Succeeded int                      // of those it would be done to: that were delivered already
	Newest    int64                    // the place that the picking began at; see Bulk.Newest
	Rest      int64                    // the place to go on from, 0 when there is no more
	From, To  time.Time                // when the oldest and the newest of those picked were created
}

// Bulk is one run of a bulk action.
type Bulk struct {
	ID     string // a UUID: a run is begun once
	Action webhook.Action
	Query  *webhook.ListQuery // of webhook.AllDeliveryList; its page does not matter
	Newest int64              // no delivery newer than this place is looked at, nor one of its own; 0 for none
	Rest   int64              // nor one at this place or older, see BulkPlan; 0 for none
	Audit  webhook.AuditEntry // who does it; its action, subject and detail are set
}

// BulkResult says what a run has done so far.
type BulkResult struct {
	Picked  int
	Done    int
	Skipped map[webhook.BulkSkip]int
	Left    int   // that it did not come to
	Waiting int   // of those: that wait until redeliveries of their subscriptions have ended
	Rest    int64 // as in BulkPlan
}

// ErrBegun says that a run with this id was begun before, perhaps by an earlier
// process. Nothing was done.
var ErrBegun = errors.New("store: the run was begun before")

// The outcome of a bulk action for a delivery d of a subscription s: ” when it
// is done, or else the reason that it is not.
const (
	redeliverOutcome = `CASE
		WHEN d.ping IS NOT NULL THEN 'ping'
		WHEN d.completed_at IS NULL THEN 'not_ended'
		WHEN s.deleted_at IS NOT NULL THEN 'subscription_deleted'
		WHEN s.active = 0 THEN 'subscription_paused'
		WHEN EXISTS (SELECT 1 FROM deliveries r WHERE r.redelivery_of = d.id AND r.redelivery_of IS NOT NULL) THEN 'redelivered'
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

	insertRedeliveries = `INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, next_attempt_at, seqs, redelivery_of, created_at)
		SELECT i.value ->> 1, d.subscription_id, (SELECT num FROM subscriptions WHERE id = d.subscription_id), d.program_id, 'pending', 0, ?2, d.seqs, d.id, ?3
		FROM json_each(?1) i CROSS JOIN deliveries d ON d.num = i.value ->> 0 ORDER BY i.key`
	linkRedeliveries = "INSERT INTO delivery_events (program_id, seq, delivery) SELECT d.program_id, x.value, d.num FROM deliveries d CROSS JOIN json_each(d.seqs) x WHERE d.num > ?"

	cancelWaiting = `UPDATE deliveries SET status = 'failed', failure_reason = 'cancelled', next_attempt_at = NULL, completed_at = ?2
		WHERE num IN (SELECT value FROM json_each(?1)) AND next_attempt_at IS NOT NULL RETURNING id, subscription_id, ping IS NOT NULL`

	selectCreated = "SELECT created_at FROM deliveries WHERE num = ?"
	selectRun     = "SELECT EXISTS (SELECT 1 FROM audit WHERE subject_id = ?)"
)

func outcomes(a webhook.Action) (count, find string) {
	switch a {
	case webhook.ActionDeliveryRedeliver:
		return countRedeliver, selectRedeliver
	case webhook.ActionDeliveryCancel:
		return countCancel, selectCancel
	}
	panic("store: no bulk action " + string(a))
}

// Plan says what a bulk action would do to all deliveries that a query of
// webhook.AllDeliveryList lets through, whatever its page, up to a place; 0 is
// the newest there is.
func (s BulkRuns) Plan(ctx context.Context, a webhook.Action, q *webhook.ListQuery, newest int64) (BulkPlan, error) {
	count, _ := outcomes(a)
	p := BulkPlan{Skipped: make(map[webhook.BulkSkip]int)}
	began := time.Now()
	var first, last int64
	var err error
	p.Newest, p.Rest, err = s.pick(ctx, q, newest, 0, func(nums []int64) (bool, error) {
		if first == 0 && len(nums) > 0 {
			first = nums[0]
		}
		if len(nums) > 0 {
			last = nums[len(nums)-1]
		}
		p.Picked += len(nums)
		err := s.db.Each(ctx, count, []any{jsonOf(append([]int64{}, nums...))}, func(scan func(...any) error) error {
			var skip webhook.BulkSkip
			var succeeded bool
			var n int
			if err := scan(&skip, &succeeded, &n); err != nil {
				return err
			}
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
		return s.lists.plan == 0 || time.Since(began) < s.lists.plan, err
	})
	if err != nil || p.Picked == 0 {
		return p, err
	}
	for num, at := range map[int64]*time.Time{first: &p.To, last: &p.From} {
		var created int64
		if err := s.db.Scan(ctx, selectCreated, []any{num}, &created); ignoreNoRows(err) != nil {
			return p, err
		} else if err == nil {
			*at = time.UnixMilli(created).UTC()
		}
	}
	// What retention has removed meanwhile.
	if gone := p.Picked - p.Done - sum(p.Skipped); gone > 0 {
		p.Skipped[webhook.SkipGone] = gone
	}
	return p, nil
}

func sum(counts map[webhook.BulkSkip]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// pick calls page with the places of what a query lets through, newest first,
// from the place from on, which is at most newest, down to the place oldest,
// which is not looked at: until there is no more, BulkLimit is reached, or page
// says that it is enough. It returns the place to go on from, 0 when there is no
// more. Each of its reads is short.
func (s BulkRuns) pick(ctx context.Context, q *webhook.ListQuery, newest, oldest int64, page func([]int64) (bool, error)) (from, rest int64, err error) {
	query := *q
	f, err := s.deliveryFeed(ctx, "", "", webhook.AllDeliveryList, &query)
	if err != nil {
		return 0, 0, err
	}
	if newest == 0 {
		if err := s.db.Scan(ctx, selectNewestNum, nil, &newest); err != nil {
			return 0, 0, err
		}
	}
	if oldest > f.low {
		f.low, rest = oldest, oldest
	}
	at := position{key: min(f.high, newest+1)}
	for picked := 0; picked < BulkLimit; {
		query.Size = min(bulkPage, BulkLimit-picked)
		var nums []int64
		var left bool
		err := s.view(ctx, func(v *view) (err error) {
			nums, at, left, err = f.walk(v, order{keyDescending: true}, at)
			return err
		})
		if err != nil {
			return newest, 0, err
		}
		picked += len(nums)
		more, err := page(nums)
		if err != nil || !left {
			return newest, rest, err
		}
		if !more {
			break
		}
	}
	return newest, at.key - 1, nil
}

// Run does a bulk action, oldest first, in small steps that leave the
// writer to others for most of the time. When ctx ends, or the store cannot go
// on, what was done is done, and the rest is left. Progress is called after
// each step, on the caller's goroutine. The error is [ErrBegun] when the id was
// used before.
func (s BulkRuns) Run(ctx context.Context, b *Bulk, progress func(BulkResult)) (BulkResult, error) {
	r := BulkResult{Skipped: make(map[webhook.BulkSkip]int)}
	var nums []int64
	_, rest, err := s.pick(ctx, b.Query, b.Newest, b.Rest, func(page []int64) (bool, error) {
		nums = append(nums, page...)
		return true, nil
	})
	if err != nil {
		return r, err
	}
	slices.Reverse(nums)
	r.Picked, r.Left, r.Rest = len(nums), len(nums), rest

	entry := b.Audit
	entry.Action, entry.SubjectID = b.Action, b.ID
	selection := webhook.AllDeliveryList.Selection(b.Query)
	if selection == "" {
		selection = "everything"
	}
	err = s.write(ctx, func(w Write) error {
		var begun bool
		if err := w.t.Scan(selectRun, []any{b.ID}, &begun); err != nil {
			return err
		}
		if begun {
			return ErrBegun
		}
		entry.Detail = "Begun: " + webhook.Count(len(nums), "delivery") + " picked by " + selection
		return w.Audit(entry)
	})
	if err != nil {
		return r, err
	}
	progress(r.clone())

	err = s.steps(ctx, b.Action, nums, &r, progress)
	entry.Detail = fmt.Sprintf("Ended: %d done, %d skipped, %d left", r.Done, sum(r.Skipped), r.Left)
	// It is recorded what was done, also when there is no time for more.
	audited := s.write(context.WithoutCancel(ctx), func(w Write) error { return w.Audit(entry) })
	return r, errors.Join(err, audited)
}

// steps does a bulk action to deliveries. What would be more open redeliveries than
// a subscription may have waits, with all that comes after it of that
// subscription, until some have ended.
func (s BulkRuns) steps(ctx context.Context, a webhook.Action, nums []int64, r *BulkResult, progress func(BulkResult)) error {
	_, find := outcomes(a)
	work := &sweep{s: s.core, ctx: ctx, step: firstSweep}
	for len(nums) > 0 {
		var later []int64
		all, full := len(nums), make(map[string]bool)
		for len(nums) > 0 {
			some := nums[:min(work.step, len(nums))]
			var is bulkStep
			err := work.write(func(t *tx) (err error) {
				is, err = s.step(t, a, find, some, full)
				return err
			})
			if err != nil {
				return err
			}
			for id := range is.full {
				full[id] = true
			}
			nums, later = nums[len(some):], append(later, is.later...)
			r.Done, r.Left, r.Waiting = r.Done+is.done, len(nums)+len(later), len(later)
			for skip, n := range is.skipped {
				r.Skipped[skip] += n
			}
			progress(r.clone())
		}
		nums = later
		if len(later) < all {
			continue
		}
		pause := time.NewTimer(bulkPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// bulkPause is how long a run waits for redeliveries to end before it looks again.
const bulkPause = 250 * time.Millisecond

// bulkStep is what one step of a run has come to.
type bulkStep struct {
	done    int
	skipped map[webhook.BulkSkip]int
	later   []int64         // deliveries that have to wait
	full    map[string]bool // subscriptions that they wait for
}

func (r BulkResult) clone() BulkResult {
	r.Skipped = maps.Clone(r.Skipped)
	return r
}

// step does a bulk action to some deliveries, but not to those of full
// subscriptions.
func (s BulkRuns) step(t *tx, a webhook.Action, find string, nums []int64, full map[string]bool) (bulkStep, error) {
	is := bulkStep{skipped: make(map[webhook.BulkSkip]int), full: make(map[string]bool)}
	type found struct {
		num          int64
		subscription string
	}
	var all []found
	seen := 0
	err := t.Each(find, []any{jsonOf(nums)}, func(scan func(...any) error) error {
		var f found
		var skip webhook.BulkSkip
		if err := scan(&f.num, &skip, &f.subscription); err != nil {
			return err
		}
		seen++
		if skip != "" {
			is.skipped[skip]++
			return nil
		}
		all = append(all, f)
		return nil
	})
	if err != nil {
		return is, err
	}
	if gone := len(nums) - seen; gone > 0 {
		is.skipped[webhook.SkipGone] = gone
	}
	var chosen []int64
	room := make(map[string]int) // of each subscription
	for _, f := range all {
		left, known := room[f.subscription]
		if !known {
			left = len(all)
			if a == webhook.ActionDeliveryRedeliver {
				open, err := t.openRedeliveries(f.subscription, s.quotas.redeliveries)
				if err != nil {
					return is, err
				}
				left = s.quotas.redeliveries - open
			}
			if full[f.subscription] {
				left = 0
			}
		}
		room[f.subscription] = max(left-1, 0)
		if left == 0 {
			is.later, is.full[f.subscription] = append(is.later, f.num), true
			continue
		}
		chosen = append(chosen, f.num)
	}
	if len(chosen) == 0 {
		return is, nil
	}
	t.AfterCommit(func() {
		for id := range room {
			s.watchers.queued(id)
		}
	})
	if a == webhook.ActionDeliveryCancel {
		is.done, err = s.cancel(t, chosen)
		return is, err
	}
	is.done = len(chosen)
	return is, s.redeliverAll(t, chosen)
}

// redeliverAll queues new deliveries with the events of old ones, in their order.
func (s BulkRuns) redeliverAll(t *tx, nums []int64) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	pairs := make([][2]any, len(nums))
	for i, num := range nums {
		pairs[i] = [2]any{num, shortID(webhook.NewID())}
	}
	list, err := json.Marshal(pairs)
	if err != nil {
		return err
	}
	var before int64
	if err := t.Scan(selectNewestNum, nil, &before); err != nil {
		return err
	}
	if err := t.Exec(insertRedeliveries, string(list), s.clock.wait(s.clock.now()), now); err != nil {
		return err
	}
	t.deliveryChanged(0)
	return t.Exec(linkRedeliveries, before)
}

// cancel ends deliveries that wait for an attempt, and returns how many did.
func (s *core) cancel(t *tx, nums []int64) (n int, err error) {
	now, err := t.now()
	if err != nil {
		return 0, err
	}
	queues := make(map[string]struct{})
	var pings []string
	err = t.Each(cancelWaiting, []any{jsonOf(nums), now}, func(scan func(...any) error) error {
		var id, subscription string
		var ping bool
		if err := scan((*deliveryID)(&id), &subscription, &ping); err != nil {
			return err
		}
		n++
		queues[subscription] = struct{}{}
		if ping {
			pings = append(pings, id)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, num := range nums {
		t.deliveryChanged(num)
	}
	t.AfterCommit(func() {
		for _, id := range pings {
			s.watchers.dropped(id)
		}
		// Its next time was that of what is cancelled, and an ordered queue waits
		// for it: a claim finds out what is due instead.
		for id := range queues {
			s.watchers.queued(id)
		}
		s.metrics.ended[webhook.FailureCancelled].Add(float64(n))
	})
	return n, nil
}

const selectCancellable = "SELECT num, status, next_attempt_at IS NOT NULL FROM deliveries WHERE id IN (?, ?) AND subscription_id = ?"

// Cancel ends a delivery that waits for an attempt: it has failed, as
// cancelled, and nothing more is sent of it. One that is at its end or being
// sent just now is refused as a conflict.
func (w Write) Cancel(programID, subscriptionID, id string) error {
	if _, err := w.t.subscription(programID, subscriptionID); err != nil {
		return err
	}
	var num int64
	var status webhook.Status
	var waits bool
	if err := w.t.Scan(selectCancellable, []any{shortID(id), id, subscriptionID}, &num, &status, &waits); err != nil {
		return notFound(err, "delivery")
	}
	switch {
	case status.Final():
		return webhook.NewError(webhook.CodeConflict, "The delivery is at its end: there is nothing to cancel.")
	case !waits:
		return webhook.NewError(webhook.CodeConflict, "The delivery is being sent just now, which cannot be taken back; it can be cancelled if it is to be tried again.")
	}
	_, err := w.s.cancel(w.t, []int64{num})
	return err
}
