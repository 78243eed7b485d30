package people

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	passkeyColumns = "p.id, p.admin_id, p.name, p.rp_id, p.credential, p.public_key, p.sign_count, p.synced, p.created_at, p.used_at"

	selectPasskeys = "SELECT " + passkeyColumns + " FROM passkeys p INDEXED BY passkeys_by_admin WHERE p.admin_id = ? " +
		"ORDER BY p.id"
	selectPasskey     = "SELECT " + passkeyColumns + " FROM passkeys p WHERE p.credential = ?"
	selectPasskeyByID = "SELECT " + passkeyColumns + " FROM passkeys p WHERE p.id = ?"
	selectAnyPasskey  = "SELECT EXISTS (SELECT 1 FROM passkeys)"
	deletePasskeys    = "DELETE FROM passkeys INDEXED BY passkeys_by_admin WHERE admin_id = ?"
	countPasskeys     = "SELECT count(*) FROM passkeys INDEXED BY passkeys_by_admin WHERE admin_id = ?"
)

// ErrSignCount means that the sign count of a passkey did not grow: it may have been copied.
var ErrSignCount = errors.New("the sign count of the passkey did not grow")

// Passkeys returns the passkeys of an admin, at most [webhook.MaxPasskeys], oldest first.
func (s Admins) Passkeys(ctx context.Context, adminID string) ([]webhook.Passkey, error) {
	var all []webhook.Passkey
	err := s.lists.DB.Each(ctx, selectPasskeys, []any{adminID}, sqlite.ScanInto(&all, scanPasskey))
	return all, err
}

// Passkey returns the passkey with the ID of a credential. The error is a *webhook.Error if
// there is none.
func (s Admins) Passkey(ctx context.Context, credential []byte) (webhook.Passkey, error) {
	p, err := scanPasskey(s.lists.DB.Row(ctx, selectPasskey, credential))
	return p, sqlite.NoRows(err, webhook.NotFound("passkey"))
}

// HavePasskey reports whether any admin has a passkey.
func (s Admins) HavePasskey(ctx context.Context) (bool, error) {
	var any bool
	err := s.lists.DB.Scan(ctx, selectAnyPasskey, nil, &any)
	return any, err
}

// Create stores a passkey of an admin and sets its ID and CreatedAt. The error is a
// *webhook.Error if the name is invalid, the admin has too many or was removed, or the
// credential is stored already.
func (w PasskeyWrites) Create(p webhook.Passkey) (webhook.Passkey, error) {
	p.Name = strings.TrimSpace(p.Name)
	if err := webhook.Invalid(webhook.CheckPasskeyName("name", p.Name)...); err != nil {
		return p, err
	}
	var known bool
	var count int
	err := w.t.Scan("SELECT EXISTS (SELECT 1 FROM admins WHERE id = ?)", []any{p.AdminID}, &known)
	if err == nil && !known {
		err = webhook.NotFound("admin")
	}
	if err == nil {
		err = w.t.Scan(countPasskeys, []any{p.AdminID}, &count)
	}
	if err == nil && count >= webhook.MaxPasskeys {
		err = webhook.NewError(webhook.CodeConflict, fmt.Sprintf("There are already %d passkeys, the maximum. Remove one.", count))
	}
	if err != nil {
		return p, err
	}
	p.ID, p.CreatedAt = webhook.NewID(), w.now().UTC().Truncate(time.Millisecond)
	made, err := w.t.Affected("INSERT INTO passkeys (id, admin_id, name, rp_id, credential, public_key, sign_count, synced, created_at) "+
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (credential) DO NOTHING",
		p.ID, p.AdminID, p.Name, p.RPID, p.Credential, p.PublicKey, int64(p.SignCount), p.Synced, p.CreatedAt.UnixMilli())
	if err == nil && made == 0 {
		err = webhook.NewError(webhook.CodeConflict, "This passkey is registered already.")
	}
	return p, err
}

// Use records that a passkey signed, with its sign count. The error is a
// *webhook.Error if the passkey was removed, or ErrSignCount if the count does not grow.
func (w PasskeyWrites) Use(id string, count uint32) error {
	p, err := scanPasskey(w.t.Row(selectPasskeyByID, id))
	if err != nil {
		return sqlite.NoRows(err, webhook.NotFound("passkey"))
	}
	if !p.CountsUp(count) {
		return ErrSignCount
	}
	return w.t.Exec("UPDATE passkeys SET sign_count = ?, used_at = ? WHERE id = ?", int64(count), w.now().UnixMilli(), id)
}

// Remove removes a passkey of an admin and returns it. The error is a *webhook.Error if
// the admin has none with this ID.
func (w PasskeyWrites) Remove(adminID, id string) (webhook.Passkey, error) {
	p, err := scanPasskey(w.t.Row(selectPasskeyByID, id))
	if err == nil && p.AdminID != adminID {
		err = sql.ErrNoRows
	}
	if err != nil {
		return p, sqlite.NoRows(err, webhook.NotFound("passkey"))
	}
	return p, w.t.Exec("DELETE FROM passkeys WHERE id = ?", id)
}

// RemoveAll removes all passkeys of an admin and returns their number.
func (w PasskeyWrites) RemoveAll(adminID string) (int, error) {
	n, err := w.t.Affected(deletePasskeys, adminID)
	return int(n), err
}

// Count returns how many passkeys an admin has, as of this write.
func (w PasskeyWrites) Count(adminID string) (n int, err error) {
	err = w.t.Scan(countPasskeys, []any{adminID}, &n)
	return n, err
}

// scanPasskey reads a row of passkeyColumns.
func scanPasskey(scan func(...any) error) (p webhook.Passkey, err error) {
	err = scan(&p.ID, &p.AdminID, &p.Name, &p.RPID, &p.Credential, &p.PublicKey, &p.SignCount, &p.Synced, (*sqlite.Time)(&p.CreatedAt),
		(*sqlite.Time)(&p.UsedAt))
	return p, err
}
