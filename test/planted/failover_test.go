//go:build cgo

package planted

// failoverBugs are mistakes in the lease and the replica with which an old primary could do harm.
var failoverBugs = []testBug{
	{bug{name: "compactions and snapshots are not fenced", edits: []edit{
		{"store/replica/fence.go", "if c.fenced() {\n\t\treturn nil, ErrLeaseExpired\n\t}\n\treturn c.",
			"if level == 0 && c.fenced() {\n\t\treturn nil, ErrLeaseExpired\n\t}\n\treturn c."},
		{"store/replica/fence.go", "&fencedReader{r, c.fenced}", "&fencedReader{r, func() bool { return level == 0 && c.fenced() }}"},
	}}, "TestFencedReplica", "expired: got", ""},
	{bug{name: "a copy of the data directory continues the lease", edits: []edit{
		{"store/replica/holder.go", "h.dirID == other.dirID", "h.Boot == other.Boot && other.Inode != 0"},
	}}, "TestLeaseTakenOver", "copied_directory", ""},
	{bug{name: "a lease ends when it expires by the standby's clock", edits: []edit{
		{"store/replica/leasewatch.go", "asked-w.since >= period\n", "asked-w.since >= period || time.Now().After(state.Expires)\n"},
	}}, "TestLeaseClocks", "clock -24h0m0s: acquired after", ""},
	{bug{name: "a lease is renewed whatever is in the bucket", edits: []edit{
		{"store/replica/leasekeep.go", "renewed, err := l.put(ctx, leaseObject{Generation: found.Generation}, found.etag)",
			"now, err := l.read(ctx)\n\tif err != nil {\n\t\treturn err\n\t}\n\trenewed, err := l.put(ctx, leaseObject{Generation: " +
				"found.Generation}, now.etag)"},
	}}, "TestTakeOver", "renewal by the primary: got", ""},
	{bug{name: "an upload acknowledges what is committed while it runs", edits: []edit{
		{"store/replica/acknowledge.go", "a.covered.Store(a.upTo)", "a.covered.Store(a.commits())"},
	}}, "TestAcknowledger", "failed upload: got 1 woken", ""},
	{bug{name: "an upload whose answer came after the lease acknowledges", edits: []edit{
		{"store/replica/sync.go", "if r.fenced() {\n\t\tif r.acks.timeout == 0 {", "if false {\n\t\tif r.acks.timeout == 0 {"},
	}}, "TestAwaitOutage", "response after the end of the lease", ""},
	{bug{name: "what was committed before the start counts as uploaded", edits: []edit{
		{"store/replica/acknowledge.go", "a.covered.Store(-1)\n\treturn a", "a.covered.Store(0)\n\treturn a"},
	}}, "TestAcknowledger", "got no request for an upload", ""},
	{bug{name: "the lease has no reserve", edits: []edit{
		{"store/replica/tenure.go", "l.cfg.TTL - l.cfg.Reserve", "l.cfg.TTL"},
	}}, "TestLease", "because of the reserve", ""},
}

// raceBugs are mistakes that appear only if two writes happen in a certain order, or in a certain
// state of the log. A test produces both. The simulation also finds some of them, after thousands
// of plans or with a plan that does not end.
var raceBugs = []testBug{
	{bug{name: "retention forgets what was delivered once its delivery is removed", edits: []edit{
		{"store/retention_delivered.go", "for i := range ranges {\n\t\t\t\tif err := t.addDelivered(&ranges[i])",
			"for i := range ranges[:0] {\n\t\t\t\tif err := t.addDelivered(&ranges[i])"},
	}}, "TestRetentionOfDelivered", "replays would send", "store"},
	{bug{name: "the target of a move is activated before the replica has the move", edits: []edit{
		{"internal/move/source.go", "if err = s.await(ctx, j); err == nil {", "if err == nil {"},
		{"internal/move/source.go", "err := s.await(ctx, j)\n\t\tif err == nil {\n\t\t\terr = s.tryActivate",
			"err := ctx.Err()\n\t\tif err == nil {\n\t\t\terr = s.tryActivate"},
	}}, "TestMoveWaitsForReplica", "activates the target before its replica has the move", "internal/move"},
	{bug{name: "the target of a move is active before the source has recorded the move", edits: []edit{
		{"internal/move/source.go", "if err := s.complete(ctx, j, entry); err != nil {",
			"_ = s.tryActivate(ctx, j)\n\tif err := s.complete(ctx, j, entry); err != nil {"},
	}}, "TestMoves", "one installation sends", "dispatcher"},
	{bug{name: "a target that cannot be reached counts as active", edits: []edit{
		{"internal/move/source.go", "= s.tryActivate(ctx, j)\n\t\t}\n\t\tif err == nil {",
			"= s.tryActivate(ctx, j)\n\t\t}\n\t\tif err == nil || pause > minRetry {"},
	}}, "TestMoves", "active at one installation", "dispatcher"},
	{bug{name: "a bulk redelivery repeats what another one has done", edits: []edit{
		{"store/bulk.go", "\t\tWHEN EXISTS (SELECT 1 FROM deliveries r WHERE r.redelivery_of = d.id AND r.redelivery_of IS NOT NULL) THEN " +
			"'redelivered'\n", ""},
	}}, "TestBulkRedelivery", "bulk_test.go", "store"},
	{bug{name: "retention moves a cursor wherever it is", edits: []edit{
		{"store/retention.go", "UPDATE cursors SET seq = ? WHERE subscription_id = ? AND seq = ?",
			"UPDATE cursors SET seq = ? WHERE subscription_id = ? AND ? IS NOT NULL"},
	}}, "TestRetentionKeepsMovedCursors", "retention must not move it back", "store"},
	{bug{name: "retention takes all events between two that were delivered for delivered", edits: []edit{
		{"store/retention_delivered.go", "if between == len(all) {", "if between >= len(all) {"},
		{"store/retention_delivered.go", "return !gap, err", "return true, err"},
	}}, "TestDeliveredRanges", "whether event", "store"},
	{bug{name: "a delivery whose last attempt kill -9 cut off is in no incident", edits: []edit{
		{"store/queue.go", "if r.Status == webhook.StatusFailed && !deleted && !ping && !r.Split && c.URLNumber == current {",
			"if r.Status == webhook.StatusFailed && deleted && !ping && !r.Split && c.URLNumber == current {"},
	}}, "TestIncidentOfAnInterruptedAttempt", "want", "store"},
	{bug{name: "an incident closes an hour after it was opened", edits: []edit{
		{"store/incident.go", "in.quietAt = clock.Wait(now.Add(webhook.IncidentQuiet))",
			"if in.quietAt == 0 {\n\t\tin.quietAt = clock.Wait(now.Add(webhook.IncidentQuiet))\n\t}"},
	}}, "TestIncidentCloses", "want", "store"},
	{bug{name: "an open split of an ordered subscription lets the log pass", edits: []edit{
		{"dispatcher/queue.go", "q.splitTurn || q.Ordered || q.Failing", "q.splitTurn || q.Failing"},
	}}, "TestSplitOrdered", "wrong order", "dispatcher"},
	{bug{name: "a success does not recover what failed before", edits: []edit{
		{"store/undelivered.go", "if err != nil || !may {", "if may = false; err != nil || !may {"},
	}}, "TestOfferToResend", "want it failed and recovered", "store"},
	{bug{name: "a step of a replay does not compare where the replay is", edits: []edit{
		{"store/replay.go", "status = 'running' AND after_seq = ?", "status = 'running' AND ? IS NOT NULL"},
	}}, "TestReplayStepsOnce", "want one ErrStale", "store"},
	{bug{name: "an erasure forgets the bulk runs", edits: []edit{
		{"store/erase.go", "e.events, e.runs, e.ofSubscriptions, e.ofProgram, e.audit", "e.events, e.ofSubscriptions, e.ofProgram, e.audit"},
	}}, "TestErase", "bulk runs of the program are left", "store"},
	{bug{name: "a program that is being erased still sends what is due", edits: []edit{
		{"store/queue.go", "if t.use(cr.Queue.ProgramID, \"\") != nil {\n\t\t\treturn nil", "if false {\n\t\t\treturn nil"},
	}}, "TestEraseAtOnce", "a delivery was claimed", "store"},
	{bug{name: "an incident of a program that is being erased is shown", edits: []edit{
		{"store/record/incident_view.go", "err = s.use(i.ProgramID, \"incident\")", ""},
	}}, "TestHiddenPrograms", "shows the program", "store"},
	{bug{name: "an event type may require a new property", edits: []edit{
		{"webhook/schema_change.go", "if !known[name] {", "if !known[name] && len(known) > 1 {"},
	}}, "TestCompareSchemas", "now requires", "webhook"},
	{bug{"a delivery is sent before its commit", []edit{
		{"store/queue.go", "\tf.commit.Wait()\n", ""},
	}}, "TestInlineDeliverySentAfterCommit", "the wait ended before the commit", "store"},
	{bug{name: "a replay goes on after it was cancelled", edits: []edit{
		{"store/replay.go", "AND status = 'running' AND after_seq = ?", "AND after_seq = ?"},
	}}, "TestReplayStepAfterCancel", "want ErrStale", "store"},
	{bug{name: "a bulk run repeats deliveries after kill -9", edits: []edit{
		{"store/bulk_run.go", "step.after = some[len(some)-1]", "step.after = after"},
		{"store/bulk.go", "\t\tWHEN EXISTS (SELECT 1 FROM deliveries r WHERE r.redelivery_of = d.id AND r.redelivery_of IS NOT NULL) THEN " +
			"'redelivered'\n", ""},
	}}, "TestBulkRunGoesOn", "completed: got", "store"},
	{bug{name: "a bulk run goes on after it was cancelled", edits: []edit{
		{"store/bulk_run.go", "if status != webhook.BulkRunning {", "if status == \"\" {"},
	}}, "TestBulkRunCancelled", "8 done", "store"},
	{bug{name: "a bulk run counts what it skipped twice", edits: []edit{
		{"store/bulk_run.go", "step.after, maps.Clone(b.run.Skipped)", "step.after, b.run.Skipped"},
	}}, "TestBulkRunCountsOnce", "skipped map", "store"},
	{bug{name: "an attempt that ends after the deletion leaves its delivery open", edits: []edit{
		{"store/queue.go", "if deleted && step.Status == webhook.StatusRetryable {", "if deleted && step.Status == \"\" {"},
	}}, "TestRecordAfterDeletion", "still open", "store"},
	{bug{name: "the breaker opens without a new revision", edits: []edit{
		{"store/health.go", `return t.Exec("UPDATE subscriptions SET revision = revision + 1 WHERE id = ?", id)`, "return nil"},
	}}, "TestHealthChangesRevision", "want more than", "store"},
	{bug{name: "the last attempt does not wake the erasure", edits: []edit{
		{"store/queue.go", "if s.use(c.ProgramID, \"\") != nil {\n\t\twake(s.housekeeping.erasures)\n\t}", ""},
	}}, "TestLastAttemptWakesErasure", "not erased after the last attempt", "store"},
	{bug{name: "a panic in a commit leaves no error", edits: []edit{
		{"store/sqlite/writer.go", "if !returned && op.err == nil {", "if !returned && op.err != nil {"},
	}}, "TestPanicInCommit", "the follower: got", "store/sqlite"},
	{bug{name: "a statement that ended the transaction goes unnoticed", edits: []edit{
		{"store/sqlite/tx.go", "if t.ended == nil && isStorage(err) {\n\t\t\tt.ended = err\n\t\t}", ""},
	}}, "TestIgnoredStorageError", "without AfterCommit", "store/sqlite"},
	{bug{name: "statements after one that ended the transaction are stored", edits: []edit{
		{"store/sqlite/tx.go", `if t.ended == nil || strings.HasPrefix(query, "ROLLBACK") {`, `if t.ended == nil || query != "" {`},
	}}, "TestIgnoredStorageError", "got items", "store/sqlite"},
	{bug{name: "1xx responses are read without a bound", edits: []edit{
		{"dispatcher/client/attempt.go", "if x.interim++; x.interim > maxInterim {", "if x.interim++; x.interim < 0 {"},
	}}, "TestEvilReceivers", "got status 200", "dispatcher/client"},
	{bug{name: "an entry of the audit log is not hashed over the one before", edits: []edit{
		{"store/people/audit.go", "\tcopy(e.Previous[:], previous)\n\te.Num++", "\te.Num++"},
	}}, "TestAuditChain", "does not verify", "store/people"},
	{bug{name: "a column of the audit log is not hashed", edits: []edit{
		{"webhook/audit_chain.go", "string(e.Action), e.ProgramID, e.SubjectID,", "string(e.Action), e.ProgramID,"},
	}}, "TestAuditTampering", "subject_id of entry", "store/people"},
	{bug{name: "the address of an entry of the audit log is not in its digest", edits: []edit{
		{"webhook/audit_chain.go", "e.Admin, e.Address, e.Detail)", "e.Admin, e.Detail)"},
	}}, "TestAuditTampering", "address of entry", "store/people"},
	{bug{name: "retention of the audit log keeps no hash", edits: []edit{
		{"store/people/audit_prune.go", "w.t.Exec(anchorAudit, num, hash)", "w.t.Exec(anchorAudit, num, make([]byte, len(hash)))"},
	}}, "TestAuditRetention", "does not verify", "store"},
	{bug{name: "the end of a log is remembered from a commit that failed", edits: []edit{
		{"store/tx.go", "clear(w.heads)\n", ""},
		{"store/tx.go", "\t\tdelete(w.heads, p)\n", "\t\t_ = p\n"},
	}}, "TestFailedWriteAloneInCommit", "first seq: got", "store"},
	{bug{name: "an attempt is counted for a URL that was replaced", edits: []edit{
		{"store/queue.go", "err == nil && c.Revision != q.Revision {", "err == nil && false {"},
	}}, "TestAttemptUsesLatestURL", "after the change: got claim", "dispatcher"},
	{bug{name: "slow receivers may have the slots of quick ones", edits: []edit{
		{"store/credit.go", "return free > 0 && (class == SlotQuick ||", "return free > 0 && (true ||"},
	}}, "TestSlowReceiversLeaveSlots", "want the last within", "dispatcher"},
	{bug{name: "a program may have the slots that others wait for", edits: []edit{
		{"store/credit.go", "return others == 0 || p.taken < free", "_ = others\n\treturn true"},
	}}, "TestProgramsShareSlots", "want a quarter", "dispatcher"},
	{bug{name: "a program at its limit restricts the others", edits: []edit{
		{"store/credit.go", "p.waits[class] && !p.full(); {", "p.waits[class]; {"},
	}}, "TestFullProgramIsNotInTurn", "want 54", "store"},
	{bug{name: "the slots of busy receivers are not limited", edits: []edit{
		{"store/credit.go", "class == SlotBusy && c.quick < c.reserve(8)/2)", "class == SlotBusy)"},
	}}, "TestBusyQueuesHaveSlots", "want 60", "store"},
	{bug{name: "inline deliveries pass the queues that wait for slots", edits: []edit{
		{"dispatcher/program.go", "d.credits.Pause(true) // until", "// until"},
	}}, "TestInlineDeliveryYieldsToWaitingQueue", "slots in use while a queue waits", "dispatcher"},
	{bug{name: "one queue that waits for its share ends inline delivery for all", edits: []edit{
		{"dispatcher/slot.go", "d.credits.Pause(d.stopping ||",
			`waits := false
	for _, p := range d.programs {
		waits = waits || p.waiting[store.SlotSlow].Len() > 0
	}
	d.credits.Pause(waits || d.stopping ||`},
	}}, "TestInlineDeliveryWhenShareIsFull", "commits, want 2", "dispatcher"},
	{bug{name: "the lock is held while an event is noted for every subscription", edits: []edit{
		{"dispatcher/dispatcher.go", "d.mu.Unlock()\n\truntime.Gosched()\n\td.mu.Lock()", "runtime.Gosched()"},
	}}, "TestApplyReleasesLock", "apply did not release the lock", "dispatcher"},
}
