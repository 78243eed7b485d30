package web

import (
	"net/http"
	"strings"
	"time"

	"service/store"
	"service/webhook"
)

// sessions finds and creates the sessions of requests, and their cookies.
type sessions struct {
	store  *store.Store
	secure bool // send cookies over HTTPS only
}

const (
	linkLife = 30 * time.Minute
	maxLinks = 32
)

// find sets the session of r and reports whether there is one. It records the use of the session if
// used is set.
func (s *sessions) find(r *request, used bool) (bool, error) {
	c, err := r.Cookie(s.cookieName(sessionCookie))
	if err != nil {
		return false, nil
	}
	get := s.store.Sessions().GetUnseen
	if used {
		get = s.store.Sessions().Get
	}
	session, good, err := get(r.Context(), c.Value)
	if err != nil || !good {
		return false, err
	}
	r.session, r.admin, r.secret = session, session.Email, c.Value
	return true, nil
}

// create creates a session for an admin whose password has the given hash, and sets it in r. It
// replaces the previous session of the browser, and returns the session's secret.
func (s *sessions) create(sw store.Write, r *request, admin webhook.Admin, hash webhook.PasswordHash) (secret string, err error) {
	replaced := ""
	if c, err := r.Cookie(s.cookieName(sessionCookie)); err == nil {
		replaced = c.Value
	}
	session, secret, err := sw.Sessions().Create(admin.ID, hash, addressText(r), r.UserAgent(), replaced)
	session.Email, session.Role = admin.Email, admin.Role
	r.session, r.admin = session, admin.Email
	return secret, err
}

// cookies returns the cookies to set after signing in: the session and, if the browser has none,
// the mark of a known device.
func (s *sessions) cookies(r *request, secret string) []*http.Cookie {
	cookies := []*http.Cookie{s.cookie(sessionCookie, secret, webhook.SessionLife)}
	if _, known := s.device(r, r.session.AdminID); !known {
		cookies = append(cookies, s.cookie(deviceCookie, s.store.Sessions().NewDevice(r.session.AdminID), deviceLife))
	}
	return cookies
}

// signInEntry is the audit entry of a sign-in.
func (r *request) signInEntry() webhook.AuditEntry {
	return r.entry(webhook.ActionSessionBegin, "", r.session.AdminID, browserOf(r.session.Agent))
}

// device returns the ID of the browser that sent r, if the admin has signed in with it before.
func (s *sessions) device(r *request, adminID string) (string, bool) {
	c, err := r.Cookie(s.cookieName(deviceCookie))
	if err != nil || adminID == "" {
		return "", false
	}
	return s.store.Sessions().Device(adminID, c.Value)
}

// deviceOfAny is device for a browser whose admin is unknown.
func (s *sessions) deviceOfAny(r *request) (string, bool, error) {
	c, err := r.Cookie(s.cookieName(deviceCookie))
	if err != nil {
		return "", false, nil
	}
	return s.store.Sessions().DeviceOfAny(r.Context(), c.Value)
}

// Names of the cookies. The session cookie ends with the browser session; the device cookie lives
// as long as browsers allow.
const (
	sessionCookie = "session"
	deviceCookie  = "device"
	deviceLife    = 400 * 24 * time.Hour
)

// cookieName adds the __Host- prefix over HTTPS: browsers then accept the cookie from this host
// only. Over HTTP they would reject it.
func (s *sessions) cookieName(name string) string {
	if s.secure {
		return "__Host-" + name
	}
	return name
}

// cookie returns a cookie. A negative life removes it.
func (s *sessions) cookie(name, value string, life time.Duration) *http.Cookie {
	age := int(life.Seconds())
	if life < 0 {
		age = -1
	}
	return &http.Cookie{
		Name: s.cookieName(name), Value: value, Path: "/", MaxAge: age,
		Secure: s.secure, HttpOnly: true,
		// Lax keeps the admin signed in when following a link from another site. Changes require
		// a POST, which must come from our own pages.
		SameSite: http.SameSiteLaxMode,
	}
}

// browserOf returns the browser and operating system that a User-Agent claims, in a few words. The
// result is still text from outside.
func browserOf(agent string) string {
	named := func(names ...[2]string) string {
		for _, n := range names {
			if strings.Contains(agent, n[0]) {
				return n[1]
			}
		}
		return ""
	}
	// The order matters: most browsers also claim to be others.
	browser := named([2]string{"Edg", "Edge"}, [2]string{"OPR/", "Opera"}, [2]string{"Firefox/", "Firefox"}, [2]string{"FxiOS/", "Firefox"},
		[2]string{"CriOS/", "Chrome"}, [2]string{"HeadlessChrome/", "Chrome"}, [2]string{"Chromium/", "Chromium"}, [2]string{"Chrome/", "Chrome"},
		[2]string{"Safari/", "Safari"})
	system := named([2]string{"Windows", "Windows"}, [2]string{"Android", "Android"}, [2]string{"iPhone", "iPhone"}, [2]string{"iPad", "iPad"},
		[2]string{"CrOS", "ChromeOS"}, [2]string{"Mac OS X", "macOS"}, [2]string{"Linux", "Linux"})
	switch {
	case browser != "" && system != "":
		return browser + " on " + system
	case browser != "" || agent == "":
		return browser
	}
	name, _, _ := strings.Cut(agent, " ")
	return cutText(name, 40)
}
