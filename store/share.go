package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	shareColumns = "id, program_id, delivery_id, created_at, expires_at"

	selectShare  = "SELECT " + shareColumns + " FROM shares WHERE hash = ? AND program_id" + canBeUsed
	selectShares = "SELECT " + shareColumns + " FROM shares INDEXED BY shares_by_delivery WHERE delivery_id = ? AND expires_at > ? " +
		"ORDER BY created_at DESC"
	selectOwnDelivery = "SELECT s.deleted_at IS NOT NULL FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id " +
		"WHERE d.id = ? AND s.program_id = ?"
	deleteShares        = "DELETE FROM shares INDEXED BY shares_by_delivery WHERE delivery_id = ? AND program_id = ? AND expires_at > ?"
	deleteExpiredShares = "DELETE FROM shares WHERE hash IN (SELECT hash FROM shares INDEXED BY shares_by_expiry " +
		"WHERE expires_at <= ? LIMIT 256)"
	deleteOldestShares = "DELETE FROM shares WHERE hash IN (SELECT hash FROM shares INDEXED BY shares_by_program " +
		"WHERE program_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
)

// Create creates a link that shows a delivery for [webhook.ShareLife], and returns the code in it.
// At [webhook.MaxShares] it ends the oldest link of the program. The error is a *webhook.Error if
// the program has no such delivery or cannot be used, or if the subscription is deleted.
func (w ShareWrites) Create(programID, deliveryID string, by webhook.AuditEntry) (sh webhook.Share, code string, err error) {
	if err := w.t.use(programID, ""); err != nil {
		return sh, "", err
	}
	var deleted bool
	err = w.t.Scan(selectOwnDelivery, []any{shortID(deliveryID), programID}, &deleted)
	if err != nil {
		return sh, "", sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	if deleted {
		return sh, "", webhook.NewError(webhook.CodeConflict, "The subscription is deleted, so its deliveries cannot be shared.")
	}
	now := w.t.s.clock.now().UTC().Truncate(time.Millisecond)
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
		err = w.t.record(by, webhook.ActionDeliveryShare, programID, deliveryID, "as "+sh.ID)
	}
	return sh, code, err
}

// Shares returns the open links to a delivery, newest first.
func (s Deliveries) Shares(ctx context.Context, deliveryID string) ([]webhook.Share, error) {
	var all []webhook.Share
	err := s.db.Each(ctx, selectShares, []any{deliveryID, s.clock.now().UnixMilli()}, sqlite.ScanInto(&all, scanShare))
	return all, err
}

// Shared returns the delivery that a link shows, and false if no link with the code is open, the
// subscription is deleted, or retention has removed the delivery.
func (s Deliveries) Shared(ctx context.Context, code string) (d DeliveryView, sh webhook.Share, open bool, err error) {
	hash := sha256.Sum256([]byte(code))
	sh, err = scanShare(func(dest ...any) error { return s.db.Scan(ctx, selectShare, []any{hash[:]}, dest...) })
	if errors.Is(err, sql.ErrNoRows) {
		return d, sh, false, nil
	}
	if err != nil || !s.clock.now().Before(sh.ExpiresAt) {
		return d, sh, false, err
	}
	d, err = s.View(ctx, sh.DeliveryID)
	var gone *webhook.Error
	if errors.As(err, &gone) {
		return d, sh, false, nil
	}
	if err != nil || d.ProgramID != sh.ProgramID {
		return d, sh, false, err
	}
	// A partner cannot revoke the links of a subscription that it has deleted.
	err = s.db.Scan(ctx, "SELECT deleted_at IS NULL FROM subscriptions WHERE id = ?", []any{d.SubscriptionID}, &open)
	return d, sh, open, sqlite.NoRows(err, nil)
}

// Revoke ends one link to a delivery. The error is a *webhook.Error if there is no such
// link.
func (w ShareWrites) Revoke(deliveryID, id string, by webhook.AuditEntry) error {
	sh, err := scanShare(func(dest ...any) error {
		return w.t.Scan("SELECT "+shareColumns+" FROM shares WHERE id = ? AND delivery_id = ?", []any{id, deliveryID}, dest...)
	})
	if err != nil {
		return sqlite.NoRows(err, webhook.NotFound("link"))
	}
	if err := w.t.Exec("DELETE FROM shares WHERE id = ?", id); err != nil {
		return err
	}
	return w.t.record(by, webhook.ActionDeliveryRevokeShare, sh.ProgramID, deliveryID, id)
}

// RevokeAll ends all links to a delivery of a program, and returns how many were open.
func (w ShareWrites) RevokeAll(programID, deliveryID string, by webhook.AuditEntry) (int, error) {
	n, err := w.t.Affected(deleteShares, deliveryID, programID, w.t.s.clock.now().UnixMilli())
	if err != nil || n == 0 {
		return 0, err
	}
	return int(n), w.t.record(by, webhook.ActionDeliveryRevokeShare, programID, deliveryID, webhook.Count(int(n), "link"))
}

func scanShare(scan func(...any) error) (sh webhook.Share, err error) {
	var created, expires int64
	err = scan(&sh.ID, &sh.ProgramID, &sh.DeliveryID, &created, &expires)
	sh.CreatedAt, sh.ExpiresAt = time.UnixMilli(created).UTC(), time.UnixMilli(expires).UTC()
	return sh, err
}
