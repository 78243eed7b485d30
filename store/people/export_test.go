package people

import (
	"service/store/sqlite"
	"service/webhook"
)

// DB returns the database that a handle reads.
func DB(a Admins) *sqlite.DB { return a.lists.DB }

// EachAudit is [Audit.Each] in a write.
func EachAudit(t *sqlite.Tx, fn func(*webhook.AuditEntry) error) error {
	var w auditWalk
	for {
		entries, err := w.read(t)
		if err != nil || len(entries) == 0 {
			return err
		}
		for i := range entries {
			if err := fn(&entries[i]); err != nil {
				return err
			}
		}
	}
}

// QueryPlans are the queries of this package, with part of their plans.
var QueryPlans = []struct {
	Query string
	Args  int
	Want  string
}{
	{selectSession, 1, "SEARCH s USING PRIMARY KEY (hash=?)"},
	{selectShare, 1, "SEARCH shares USING PRIMARY KEY (hash=?)"},
	{selectShares, 2, "shares_by_delivery (delivery_id=?)"},
	{deleteShares, 3, "shares_by_delivery (delivery_id=?)"},
	{deleteExpiredShares, 1, "shares_by_expiry (expires_at<?)"},
	{deleteOldestShares, 2, "shares_by_program (program_id=?)"},
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
}

// AuditParameters are the parameters of the lists of the audit log.
var AuditParameters = auditBySubject.Down.Names
