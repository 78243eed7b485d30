package people

import (
	"context"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

const (
	shareColumns = "id, program_id, delivery_id, created_at, expires_at"

	selectShare  = "SELECT " + shareColumns + " FROM shares WHERE hash = ? AND program_id" + list.CanBeUsed
	selectShares = "SELECT " + shareColumns + " FROM shares INDEXED BY shares_by_delivery WHERE delivery_id = ? AND expires_at > ? " +
		"ORDER BY created_at DESC"
	deleteShares        = "DELETE FROM shares INDEXED BY shares_by_delivery WHERE delivery_id = ? AND program_id = ? AND expires_at > ?"
	deleteExpiredShares = "DELETE FROM shares WHERE hash IN (SELECT hash FROM shares INDEXED BY shares_by_expiry " +
		"WHERE expires_at <= ? LIMIT 256)"
	deleteOldestShares = "DELETE FROM shares WHERE hash IN (SELECT hash FROM shares INDEXED BY shares_by_program " +
		"WHERE program_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
)

// CreateShare creates a link that shows a delivery for [webhook.ShareLife], and returns the code in
// it. At [webhook.MaxShares] it ends the oldest link of the program. The caller has checked that the
// program has the delivery and can be used.
func (w Writes) CreateShare(programID, deliveryID string, by webhook.AuditEntry) (sh webhook.Share, code string, err error) {
	now := w.now().UTC().Truncate(time.Millisecond)
	sh = webhook.Share{ID: webhook.NewID(), ProgramID: programID, DeliveryID: deliveryID, CreatedAt: now,
		ExpiresAt: now.Add(webhook.ShareLife)}
	code, hash := newCode()
	err = w.t.Exec(deleteExpiredShares, now.UnixMilli())
	if err == nil {
		err = w.t.Exec(deleteOldestShares, programID, webhook.MaxShares-1)
	}
	if err == nil {
		err = w.t.Exec("INSERT INTO shares (hash, id, program_id, delivery_id, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
			hash[:], sh.ID, sh.ProgramID, sh.DeliveryID, now.UnixMilli(), sh.ExpiresAt.UnixMilli())
	}
	if err == nil {
		err = w.Record(by, webhook.ActionDeliveryShare, programID, deliveryID, "as "+sh.ID)
	}
	return sh, code, err
}

// List returns the open links to a delivery, newest first.
func (s Shares) List(ctx context.Context, deliveryID string) ([]webhook.Share, error) {
	var all []webhook.Share
	err := s.lists.DB.Each(ctx, selectShares, []any{deliveryID, s.now().UnixMilli()}, sqlite.ScanInto(&all, scanShare))
	return all, err
}

// Get returns the link with a code, and false if none is open.
func (s Shares) Get(ctx context.Context, code string) (webhook.Share, bool, error) {
	sh, found, err := bySecret(Reads(s).scan(ctx), selectShare, code, scanShare)
	return sh, found && s.now().Before(sh.ExpiresAt), err
}

// Revoke ends one link to a delivery. The error is a *webhook.Error if there is no such
// link.
func (w ShareWrites) Revoke(deliveryID, id string, by webhook.AuditEntry) error {
	sh, err := scanShare(w.t.Row("SELECT "+shareColumns+" FROM shares WHERE id = ? AND delivery_id = ?", id, deliveryID))
	if err != nil {
		return sqlite.NoRows(err, webhook.NotFound("link"))
	}
	if err := w.t.Exec("DELETE FROM shares WHERE id = ?", id); err != nil {
		return err
	}
	return Writes(w).Record(by, webhook.ActionDeliveryRevokeShare, sh.ProgramID, deliveryID, id)
}

// RevokeAll ends all links to a delivery of a program, and returns how many were open.
func (w ShareWrites) RevokeAll(programID, deliveryID string, by webhook.AuditEntry) (int, error) {
	n, err := w.t.Affected(deleteShares, deliveryID, programID, w.now().UnixMilli())
	if err != nil || n == 0 {
		return 0, err
	}
	return int(n), Writes(w).Record(by, webhook.ActionDeliveryRevokeShare, programID, deliveryID, webhook.Count(int(n), "link"))
}

func scanShare(scan func(...any) error) (sh webhook.Share, err error) {
	err = scan(&sh.ID, &sh.ProgramID, &sh.DeliveryID, (*sqlite.Time)(&sh.CreatedAt), (*sqlite.Time)(&sh.ExpiresAt))
	return sh, err
}
