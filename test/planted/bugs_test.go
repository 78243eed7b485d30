//go:build cgo

package planted

// bugs are mistakes that a change could introduce and that the simulation must find. The scheduler
// determines which broken promise it finds first.
var bugs = []bug{
	{"an attempt is counted when it has ended", []edit{
		{"store/queue.go", "attempts_made = attempts_made + 1, claimed_at = ?2", "attempts_made = max(attempts_made, 1), claimed_at = ?2"},
		{"store/queue.go", "RETURNING num, id, program_id, attempts_made, seqs, ping",
			"RETURNING num, id, program_id, (SELECT count(*) + 1 FROM attempts WHERE delivery = num), seqs, ping"},
		{"store/queue.go", "UPDATE deliveries SET status = ?, failure_reason",
			"UPDATE deliveries SET attempts_made = (SELECT count(*) FROM attempts WHERE delivery = num), status = ?, failure_reason"},
		{"store/queue.go", "if err := t.finishAttempt(&c, &a, r.Step); err != nil || ping || !r.Status.Final() {\n\t\treturn err",
			`if err := error(nil); err != nil || num > 0 {
		return t.Exec("UPDATE deliveries SET status = 'retryable', next_attempt_at = ?, claimed_at = NULL WHERE num = ?", t.s.clock.Stored(now), num)`},
	}},
	{"a 4xx is tried again", []edit{
		{"webhook/attempt.go", "status >= 500 && status <= 599", "status >= 400 && status <= 599"},
	}},
	{"all subscriptions share the slots of one", []edit{
		{"dispatcher/dispatcher.go", "store.NewCredits(cfg.MaxConnections)", "store.NewCredits(cfg.MaxInFlight)"},
	}},
	{"the loop is not told of an earlier time", []edit{
		{"dispatcher/schedule.go", "d.wake() // the loop waits for a later time", ""},
	}},
	{"only the first of several events published together is announced", []edit{
		{"store/watch/watch.go", "for i := range events {", "for i := range events[:1] {"},
	}},
	{"a change that comes while a delivery is formed is not read", []edit{
		{"dispatcher/queue.go", "q.phase == phaseReloadPending || q.forming == 0:",
			"q.phase == phaseReloadPending || q.forming == 0 && q.phase != phaseStale:"},
	}},
	{"a redelivery does not wake the dispatcher", []edit{
		{"store/delivery.go", "t.AfterCommit(func() { s.watchers.Queued(subscriptionID) })", "_ = s"},
	}},
	{"a pause forgets what was owed", []edit{
		{"store/subscription.go", `"UPDATE interests SET until_seq = ? WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", head.seq, after.ID, name`,
			`"DELETE FROM interests WHERE subscription_id = ? AND name = ? AND until_seq IS NULL", after.ID, name`},
	}},
	{"a deletion is not announced", []edit{
		{"store/subscription.go", "headers = NULL, signing_secret = x'', \"+\n\t\t\"revision = revision + 1 WHERE id",
			"headers = NULL \"+\n\t\t\"WHERE id"},
		{"store/subscription.go", `[]string{"interests", "cursors", "splits",`, `[]string{"splits",`},
		{"store/subscription.go", "\t\ts.watchers.SubscriptionChanged(id)\n\t})\n\tended, err := s.endDeleted",
			"\t})\n\tended, err := s.endDeleted"},
	}},
	{"a pause is ignored", []edit{
		{"store/queue.go", "AND ping IS NULL AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1 AND active = 1)", "AND ping IS NULL"},
		{"dispatcher/queue.go", "!q.Active || q.inFlight >= q.slots(cfg)", "q.inFlight >= q.slots(cfg)"},
	}},
	{"the jitter is twice as much", []edit{
		{"webhook/retry.go", "p.Jitter * (2*roll - 1)", "p.Jitter * (4*roll - 2)"},
	}},
	{"the Retry-After of a 503 is ignored", []edit{
		{"webhook/retry.go", "wait = max(wait, min(a.RetryAfter, MaxRetryAfter))", ""},
	}},
	{"order is ignored", []edit{
		{"dispatcher/queue.go", "case q.Ordered && unfinished:", "case false:"},
	}},
	{"one slot too many", []edit{
		{"dispatcher/queue.go", "q.inFlight >= q.slots(cfg)", "q.inFlight > q.slots(cfg) || q.Ordered && q.inFlight > 0"},
	}},
	{"a retry has a new id", []edit{
		{"dispatcher/attempt.go", "size := 192", "if c.Number > 1 {\n\t\tc.ID = webhook.NewID()\n\t}\n\tsize := 192"},
	}},
	{"a retry has its events in another order", []edit{
		{"dispatcher/attempt.go", "size := 192", "if n := len(c.Events) - 1; c.Number > 1 {\n\t\tc.Events[0], c.Events[n] = c.Events[n], " +
			"c.Events[0]\n\t}\n\tsize := 192"},
	}},
	{"the cursor moves in a commit before that of the delivery", []edit{
		{"store/queue.go", "return t.insertFormed(&f.made, f.seqs, maker{})", "return nil"},
		{"store/queue.go", "f.err, f.op = f.w.Wait(f.op), nil", "f.err, f.op = f.w.Wait(f.op), nil\n\t\tif f.err == nil {\n\t\t\tf.err = " +
			"f.w.do(func(t *tx) error { return t.insertFormed(&f.made, f.seqs, maker{}) })\n\t\t}"},
		{"dispatcher/credit.go", "d.interested[key].len() <= maxInlineSubscriptions", "d.interested[key].len() < 0"},
	}},
	{"a delivery formed inline skips waiting events", []edit{
		{"store/credit.go", "log.Scan(g.queue.ProgramID, g.queue.Seen, visit)", "reached = e.Seq - 1"},
	}},
	{"a slot reserved inline for no delivery is lost", []edit{
		{"store/credit.go", "if !waits {", "if !waits {\n\t\t\t\tc.taken++"},
		{"store/credit.go", "return len(g.Seqs) > 0", "return len(g.Seqs) > 1"},
	}},
	{"a first attempt that was cut off is not found again", []edit{
		{"store/queue.go", "AND claimed_at IS NOT NULL\"", "AND claimed_at IS NOT NULL AND attempts_made > 1\""},
	}},
	{"a slot that found nothing to do is lost", []edit{
		{"dispatcher/slot.go", "d.release(j, &r, now)\n", "if claim != nil {\n\t\t\td.release(j, &r, now)\n\t\t}\n"},
	}},
	{"a request is sent again when its connection broke", []edit{
		{"dispatcher/client/attempt.go", "if !reused || sent {", "if !reused || sent && err == nil {"},
	}},
	{"the cursor moves in memory alone", []edit{
		{"store/queue.go", "UPDATE cursors SET seq = ?1 WHERE subscription_id = ?2 AND seq = ?3 AND EXISTS",
			"UPDATE cursors SET seq = seq + 0 * ?1 WHERE subscription_id = ?2 AND ?3 IS NOT NULL AND EXISTS"},
	}},
	{"a write that fails leaves what it has written", []edit{
		{"store/sqlite/writer.go", "if !t.try(op) && t.wrote {", "if !t.try(op) && t.current != nil {"},
	}},
	{"a result that could not be stored is forgotten", []edit{
		{"dispatcher/attempt.go", "case <-time.After(time.Until(retryAt)):\n\t\tcase <-ctx.Done():\n\t\t\treturn a, store.Recorded{}",
			"case <-time.After(time.Until(retryAt)):\n\t\t\treturn a, store.Recorded{}\n\t\tcase <-ctx.Done():\n\t\t\treturn a, store.Recorded{}"},
	}},
	{"a subscription that has recovered has all its slots at once", []edit{
		{"dispatcher/queue.go", "q.ramp = 1\n", "q.ramp = 0\n"},
	}},
	{"a failing subscription is probed without a wait", []edit{
		{"dispatcher/queue.go", "now.Before(q.pace.ReadyAt()) || q.Failing && !q.probeDue(now)", "now.Before(q.pace.ReadyAt())"},
	}},
	{"a probe takes a batch", []edit{
		{"dispatcher/queue.go", "return q.Failing || q.rejected ||", "return q.rejected && !q.Failing ||"},
	}},
	{"a probe takes the last attempt of a delivery", []edit{
		{"dispatcher/credit.go", "c.Spare = kind == store.CreditDue && !q.Rejecting && !q.Pinged", "c.Spare = false"},
	}},
	{"a subscription that rejects is probed without a ping", []edit{
		{"dispatcher/queue.go", "(q.Rejecting || q.lastAttemptDue && kind == store.CreditDue)", "(q.lastAttemptDue && kind == store.CreditDue)"},
	}},
	{"a rejected probe leaves the ping before it good for the next", []edit{
		{"webhook/health.go", "\tf.Pinged = false\n", ""},
	}},
	{"an event that a probe has sent out of turn is sent again", []edit{
		{"store/queue.go", "if f.Skipped {", "if f.Skipped && f.w == nil {"},
	}},
	{"a success does not close the circuit breaker", []edit{
		{"webhook/health.go", "\t\treturn HealthHealthy, Failures{}\n", "\t\tf.Count, f.Rejected = 1, 0\n\t\treturn h, f\n"},
	}},
	{"an incident stays open when its subscription has recovered", []edit{
		{"store/health.go", "\t\tif err := t.closeIncident(&in, &ch.before, webhook.IncidentHealthy); err != nil {\n\t\t\treturn " +
			"err\n\t\t}\n\t\tin = incident{}\n", ""},
	}},
	{"an incident counts only the first delivery that failed permanently", []edit{
		{"store/health.go", "\tif failed {\n\t\tin.noteFailed(", "\tif failed && opens {\n\t\tin.noteFailed("},
	}},
	{"an incident does not count what expires", []edit{
		{"store/retention.go", "if ping || deleted {", "if ping || deleted || program != \"\" {"},
	}},
	{"an event that is erased while a delivery of it is formed is sent", []edit{
		{"store/queue.go", "if f.erasures != t.s.erasures.Load() {", "if f.erasures < 0 {"},
	}},
	{"an erased event that is read from the log is sent", []edit{
		{"store/queue.go", "if erased {\n\t\t\t\t\tbody = nil", "if erased && seq < 0 {\n\t\t\t\t\tbody = nil"},
	}},
	{"an erased event that is read from memory is sent", []edit{
		{"store/queue.go", "in != nil && !e.Erased && g.passes", "in != nil && g.passes"},
	}},
	{"the end of an attempt does not wake the erasure", []edit{
		{"store/queue.go", "if s.erasedInFlight.Has(c.num) {", "if s.erasedInFlight.Has(c.num) && c == nil {"},
	}},
	{"the other events of a delivery that an erasure cancels are lost", []edit{
		{"store/split.go", "if several && left > 0 {", "if several && left > 0 && reason != webhook.FailureCancelled {"},
	}},
	{"a pull shows an erased event", []edit{
		{"store/record/event_log.go", "if e.ErasedAt.IsZero() {", "if e.Seq > 0 {"},
	}},
	{"a pause that a server asked for is not kept", []edit{
		{"dispatcher/pace/pace.go", "pause := min(a.RetryAfter, maxRetryPause)", "pause := min(a.RetryAfter, 0)"},
	}},
	{"the dispatcher does not ask whether it may send", []edit{
		{"dispatcher/dispatcher.go", "MaySend: cfg.Store.Queues().MaySend, ", ""},
		{"dispatcher/attempt.go", "if gone || !d.store.Queues().MaySend() {", "if gone {"},
	}},
	{"attempts go on when the lease ends", []edit{
		{"dispatcher/attempt.go", "d.beginSending(c.ProgramID, d.attemptContext(ctx))", "d.beginSending(c.ProgramID, ctx)"},
	}},
	{"the time of a retry is not that of a clock which has jumped", []edit{
		{"store/clock/clock.go", "return c.Wait(c.Now().Add(time.Until(t)))", "return c.Wait(t)"},
	}},
	{"retries are not moved when the clock jumps", []edit{
		{"store/clock/clock.go", "base.wall.Add(jump), base.offset+jump", "base.wall.Add(jump), base.offset"},
	}},
	{"retention counts all of a jump of the clock", []edit{
		{"store/clock/clock.go", "min(max(jump-base.behind, 0), c.maxStep)", "max(jump-base.behind, 0)"},
	}},
	{"retention measures the age of a delivery by the time of its creation", []edit{
		{"store/queue.go", "completed, counted = at, t.counted()", "completed = at"},
	}},
	{"retention removes what an active subscription waits for, and counts nothing", []edit{
		{"store/retention.go", "AND s.deleted_at IS NULL AND c.seq < ?3 AND lost > 0",
			"AND s.deleted_at IS NULL AND s.active = 0 AND c.seq < ?3 AND lost > 0"},
	}},
	{"retention removes the events of deliveries that wait", []edit{
		{"store/retention.go", "\n\t\tAND NOT EXISTS (SELECT 1 FROM delivery_events x WHERE x.program_id = events.program_id AND x.seq = " +
			"events.seq)`", "`"},
	}},
	{"the shorter retention removes deliveries that failed", []edit{
		{"store/retention_delivered.go", "case success && counted <= old:", "case completed && counted <= old:"},
	}},
	{"a replay skips an event where a delivery is full", []edit{
		{"store/replay.go", "\t\tend = seqs[count-1]\n", "\t\tend = min(seqs[count-1]+1, r.Until)\n"},
	}},
	{"a bulk cancellation takes what is newer than its plan", []edit{
		{"store/bulk.go", "min(f.High, upto+1)", "f.High"},
	}},
	{"a bulk cancellation takes what is in flight", []edit{
		{"store/bulk.go", "\t\tWHEN d.next_attempt_at IS NULL THEN 'in_flight'\n", ""},
		{"store/bulk.go", "failure_reason = 'cancelled', next_attempt_at = NULL",
			"failure_reason = 'cancelled', claimed_at = NULL, next_attempt_at = NULL"},
		{"store/bulk.go", "AND next_attempt_at IS NOT NULL\n\t\tRETURNING num, id, subscription_id",
			"AND completed_at IS NULL\n\t\tRETURNING num, id, subscription_id"},
	}},
	{"the events of a failed batch are not sent again", []edit{
		{"webhook/split.go", "return events > 1", "return events > 99"},
	}},
	{"a split sends its events together", []edit{
		{"store/split.go", "\t\tif !whole {\n\t\t\treturn sqlite.ErrStop\n\t\t}\n", ""},
	}},
	{"an open split of an ordered subscription does not block the log", []edit{
		{"dispatcher/queue.go", "return q.splitTurn || q.Ordered || q.Failing", "return q.splitTurn || q.Failing"},
	}},
	{"max_events of a subscription is ignored", []edit{
		{"dispatcher/credit.go", "webhook.BatchSize(d.cfg.BatchSize, q.MaxEvents)", "webhook.BatchSize(d.cfg.BatchSize, 0)"},
	}},
	{"a filter lets everything pass", []edit{
		{"store/queue.go", "return in.Filter.Match(g.fields)", "return true"},
	}},
	{"a filter is asked about the newest of several events", []edit{
		{"store/filter.go", "for n := len(x.seqs) - 1; n >= 0; n--", "for n := len(x.seqs) - 1; n >= max(0, len(x.seqs)-1); n--"},
	}},
	{"a subscription passes events of a name that was not examined yet", []edit{
		{"dispatcher/dispatcher.go", "past = append(past, passing{q, seq})", "d.pass(q, seq, now)"},
	}},
	{"a cursor passes one event more than was examined", []edit{
		{"store/filter.go", "p := Passed{q.SubscriptionID, q.Cursor, q.Seen, q.Revision}",
			"p := Passed{q.SubscriptionID, q.Cursor, q.Seen + 1, q.Revision}"},
	}},
	{"another filter is not another range of the log", []edit{
		{"store/subscription.go", " && webhook.SameFilter(before.Filters[name], after.Filters[name])", ""},
	}},
	{"a split passes over an event", []edit{
		{"store/split.go", "after = r.seqs[len(r.seqs)-1]", "after = r.seqs[len(r.seqs)-1] + 1"},
	}},
	{"a form of a bulk run that comes twice begins two", []edit{
		{"store/bulk.go", "if begun {", "if begun && n == nil {"},
		{"store/bulk.go", "INSERT INTO bulk_runs (id", "INSERT OR REPLACE INTO bulk_runs (id"},
	}},
}

// firstPlans are plans of the simulation for bugs that few plans find. It tries them first, and
// then continues with random plans.
var firstPlans = map[string]int{
	"a success does not close the circuit breaker":                         147,
	"an event that is erased while a delivery of it is formed is sent":     1509,
	"attempts go on when the lease ends":                                   441,
	"retention counts all of a jump of the clock":                          1855,
	"retention measures the age of a delivery by the time of its creation": 405,
	"retries are not moved when the clock jumps":                           46, // plan 23 hangs
	"the dispatcher does not ask whether it may send":                      1372,
}
