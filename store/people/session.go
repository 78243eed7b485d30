package people

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	sessionColumns = "s.id, s.admin_id, a.email, a.role, s.address, s.agent, s.created_at, s.seen_at, s.expires_at"

	selectSession  = "SELECT " + sessionColumns + " FROM sessions s CROSS JOIN admins a ON a.id = s.admin_id WHERE s.hash = ?"
	selectSessions = "SELECT " + sessionColumns + " FROM sessions s INDEXED BY sessions_by_admin CROSS JOIN admins a ON a.id = s.admin_id" +
		" WHERE s.admin_id = ? AND s.seen_at > ? AND s.expires_at > ? ORDER BY s.created_at DESC"

	deleteExpiredSessions = "DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions INDEXED BY sessions_by_expiry " +
		"WHERE expires_at <= ? LIMIT 256)"
	deleteOldestSessions = "DELETE FROM sessions WHERE hash IN (SELECT hash FROM sessions INDEXED BY sessions_by_admin " +
		"WHERE admin_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
	deleteAdminSessions = "DELETE FROM sessions INDEXED BY sessions_by_admin WHERE admin_id = ? AND id <> ?"
	countAdminSessions  = "SELECT count(*) FROM sessions INDEXED BY sessions_by_admin WHERE admin_id = ? AND id <> ? AND seen_at > ? " +
		"AND expires_at > ?"
)

const (
	maxAgent            = 256         // stored bytes of a user agent
	sessionSaveInterval = time.Minute // shortest interval between updates of seen_at
)

// Create signs an admin in with a browser, and returns the session and its secret: 32
// random bytes in base64url, of which only the SHA-256 is stored. checked is the hash that the
// password was checked against; the error is a *webhook.Error if the password has changed
// since, or the admin was removed. replaced is the secret of the browser's previous session,
// which ends; "" for none.
func (w SessionWrites) Create(adminID string, checked webhook.PasswordHash, address, agent,
	replaced string) (webhook.Session, string, error) {
	now := w.now().UTC().Truncate(time.Millisecond)
	secret, hash := newCode()
	agent = strings.ToValidUTF8(agent[:min(len(agent), maxAgent)], "")
	s := webhook.Session{ID: webhook.NewID(), AdminID: adminID, Address: address, Agent: agent, CreatedAt: now, SeenAt: now,
		ExpiresAt: now.Add(webhook.SessionLife)}
	known, err := w.t.Affected("UPDATE admins SET signed_in_at = ? WHERE id = ? AND password = ?", now.UnixMilli(), adminID, string(checked))
	if err == nil && known == 0 {
		err = webhook.NotFound("admin")
	}
	if err == nil {
		err = w.t.Exec(deleteExpiredSessions, now.UnixMilli())
	}
	if err == nil && replaced != "" {
		_, _, err = w.End(replaced)
	}
	if err == nil {
		err = w.t.Exec(deleteOldestSessions, adminID, webhook.MaxSessions-1)
	}
	if err == nil {
		err = w.t.Exec("INSERT INTO sessions (hash, id, admin_id, address, agent, created_at, seen_at, expires_at) "+
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
			hash[:], s.ID, s.AdminID, s.Address, s.Agent, now.UnixMilli(), now.UnixMilli(), s.ExpiresAt.UnixMilli())
	}
	return s, secret, err
}

// Get returns the session with a secret, and false if there is no active one. It updates the time
// at which the session was seen, about once per minute. While the store is not writable, Get
// cannot update it, and no session ends for inactivity.
func (s Sessions) Get(ctx context.Context, secret string) (webhook.Session, bool, error) {
	found, good, err := s.GetUnseen(ctx, secret)
	if err != nil || !good {
		return found, good, err
	}
	if now := s.now(); now.Sub(found.SeenAt) >= sessionSaveInterval {
		hash := sha256.Sum256([]byte(secret))
		if err := ctx.Err(); err != nil {
			return found, false, err
		}
		err := s.lists.DB.Writer().Do(func(t *sqlite.Tx) error {
			return t.Exec("UPDATE sessions SET seen_at = ? WHERE hash = ? AND seen_at < ?", now.UnixMilli(), hash[:], now.UnixMilli())
		})
		if err != nil && !sqlite.Unavailable(err) {
			return found, false, err
		}
		found.SeenAt = now.UTC().Truncate(time.Millisecond)
	}
	return found, true, nil
}

// GetUnseen is Get for requests that a browser makes on its own, such as those of a live page.
// It does not mark the session as seen, so that it ends when the admin is inactive.
func (s Sessions) GetUnseen(ctx context.Context, secret string) (webhook.Session, bool, error) {
	session, found, err := bySecret(Reads(s).scan(ctx), selectSession, secret, scanSession)
	if !found {
		return session, false, err
	}
	now := s.now()
	judged := session
	if s.lists.DB.Writer().Failed() {
		judged.SeenAt = now
	}
	return session, judged.Valid(now), nil
}

// Get returns the session with a secret and the current role of its admin, as of this write,
// and false if there is none or it has expired. It ignores inactivity, which [Sessions.Get] checks
// when a request begins.
func (w SessionWrites) Get(secret string) (webhook.Session, bool, error) {
	session, found, err := bySecret(w.t.Scan, selectSession, secret, scanSession)
	return session, found && w.now().Before(session.ExpiresAt), err
}

// List returns the active sessions of an admin, at most [webhook.MaxSessions], newest first.
func (s Sessions) List(ctx context.Context, adminID string) ([]webhook.Session, error) {
	var all []webhook.Session
	now := s.now()
	err := s.lists.DB.Each(ctx, selectSessions, []any{adminID, now.Add(-webhook.SessionIdle).UnixMilli(), now.UnixMilli()},
		sqlite.ScanInto(&all, scanSession))
	return all, err
}

// End ends the session with a secret, and reports whether there was one.
func (w SessionWrites) End(secret string) (webhook.Session, bool, error) {
	session, found, err := bySecret(w.t.Scan, selectSession, secret, scanSession)
	if found {
		hash := sha256.Sum256([]byte(secret))
		err = w.t.Exec("DELETE FROM sessions WHERE hash = ?", hash[:])
	}
	return session, found && err == nil, err
}

// Revoke ends a session of an admin. The error is a *webhook.Error if the admin has no
// session with this ID.
func (w SessionWrites) Revoke(adminID, id string) error {
	ended, err := w.t.Affected("DELETE FROM sessions WHERE id = ? AND admin_id = ?", id, adminID)
	if err == nil && ended == 0 {
		err = webhook.NotFound("session")
	}
	return err
}

// EndAll ends all sessions of an admin except one, "" for none, and returns how many
// active ones it ended.
func (w SessionWrites) EndAll(adminID, except string) (ended int, err error) {
	now := w.now()
	err = w.t.Scan(countAdminSessions, []any{adminID, except, now.Add(-webhook.SessionIdle).UnixMilli(), now.UnixMilli()}, &ended)
	if err == nil {
		err = w.t.Exec(deleteAdminSessions, adminID, except)
	}
	return ended, err
}

// scanSession reads a row of sessionColumns.
func scanSession(scan func(...any) error) (s webhook.Session, err error) {
	err = scan(&s.ID, &s.AdminID, &s.Email, &s.Role, &s.Address, &s.Agent, (*sqlite.Time)(&s.CreatedAt), (*sqlite.Time)(&s.SeenAt),
		(*sqlite.Time)(&s.ExpiresAt))
	return s, err
}

// A device is a browser that an admin has signed in with before. It keeps a cookie value,
// the mark, that only the service can issue.

// deviceMark is the purpose in the MAC of marks.
const deviceMark = "device"

// NewDevice returns a new mark for a browser of an admin.
func (s Sessions) NewDevice(adminID string) string {
	var random [16]byte
	rand.Read(random[:])
	nonce := base64.RawURLEncoding.EncodeToString(random[:])
	return nonce + "." + base64.RawURLEncoding.EncodeToString(s.lists.Key.MAC(deviceMark, adminID, nonce))
}

// Device returns the name of the browser that an admin's mark was issued to, and false if the
// mark is not valid for that admin.
func (s Sessions) Device(adminID, mark string) (string, bool) {
	nonce, sum, _ := strings.Cut(mark, ".")
	got, err := base64.RawURLEncoding.Strict().DecodeString(sum)
	if err != nil || len(nonce) != base64.RawURLEncoding.EncodedLen(16) || !hmac.Equal(got, s.lists.Key.MAC(deviceMark, adminID, nonce)) {
		return "", false
	}
	return nonce, true
}

// DeviceOfAny is Device for any admin.
func (s Sessions) DeviceOfAny(ctx context.Context, mark string) (device string, known bool, err error) {
	err = s.lists.DB.Each(ctx, "SELECT id FROM admins", nil, func(scan func(...any) error) error {
		var id string
		if err := scan(&id); err != nil || known {
			return err
		}
		device, known = s.Device(id, mark)
		return nil
	})
	return device, known, err
}
