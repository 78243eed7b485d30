package web

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"service/store"
	"service/webhook"
)

// sessions finds the session of a request and begins new ones.
type sessions struct {
	store  *store.Store
	secure bool // cookies are sent over HTTPS alone
}

const (
	linkLife = 30 * time.Minute
	maxLinks = 32
)

// find finds the session of a request, and says whether there is one. It
// notes that it was seen.
func (s *sessions) find(r *request) (bool, error) {
	return s.findBy(r, s.store.Session)
}

// findUnnoted is findSession without noting it.
func (s *sessions) findUnnoted(r *request) (bool, error) {
	return s.findBy(r, s.store.SessionUnnoted)
}

func (s *sessions) findBy(r *request, find func(context.Context, string) (webhook.Session, bool, error)) (bool, error) {
	c, err := r.Cookie(s.cookieName(sessionCookie))
	if err != nil {
		return false, nil
	}
	session, good, err := find(r.Context(), c.Value)
	if err != nil || !good {
		return false, err
	}
	r.session, r.admin = session, session.Email
	return true, nil
}

// begin signs an admin in, in a write, whose password has that hash. It returns
// the secret of the session, which takes the place of the one that the browser
// had before; the request is of the new one from then on.
func (s *sessions) begin(sw store.Write, r *request, admin webhook.Admin, hash webhook.PasswordHash) (secret string, err error) {
	replaced := ""
	if c, err := r.Cookie(s.cookieName(sessionCookie)); err == nil {
		replaced = c.Value
	}
	session, secret, err := sw.CreateSession(admin.ID, hash, addressText(r), r.UserAgent(), replaced)
	session.Email = admin.Email
	r.session, r.admin = session, admin.Email
	return secret, err
}

// cookies are the cookies of a browser that an admin has signed in with: its
// session, and unless it has one its mark as a device.
func (s *sessions) cookies(r *request, secret string) []*http.Cookie {
	cookies := []*http.Cookie{s.cookie(sessionCookie, secret, webhook.SessionLife)}
	if _, known := s.device(r, r.session.AdminID); !known {
		cookies = append(cookies, s.cookie(deviceCookie, s.store.NewDevice(r.session.AdminID), deviceLife))
	}
	return cookies
}

// beginning is what the audit is told of it.
func (r *request) beginning() webhook.AuditEntry {
	return r.entry(webhook.ActionSessionBegin, "", r.session.AdminID, browserOf(r.session.Agent))
}

// device is the name of the browser that sent a request, when the admin has
// signed in with it before.
func (s *sessions) device(r *request, adminID string) (string, bool) {
	c, err := r.Cookie(s.cookieName(deviceCookie))
	if err != nil || adminID == "" {
		return "", false
	}
	return s.store.Device(adminID, c.Value)
}

// The cookies. The session ends with its cookie; a device is known for as long
// as browsers keep a cookie.
const (
	sessionCookie = "session"
	deviceCookie  = "device"
	deviceLife    = 400 * 24 * time.Hour
)

// cookieName has the prefix that makes browsers refuse the cookie unless this
// host alone set it over HTTPS; they would refuse it over HTTP, too.
func (s *sessions) cookieName(name string) string {
	if s.secure {
		return "__Host-" + name
	}
	return name
}

// cookie returns a cookie, or for a negative life the one that removes it.
func (s *sessions) cookie(name, value string, life time.Duration) *http.Cookie {
	age := int(life.Seconds())
	if life < 0 {
		age = -1
	}
	return &http.Cookie{
		Name: s.cookieName(name), Value: value, Path: "/", MaxAge: age,
		Secure: s.secure, HttpOnly: true,
		// Lax, so that a link from elsewhere finds the admin signed in; what
		// changes something is a POST, which must come from our own pages.
		SameSite: http.SameSiteLaxMode,
	}
}

// maxForm bounds the body of a form, in bytes.
const maxForm = 64 << 10

// form reads the fields of a POST. The error is a problem.
func (r *request) form() (url.Values, error) { return r.formUpTo(maxForm) }

// formUpTo is the same for a form of so many bytes.
func (r *request) formUpTo(limit int64) (url.Values, error) {
	r.Body = http.MaxBytesReader(nil, r.Body, limit)
	err := r.ParseForm()
	if r.Context().Err() != nil {
		return nil, context.Cause(r.Context())
	}
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, title: "This form cannot be read", text: "It is too large, or was cut off. Nothing was done."}
	}
	return r.PostForm, nil
}
