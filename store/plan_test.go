package store

import (
	"testing"

	"service/store/record"
	"service/store/sqlite/sqlitetest"
)

// queryPlans are the queries of requests, deliveries and pages.
var queryPlans = []struct {
	query string
	args  int
	want  string // part of the plan
}{
	{"SELECT " + record.TokenColumns + " FROM tokens WHERE hash = ?", 1, "USING INDEX sqlite_autoindex_tokens_2"},
	{selectResponse, 3, "sqlite_autoindex_idempotency_keys_1"},
	{selectExpired, 2, "idempotency_keys_by_expiry"},
	{"SELECT seq, received_at FROM events WHERE program_id = ? ORDER BY seq DESC LIMIT 1", 1, "events_by_seq"},
	{"SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ? AND name = ?", 2, "events_by_name"},
	{"SELECT " + eventColumns + " FROM events WHERE program_id = ? AND id = ?", 2, "events_by_id"},
	{"SELECT seq FROM events WHERE program_id = ? AND name = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?", 5,
		"COVERING INDEX events_by_name"},
	{selectMissing, 2, "events_by_id (program_id=? AND id=?)"},
	{selectSubscription, 2, "USING PRIMARY KEY"},
	{selectEventType, 1, "sqlite_autoindex_event_types_1 (name=?)"},
	{"SELECT count(*) " + inProgram, 1, "subscriptions_by_program"},
	{"SELECT " + deliveryColumns + " FROM deliveries d WHERE d.id = ? AND d.subscription_id = ?", 2, "sqlite_autoindex_deliveries_1"},
	{claimDueDelivery, 4, "deliveries_due (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{claimDuePing, 4, "deliveries_due_pings (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{selectNextDelivery, 1, "deliveries_due"},
	{selectNextPing, 1, "deliveries_due_pings"},
	{selectDueTimes, 0, "deliveries_due (subscription_id>?)"},
	{selectOwnDelivery, 2, "sqlite_autoindex_deliveries_1 (id=?)"},
	{selectDeliveryView, 1, "sqlite_autoindex_deliveries_1 (id=?)"},
	{selectAgain, 2, "deliveries_by_original (redelivery_of=?)"},
	{selectAnySubscription, 1, "USING PRIMARY KEY (id=?)"},
	{allEvents.Down.Text, len(allEvents.Down.Names), "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{allEvents.Up.Text, len(allEvents.Up.Names), "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{allEventsByName.Down.Text, len(allEventsByName.Down.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{allEventsByName.Up.Text, len(allEventsByName.Up.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{selectSeqRow, 2, "COVERING INDEX events_by_seq (program_id=? AND seq<?)"},
	{selectSeqEnds, 1, "COVERING INDEX events_by_seq (program_id=?)"},
	{allByEvent.set.Text, len(allByEvent.set.Names), "SEARCH x USING PRIMARY KEY (program_id=? AND seq=?)"},
	{allByEvent.set.Text, len(allByEvent.set.Names), "COVERING INDEX events_by_name (program_id=? AND name=?)"},
	{selectSummaries, 2, "deliveries_completed (subscription=?"},
	{selectListedRows, 1, "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectRowFrom, 1, "USING INTEGER PRIMARY KEY (rowid>?)"},
	{selectEventDeliveries, 4, "SEARCH x USING PRIMARY KEY (program_id=? AND seq=? AND delivery<?)"},
	{selectEventResults, 2, "SEARCH x USING PRIMARY KEY (program_id=? AND seq=?)"},
	{selectEventResults, 2, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectEventSpans, 3, "subscriptions_by_program (program_id=?)"},
	{selectEventSpans, 3, "SEARCH i USING PRIMARY KEY (subscription_id=?)"},
	{selectEventSpans, 3, "SEARCH r USING PRIMARY KEY (subscription_id=?)"},
	{selectManySubscriptions, 2, "subscriptions_of_program (program_id=?)"},
	{selectEventWaits, 4, "subscriptions_by_program (program_id=?)"},
	{countSubscribersOfProgram, 2, "subscriptions_by_program (program_id=?)"},
	{selectSubscribersOfProgram, 3, "subscriptions_by_program (program_id=?)"},
	{subscriptionsOfAll + subscriptionsDown, 15, "SEARCH s USING PRIMARY KEY (id<?)"},
	{subscriptionsByHealth + subscriptionsUp, 15, "subscriptions_by_health (status=? AND id>?)"},
	{subscriptionsByProgram + subscriptionsDown, 15, "subscriptions_of_program (program_id=? AND id<?)"},
	{subscriptionsByProgram + subscriptionsDown, 15, "SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=? AND at>?)"},
	{selectStatCounts, 4, "SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=? AND at>? AND at<?)"},
	{selectAttempts, 1, "SEARCH o USING PRIMARY KEY (subscription_id=? AND number=?)"},
	{selectOldSecrets, 2, "SEARCH old_signing_secrets USING PRIMARY KEY (subscription_id=? AND expires_at>?)"},
	{selectUsedNames, 2, "SEARCH e EXISTS USING COVERING INDEX events_by_name (program_id=? AND name=?)"},
	{selectUsedNames, 2, "subscriptions_by_program (program_id=?)"},
	{selectRunningReplays, 1, "replays_running (subscription_id=?)"},
	{selectEndedReplays, 1, "replays_by_subscription (subscription_id=?"},
	{selectNewestNums, 2, "deliveries_of_subscription (subscription=?)"},
	{selectFirstWanted, 4, "COVERING INDEX events_by_name"},
	{selectSplitNext, 3, "SEARCH p USING INDEX splits_by_subscription (subscription_id=?)"},
	{selectSplitNext, 3, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofQueue.finish, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofFailed.finish, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{countSplitRest, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofFailed.remove, 1, "SEARCH r USING INDEX deliveries_by_split (split_of=?)"},
	{selectLeft, 3, "SEARCH u USING PRIMARY KEY (subscription=?)"},
	{selectLeft, 3, "SEARCH o USING PRIMARY KEY (subscription=? AND seq=? AND delivery>?)"},
	{countLeftOf, 1, "SEARCH u USING COVERING INDEX undelivered_by_delivery (delivery=?)"},
	{selectLeftFrom, 2, "SEARCH u USING COVERING INDEX undelivered_by_incident (incident=?)"},
	{selectFirstURL, 1, "SEARCH o USING PRIMARY KEY (subscription_id=?)"},
	{countInterruptions, 1, "SEARCH attempts USING PRIMARY KEY (delivery=?)"},
	{selectInterrupted, 0, "deliveries_by_status (status=?)"},
	{findSubscriptions, 3, "USING PRIMARY KEY (id>? AND id<?)"},
	{findDeliveries, 3, "USING INDEX sqlite_autoindex_deliveries_1 (id>? AND id<?)"},
	{findTokens, 3, "USING PRIMARY KEY (id>? AND id<?)"},
	{searchEvents, 2, "SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"},
}

// Every query of a request, delivery or page uses an index, so its cost does not depend on the
// number of rows.
func TestQueryPlans(t *testing.T) {
	s := open(t)
	for _, c := range queryPlans {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}
