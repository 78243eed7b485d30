package store

import (
	"context"
	"slices"
	"strings"
	"testing"

	"service/store/sqlite"
)

// queryPlans are the queries of requests, deliveries and pages.
var queryPlans = []struct {
	query string
	args  int
	want  string // part of the plan
}{
	{"SELECT " + tokenColumns + " FROM tokens WHERE hash = ?", 1, "USING INDEX sqlite_autoindex_tokens_2"},
	{selectCertificateFiles, 3, "sqlite_autoindex_certificate_files_1 (path>? AND path<?)"},
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
	{"SELECT count(*) FROM subscriptions WHERE program_id = ? AND deleted_at IS NULL", 1, "subscriptions_by_program"},
	{"SELECT " + deliveryColumns + " FROM deliveries d WHERE d.id = ? AND d.subscription_id = ?", 2, "sqlite_autoindex_deliveries_1"},
	{claimDueDelivery, 4, "deliveries_due (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{claimDuePing, 4, "deliveries_due_pings (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)"},
	{selectNextDelivery, 1, "deliveries_due"},
	{selectNextPing, 1, "deliveries_due_pings"},
	{selectDueTimes, 0, "deliveries_due (subscription_id>?)"},
	{selectSession, 1, "SEARCH s USING PRIMARY KEY (hash=?)"},
	{selectShare, 1, "SEARCH shares USING PRIMARY KEY (hash=?)"},
	{selectShares, 2, "shares_by_delivery (delivery_id=?)"},
	{deleteShares, 3, "shares_by_delivery (delivery_id=?)"},
	{deleteExpiredShares, 1, "shares_by_expiry (expires_at<?)"},
	{deleteOldestShares, 2, "shares_by_program (program_id=?)"},
	{selectOwnDelivery, 2, "sqlite_autoindex_deliveries_1 (id=?)"},
	{selectPasskeys, 1, "passkeys_by_admin (admin_id=?)"},
	{selectPasskey, 1, "sqlite_autoindex_passkeys_"},
	{selectPasskeyByID, 1, "PRIMARY KEY (id=?)"},
	{countPasskeys, 1, "passkeys_by_admin (admin_id=?)"},
	{deletePasskeys, 1, "passkeys_by_admin (admin_id=?)"},
	{selectSessions, 3, "sessions_by_admin (admin_id=?)"},
	{deleteExpiredSessions, 1, "sessions_by_expiry (expires_at<?)"},
	{deleteOldestSessions, 2, "sessions_by_admin (admin_id=?)"},
	{deleteAdminSessions, 2, "sessions_by_admin (admin_id=?)"},
	{countAdminSessions, 4, "sessions_by_admin (admin_id=?)"},
	{selectAdmin, 1, "sqlite_autoindex_admins_"},
	{selectAdminByID, 1, "USING PRIMARY KEY"},
	{selectAdminByIdentity, 2, "admins_by_identity (oidc_issuer=? AND oidc_subject=?)"},
	{selectInvitation, 1, "SEARCH i USING PRIMARY KEY (hash=?)"},
	{selectPortalLink, 1, "SEARCH portal_links USING PRIMARY KEY (hash=?)"},
	{selectPortalSession, 1, "SEARCH portal_sessions USING PRIMARY KEY (hash=?)"},
	{selectPortalSessions, 2, "portal_sessions_by_program (program_id=?)"},
	{countPortalLinks, 2, "portal_links_by_program (program_id=?)"},
	{deleteExpiredPortalLinks, 1, "portal_links_by_expiry (expires_at<?)"},
	{deleteOldestPortalLinks, 2, "portal_links_by_program (program_id=?)"},
	{deleteExpiredPortalSessions, 1, "portal_sessions_by_expiry (expires_at<?)"},
	{deleteOldestPortalSessions, 2, "portal_sessions_by_program (program_id=?)"},
	{deletePortalLinks, 1, "portal_links_by_program (program_id=?)"},
	{deletePortalSessions, 1, "portal_sessions_by_program (program_id=?)"},
	{selectInvitationByID, 1, "sqlite_autoindex_invitations_"},
	{auditAll.Down.Text, len(auditAll.Down.Names), "SEARCH a USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{auditBySubject.Down.Text, len(auditBySubject.Down.Names), "audit_by_subject (subject_id=? AND num>? AND num<?)"},
	{auditByAdmin.Up.Text, len(auditByAdmin.Up.Names), "audit_by_admin (admin=? AND num>? AND num<?)"},
	{auditByActor.Up.Text, len(auditByActor.Up.Names), "audit_by_actor (actor=? AND num>? AND num<?)"},
	{auditByProgram.Up.Text, len(auditByProgram.Up.Names), "audit_by_program (program_id=? AND num>? AND num<?)"},
	{selectAuditAfter, 2, "INTEGER PRIMARY KEY (rowid>?)"},
	{selectAuditFrom, 1, "INTEGER PRIMARY KEY (rowid>?)"},
	{selectPruned, 1, "SEARCH audit USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectPruned, 1, "SEARCH audit USING INTEGER PRIMARY KEY (rowid<?)"},
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
		checkPlan(t, s, c.query, c.args, c.want)
	}
}

// checkPlan checks that the plan of a query contains want, and scans no table.
func checkPlan(t *testing.T, s *Store, query string, args int, want string) {
	t.Helper()
	var plan []string
	rows, err := s.db.Readers().QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, make([]any, args)...)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	err = sqlite.Drain(rows, func(scan func(...any) error) error {
		var id, parent, unused int
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		plan = append(plan, detail)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(plan, "\n\t")
	if !strings.Contains(text, want) || strings.Contains(text, "TEMP B-TREE FOR ORDER BY") && !strings.Contains(query, "json_each") ||
		scansATable(plan) {
		t.Errorf("%s\n\tgot  %s\n\twant %s, and no table scan", query, text, want)
	}
}

// scansATable reports whether a plan reads a whole table. JSON arrays, automatic indexes and
// subquery results do not count.
func scansATable(plan []string) bool {
	for _, step := range plan {
		if strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "VIRTUAL TABLE") && !strings.Contains(step, "CONSTANT ROW") &&
			!slices.Contains(plan, strings.Replace(step, "SCAN ", "CO-ROUTINE ", 1)) {
			return true
		}
	}
	return false
}
