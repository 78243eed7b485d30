package people

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

const (
	selectPortalLink = "SELECT id, program_id, role, created_at, expires_at FROM portal_links WHERE hash = ? AND program_id" + list.CanBeUsed

	portalSessionColumns = "id, link_id, program_id, role, address, agent, created_at, expires_at"
	selectPortalSession  = "SELECT " + portalSessionColumns + " FROM portal_sessions WHERE hash = ?"
	openPortalSession    = selectPortalSession + " AND program_id" + list.CanBeUsed
	selectPortalSessions = "SELECT " + portalSessionColumns + " FROM portal_sessions INDEXED BY portal_sessions_by_program " +
		"WHERE program_id = ? AND expires_at > ? ORDER BY created_at DESC"
	countPortalLinks = "SELECT count(*) FROM portal_links INDEXED BY portal_links_by_program WHERE program_id = ? AND expires_at > ?"

	deleteExpiredPortalLinks = "DELETE FROM portal_links WHERE hash IN (SELECT hash FROM portal_links INDEXED BY portal_links_by_expiry " +
		"WHERE expires_at <= ? LIMIT 256)"
	deleteOldestPortalLinks = "DELETE FROM portal_links WHERE hash IN (SELECT hash FROM portal_links INDEXED BY portal_links_by_program " +
		"WHERE program_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
	deleteExpiredPortalSessions = "DELETE FROM portal_sessions WHERE hash IN (SELECT hash FROM portal_sessions " +
		"INDEXED BY portal_sessions_by_expiry WHERE expires_at <= ? LIMIT 256)"
	deleteOldestPortalSessions = "DELETE FROM portal_sessions WHERE hash IN (SELECT hash FROM portal_sessions " +
		"INDEXED BY portal_sessions_by_program WHERE program_id = ? ORDER BY created_at DESC LIMIT -1 OFFSET ?)"
	deletePortalLinks    = "DELETE FROM portal_links INDEXED BY portal_links_by_program WHERE program_id = ?"
	deletePortalSessions = "DELETE FROM portal_sessions INDEXED BY portal_sessions_by_program WHERE program_id = ?"
)

// newCode returns 32 random bytes in base64url, and their SHA-256, which is stored.
func newCode() (code string, hash [sha256.Size]byte) {
	var random [32]byte
	rand.Read(random[:])
	code = base64.RawURLEncoding.EncodeToString(random[:])
	return code, sha256.Sum256([]byte(code))
}

// CreatePortalLink creates a link to a program's portal, and returns the code in it. At
// [webhook.MaxPortalLinks] it ends the oldest link of the program. The caller has checked n, and
// that the program can be used.
func (w Writes) CreatePortalLink(n webhook.NewPortalLink, by webhook.AuditEntry) (l webhook.PortalLink, code string, err error) {
	now := w.now().UTC().Truncate(time.Millisecond)
	if n.ExpiresAt.IsZero() {
		n.ExpiresAt = now.Add(webhook.DefaultPortalLinkLife)
	}
	l = webhook.PortalLink{ID: webhook.NewID(), ProgramID: n.ProgramID, Role: n.Role, CreatedAt: now,
		ExpiresAt: n.ExpiresAt.UTC().Truncate(time.Millisecond)}
	code, hash := newCode()
	err = w.t.Exec(deleteExpiredPortalLinks, now.UnixMilli())
	if err == nil {
		err = w.t.Exec(deleteOldestPortalLinks, l.ProgramID, webhook.MaxPortalLinks-1)
	}
	if err == nil {
		err = w.t.Exec("INSERT INTO portal_links (hash, id, program_id, role, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
			hash[:], l.ID, l.ProgramID, string(l.Role), now.UnixMilli(), l.ExpiresAt.UnixMilli())
	}
	if err == nil {
		err = w.Record(by, webhook.ActionPortalLinkCreate, l.ProgramID, l.ID, string(l.Role)+", expires "+webhook.FormatTime(l.ExpiresAt))
	}
	return l, code, err
}

// Link returns the open link with a code, and false if there is none or its program cannot be
// used.
func (s Portal) Link(ctx context.Context, code string) (webhook.PortalLink, bool, error) {
	l, found, err := bySecret(Reads(s).scan(ctx), selectPortalLink, code, scanPortalLink)
	return l, found && s.now().Before(l.ExpiresAt), err
}

// BeginSession uses up a link, and returns a session with its secret, of which only the
// SHA-256 is stored. replaced is the secret of the browser's previous session, which ends; ""
// for none. The secret of a session in an iframe begins with [webhook.FramedSession]. The
// error is a *webhook.Error if no link with the code is open.
func (w PortalWrites) BeginSession(code, address, agent, replaced string, framed bool) (p webhook.PortalSession, secret string, err error) {
	hash := sha256.Sum256([]byte(code))
	l, err := scanPortalLink(w.t.Row(selectPortalLink, hash[:]))
	if err != nil {
		return p, "", sqlite.NoRows(err, webhook.NotFound("link"))
	}
	if !w.now().Before(l.ExpiresAt) {
		return p, "", webhook.NotFound("link")
	}
	now := w.now().UTC().Truncate(time.Millisecond)
	agent = strings.ToValidUTF8(agent[:min(len(agent), maxAgent)], "")
	p = webhook.PortalSession{ID: webhook.NewID(), LinkID: l.ID, ProgramID: l.ProgramID, Role: l.Role, Address: address, Agent: agent,
		CreatedAt: now, ExpiresAt: now.Add(webhook.PortalSessionLife)}
	secret, stored := newCode()
	if framed {
		secret = webhook.FramedSession + secret
		stored = sha256.Sum256([]byte(secret))
	}
	err = w.t.Exec("DELETE FROM portal_links WHERE hash = ?", hash[:])
	if err == nil && replaced != "" {
		_, _, err = w.EndSession(replaced)
	}
	if err == nil {
		err = w.t.Exec(deleteExpiredPortalSessions, now.UnixMilli())
	}
	if err == nil {
		err = w.t.Exec(deleteOldestPortalSessions, p.ProgramID, webhook.MaxPortalSessions-1)
	}
	if err == nil {
		err = w.t.Exec("INSERT INTO portal_sessions (hash, id, link_id, program_id, role, address, agent, created_at, expires_at) "+
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", stored[:], p.ID, p.LinkID, p.ProgramID, string(p.Role), p.Address, p.Agent,
			now.UnixMilli(), p.ExpiresAt.UnixMilli())
	}
	return p, secret, err
}

// Session returns the session with a secret, and false if there is none or its program cannot be
// used.
func (s Portal) Session(ctx context.Context, secret string) (webhook.PortalSession, bool, error) {
	p, found, err := bySecret(Reads(s).scan(ctx), openPortalSession, secret, scanPortalSession)
	return p, found && s.now().Before(p.ExpiresAt), err
}

// Session is [Portal.Session] as of this write.
func (w PortalWrites) Session(secret string) (webhook.PortalSession, bool, error) {
	p, found, err := bySecret(w.t.Scan, openPortalSession, secret, scanPortalSession)
	return p, found && w.now().Before(p.ExpiresAt), err
}

// Sessions returns the open sessions in a program's portal, newest first, and the number of
// its open links.
func (s Portal) Sessions(ctx context.Context, programID string) (sessions []webhook.PortalSession, links int, err error) {
	now := s.now().UnixMilli()
	if err := s.lists.DB.Scan(ctx, countPortalLinks, []any{programID, now}, &links); err != nil {
		return nil, 0, err
	}
	err = s.lists.DB.Each(ctx, selectPortalSessions, []any{programID, now}, sqlite.ScanInto(&sessions, scanPortalSession))
	return sessions, links, err
}

// EndSession ends the session with a secret, and reports whether there was one.
func (w PortalWrites) EndSession(secret string) (webhook.PortalSession, bool, error) {
	session, found, err := bySecret(w.t.Scan, selectPortalSession, secret, scanPortalSession)
	if found {
		hash := sha256.Sum256([]byte(secret))
		err = w.t.Exec("DELETE FROM portal_sessions WHERE hash = ?", hash[:])
	}
	return session, found && err == nil, err
}

// EndAccess ends all sessions in a program's portal and all its links, and returns how
// many there were.
func (w PortalWrites) EndAccess(programID string) (sessions, links int64, err error) {
	if sessions, err = w.t.Affected(deletePortalSessions, programID); err != nil {
		return 0, 0, err
	}
	links, err = w.t.Affected(deletePortalLinks, programID)
	return sessions, links, err
}

func scanPortalLink(scan func(...any) error) (l webhook.PortalLink, err error) {
	err = scan(&l.ID, &l.ProgramID, &l.Role, (*sqlite.Time)(&l.CreatedAt), (*sqlite.Time)(&l.ExpiresAt))
	return l, err
}

func scanPortalSession(scan func(...any) error) (p webhook.PortalSession, err error) {
	err = scan(&p.ID, &p.LinkID, &p.ProgramID, &p.Role, &p.Address, &p.Agent, (*sqlite.Time)(&p.CreatedAt), (*sqlite.Time)(&p.ExpiresAt))
	return p, err
}
