package store

import (
	"testing"

	"service/store/sqlite/sqlitetest"
)

// queryPlans are the queries of requests, deliveries and pages.
var queryPlans = []struct {
	query string
	args  int
	want  string // part of the plan
}{
	{selectResponse, 3, "sqlite_autoindex_idempotency_keys_1"},
	{selectExpired, 2, "idempotency_keys_by_expiry"},
	{"SELECT seq, received_at FROM events WHERE program_id = ? ORDER BY seq DESC LIMIT 1", 1, "events_by_seq"},
	{"SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ? AND name = ?", 2, "events_by_name"},
	{"SELECT seq FROM events WHERE program_id = ? AND name = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?", 5,
		"COVERING INDEX events_by_name"},
	{selectMissing, 2, "events_by_id (program_id=? AND id=?)"},
	{selectEventType, 1, "sqlite_autoindex_event_types_1 (name=?)"},
	{"SELECT count(*) " + inProgram, 1, "subscriptions_by_program"},
	{claimDueDelivery, 4, "deliveries_due (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{claimDuePing, 4, "deliveries_due_pings (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{selectNextDelivery, 1, "deliveries_due"},
	{selectNextPing, 1, "deliveries_due_pings"},
	{selectDueTimes, 0, "deliveries_due (subscription_id>?)"},
	{selectOwnDelivery, 2, "sqlite_autoindex_deliveries_1 (id=?)"},
	{selectDeliveryView, 1, "sqlite_autoindex_deliveries_1 (id=?)"},
	{selectAgain, 2, "deliveries_by_original (redelivery_of=?)"},
	{selectRecoveredBy, 2, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectRecoveredBy, 2, "SEARCH x USING PRIMARY KEY (program_id=? AND seq=?)"},
	{selectRecoveredBy, 2, "SEARCH o USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectAnySubscription, 1, "USING PRIMARY KEY (id=?)"},
	{selectUsedNames, 2, "SEARCH e EXISTS USING COVERING INDEX events_by_name (program_id=? AND name=?)"},
	{selectUsedNames, 2, "subscriptions_by_program (program_id=?)"},
	{selectFirstWanted, 4, "COVERING INDEX events_by_name"},
	{selectSplitNext, 3, "SEARCH p USING INDEX splits_by_subscription (subscription_id=?)"},
	{selectSplitNext, 3, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofQueue.finish, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofFailed.finish, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{countSplitRest, 1, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)"},
	{ofFailed.remove, 1, "SEARCH r USING INDEX deliveries_by_split (split_of=?)"},
	{countLeftOf, 1, "SEARCH u USING COVERING INDEX undelivered_by_delivery (delivery=?)"},
	{selectLeftFrom, 2, "SEARCH u USING COVERING INDEX undelivered_by_incident (incident=?)"},
	{selectFirstURL, 1, "SEARCH o USING PRIMARY KEY (subscription_id=?)"},
	{countInterruptions, 1, "SEARCH attempts USING INDEX sqlite_autoindex_attempts_1 (delivery=?)"},
	{selectInterrupted, 0, "deliveries_by_status (status=?)"},
}

// Every query of a request, delivery or page uses an index, so its cost does not depend on the
// number of rows.
func TestQueryPlans(t *testing.T) {
	s := open(t)
	for _, c := range queryPlans {
		sqlitetest.CheckPlan(t, s.db, c.query, c.args, c.want)
	}
}
