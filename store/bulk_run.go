package store

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/store/watch"
	"service/webhook"
)

// bulkPause is the minimum interval between two attempts to continue while all bulk runs wait.
const bulkPause = 250 * time.Millisecond

// bulkRate is the maximum number of redeliveries that bulk runs create per second, all runs
// together, so that publishing and other deliveries keep most of the processors.
const bulkRate = 2000

// bulkBurst is the maximum number of redeliveries that one step of a run creates.
const bulkBurst = 50

// errBulkEnded reports that a bulk run was cancelled during a step.
var errBulkEnded = errors.New("store: the bulk run has ended")

// Run works on the bulk runs until ctx ends, in small steps that leave the writer free most of
// the time. Each step is one transaction that includes the run's progress, so a run that an
// earlier process started continues where that process stopped.
func (s BulkRuns) Run(ctx context.Context) error {
	s.housekeep(inBackground(ctx), s.housekeeping.bulk, s.workBulkRuns)
	return nil
}

// workBulkRuns works on all running bulk runs in turn, until there are none. While all of them
// wait for redeliveries to complete, it sleeps until a delivery changes.
func (s *core) workBulkRuns(ctx context.Context) error {
	work := s.newSteps(ctx, sweepPace)
	var changes *watch.Watcher // open while all runs wait
	stopWaiting := func() {
		if changes != nil {
			changes.Close()
			changes = nil
		}
	}
	defer stopWaiting()
	for {
		s.housekeeping.bulkTurns.Add(1)
		runs, err := s.runningBulkRuns(ctx)
		if err != nil || len(runs) == 0 {
			return err
		}
		idle := true
		for i := range runs {
			worked, err := (&bulkWork{steps: &work, run: &runs[i]}).turn()
			var refused *webhook.Error
			switch {
			case errors.As(err, &refused):
				// Its query can no longer be run, so a retry is useless.
				err = s.write(ctx, func(w Write) error {
					return w.BulkRuns().end(&runs[i], webhook.BulkCancelled, refused.Error(), runs[i].creator())
				})
			case errors.Is(err, errBulkEnded):
				err = nil
			}
			if err != nil {
				return err
			}
			idle = idle && !worked
		}
		if !idle {
			stopWaiting()
			continue
		}
		if changes == nil {
			changes = s.watchers.Watch(true) // opened before another turn, which sees the changes until now
			continue
		}
		if err := s.awaitRoom(ctx, changes); err != nil {
			return err
		}
	}
}

// awaitRoom waits until a waiting bulk run may continue: until a delivery has changed or a run
// was created or cancelled, and at least bulkPause.
func (s *core) awaitRoom(ctx context.Context, changes *watch.Watcher) error {
	select {
	case <-changes.C:
		changes.Take()
	case <-s.housekeeping.bulk:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	pause := time.NewTimer(bulkPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.housekeeping.bulk:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// runningBulkRuns returns the running bulk runs, oldest first.
func (s *core) runningBulkRuns(ctx context.Context) (runs []storedBulkRun, err error) {
	err = s.db.Each(ctx, selectRunningBulkRuns, nil, sqlite.ScanInto(&runs, scanBulkRun))
	return runs, err
}

const (
	selectRunningBulkRuns = "SELECT " + bulkRunColumns + " FROM bulk_runs WHERE status = 'running' AND program_id" + list.CanBeUsed +
		" ORDER BY created_at, id"
	selectBulkWaits = "SELECT subscription_id, after_num FROM bulk_run_waits WHERE run = ?"
	moveBulkRun     = "UPDATE bulk_runs SET after_num = ?, done = ?, skipped = ? WHERE id = ? AND status = 'running'"
	insertBulkWait  = "INSERT INTO bulk_run_waits (run, subscription_id, after_num) VALUES (?, ?, ?)"
	moveBulkWait    = "UPDATE bulk_run_waits SET after_num = ? WHERE run = ? AND subscription_id = ?"
	countBulkRun    = `INSERT INTO bulk_run_subscriptions (subscription_id, run, done)
		SELECT d.subscription_id, ?1, count(*) FROM json_each(?2) i CROSS JOIN deliveries d ON d.num = i.value WHERE TRUE GROUP BY 1
		ON CONFLICT DO UPDATE SET done = done + excluded.done`
	deleteBulkWait = "DELETE FROM bulk_run_waits WHERE run = ? AND subscription_id = ?"
)

// bulkWork is one turn of a bulk run. A run processes all deliveries in ascending order. It
// sets aside subscriptions that have reached their limit of open redeliveries, and continues
// with them when they have room.
type bulkWork struct {
	*steps // of all runs
	run    *storedBulkRun
	waits  map[string]int64 // the run's progress in subscriptions that were set aside
}

// turn does the next part of a run, and reports whether there was anything to do.
func (b *bulkWork) turn() (worked bool, err error) {
	b.waits = make(map[string]int64)
	err = b.s.db.Each(b.ctx, selectBulkWaits, []any{b.run.num}, func(scan func(...any) error) error {
		var id string
		var after int64
		err := scan(&id, &after)
		b.waits[id] = after
		return err
	})
	switch {
	case err != nil:
		return false, err
	case b.run.Total < 0:
		return true, b.count()
	case b.run.after < b.run.Newest:
		if err := b.advance(""); err != nil {
			return true, err
		}
		worked = true
	case len(b.waits) == 0:
		return true, b.finish()
	}
	for _, id := range slices.Sorted(maps.Keys(b.waits)) {
		var open int
		if err := b.s.db.Scan(b.ctx, countOpenRedeliveries, []any{id, b.s.quotas.redeliveries}, &open); err != nil {
			return worked, err
		}
		if open >= b.s.quotas.redeliveries {
			continue
		}
		if err := b.advance(id); err != nil {
			return true, err
		}
		worked = true
	}
	return worked, nil
}

// finish completes a run that has processed everything.
func (b *bulkWork) finish() error {
	err := b.s.write(b.ctx, func(w Write) error { return w.BulkRuns().end(b.run, webhook.BulkDone, "", b.run.creator()) })
	if err == nil {
		b.s.logger.Info("bulk run completed", "bulk_run", b.run.ID, "action", string(b.run.Action), "done", b.run.Done, "skipped",
			b.run.Processed()-b.run.Done, "longest_step", b.longest)
	}
	return err
}

// count counts the matching deliveries, so that the run can report its progress.
func (b *bulkWork) count() error {
	total, _, err := b.s.countMatching(b.ctx, &b.run.Query, b.run.Newest, 0)
	if err != nil {
		return err
	}
	return b.s.writer.doRepeatable(func(t *tx) error {
		return t.Exec("UPDATE bulk_runs SET total = ? WHERE id = ? AND status = 'running'", total, b.run.ID)
	})
}

// advance processes the next deliveries: of all subscriptions, or of one that was set aside.
func (b *bulkWork) advance(subscription string) error {
	query, after := b.run.Query, b.run.after
	if subscription != "" {
		query.Filters = maps.Clone(query.Filters)
		if query.Filters == nil {
			query.Filters = make(map[string][]string)
		}
		query.Filters["subscription_id"], after = []string{subscription}, b.waits[subscription]
	}
	nums, end, _, err := b.s.bulkPage(b.ctx, &query, after, b.run.Newest)
	if err != nil {
		return err
	}
	for first := true; first || len(nums) > 0; first = false {
		size := b.size
		if b.run.Action == webhook.BulkRedeliver {
			size = min(size, bulkBurst)
		}
		some := nums[:min(size, len(nums))]
		nums = nums[len(some):]
		step := bulkStep{subscription: subscription, nums: some, after: end}
		if len(nums) > 0 {
			step.after = some[len(some)-1]
		}
		var did bulkResult
		err := b.write(func(t *tx) (err error) {
			did, err = b.do(t, &step)
			return err
		})
		if err != nil {
			return err
		}
		if err := b.rest(did.done); err != nil {
			return err
		}
		b.run.Done, b.run.Skipped = b.run.Done+did.done, did.skipped
		for _, num := range did.left {
			b.waits[num.subscription] = num.after
		}
		if subscription == "" {
			b.run.after = did.after
		} else {
			b.waits[subscription] = did.after
		}
		if did.full {
			return nil
		}
	}
	return nil
}

// rest waits after a step for as long as its redeliveries take at bulkRate.
func (b *bulkWork) rest(done int) error {
	if b.run.Action != webhook.BulkRedeliver || done == 0 {
		return nil
	}
	return sleep(b.ctx, time.Duration(done)*time.Second/bulkRate)
}

// bulkStep is the input of one transaction of a bulk run.
type bulkStep struct {
	subscription string // "" for all
	nums         []int64
	after        int64 // progress after the step
}

// bulkResult is the result of a step.
type bulkResult struct {
	done    int
	skipped map[webhook.BulkSkip]int // of the whole run
	left    []bulkLeft               // subscriptions that it set aside
	full    bool                     // the subscription of the step has reached its limit
	after   int64
}

// bulkLeft is a subscription that was set aside, with the run's progress in it.
type bulkLeft struct {
	subscription string
	after        int64
}

// do performs one step. It may be called twice, so it changes nothing in memory.
func (b *bulkWork) do(t *tx, step *bulkStep) (did bulkResult, err error) {
	var status webhook.BulkStatus
	if err := t.Scan("SELECT status FROM bulk_runs WHERE id = ?", []any{b.run.ID}, &status); err != nil {
		return did, err
	}
	if status != webhook.BulkRunning {
		return did, errBulkEnded
	}
	did.after, did.skipped = step.after, maps.Clone(b.run.Skipped)
	if did.skipped == nil {
		did.skipped = make(map[webhook.BulkSkip]int)
	}
	chosen, err := b.choose(t, step, &did)
	if err != nil {
		return did, err
	}
	did.done = len(chosen)
	if len(chosen) > 0 {
		if err := b.apply(t, chosen); err != nil {
			return did, err
		}
	}
	return did, b.move(t, step, &did)
}

// bulkFound is a delivery of a step, with the reason for skipping it, if any.
type bulkFound struct {
	num          int64
	skip         webhook.BulkSkip
	subscription string
}

// choose returns the deliveries of a step to process, and counts the others. It sets a
// subscription aside at the first delivery that exceeds its limit.
func (b *bulkWork) choose(t *tx, step *bulkStep, did *bulkResult) (chosen []bulkFound, err error) {
	if len(step.nums) == 0 {
		return nil, nil
	}
	_, find := bulkOutcomes(b.run.Action)
	var all []bulkFound
	err = t.Each(find, []any{sqlite.JSON(step.nums)}, func(scan func(...any) error) error {
		var f bulkFound
		err := scan(&f.num, &f.skip, &f.subscription)
		all = append(all, f)
		return err
	})
	if gone := len(step.nums) - len(all); gone > 0 {
		did.skipped[webhook.SkipGone] += gone
	}
	room := make(map[string]int) // of each subscription
	behind := func(id string) bool {
		_, known := b.waits[id]
		return step.subscription == "" && (known || slices.ContainsFunc(did.left, func(l bulkLeft) bool { return l.subscription == id }))
	}
	for _, f := range all {
		if err != nil || behind(f.subscription) {
			continue
		}
		if f.skip != "" {
			did.skipped[f.skip]++
			continue
		}
		if _, known := room[f.subscription]; !known {
			room[f.subscription], err = b.room(t, f.subscription, len(all))
		}
		switch {
		case err != nil:
		case room[f.subscription] > 0:
			room[f.subscription]--
			chosen = append(chosen, f)
		case step.subscription == "":
			did.left = append(did.left, bulkLeft{f.subscription, f.num - 1})
		default:
			did.full, did.after = true, f.num-1
			return chosen, nil
		}
	}
	return chosen, err
}

// room returns how many deliveries of a subscription a run may process now, at most limit.
func (b *bulkWork) room(t *tx, subscriptionID string, limit int) (int, error) {
	if b.run.Action != webhook.BulkRedeliver {
		return limit, nil
	}
	open, err := t.openRedeliveries(subscriptionID, b.s.quotas.redeliveries)
	return min(b.s.quotas.redeliveries-open, limit), err
}

// apply redelivers or cancels deliveries.
func (b *bulkWork) apply(t *tx, chosen []bulkFound) error {
	nums, ids := make([]int64, len(chosen)), make(map[string]struct{})
	for i, f := range chosen {
		nums[i] = f.num
		ids[f.subscription] = struct{}{}
	}
	if b.run.Action == webhook.BulkCancel {
		_, err := b.s.cancel(t, nums)
		return err
	}
	t.AfterCommit(func() {
		for id := range ids {
			b.s.watchers.Queued(id)
		}
	})
	if err := b.s.redeliverAll(t, nums, b.run.num); err != nil {
		return err
	}
	return t.Exec(countBulkRun, b.run.num, sqlite.JSON(nums))
}

// move stores the progress of the run after a step.
func (b *bulkWork) move(t *tx, step *bulkStep, did *bulkResult) error {
	after := did.after
	if step.subscription != "" {
		after = b.run.after
	}
	if err := t.Exec(moveBulkRun, after, b.run.Done+did.done, sqlite.JSONText(did.skipped), b.run.ID); err != nil {
		return err
	}
	for _, l := range did.left {
		if err := t.Exec(insertBulkWait, b.run.num, l.subscription, l.after); err != nil {
			return err
		}
	}
	switch {
	case step.subscription == "":
		return nil
	case did.after >= b.run.Newest:
		return t.Exec(deleteBulkWait, b.run.num, step.subscription)
	}
	return t.Exec(moveBulkWait, did.after, b.run.num, step.subscription)
}
