package web

import (
	"net/http"
	"time"
)

const (
	linkLife    = 30 * time.Minute
	maxLinks    = 32
	sessionLife = 12 * time.Hour
	maxSessions = 1024
)

// NewSignInLink returns the path of a link that signs one browser in, once,
// within 30 minutes. Whoever has it is an admin: it is for the terminal of the
// operator and never for the log.
func (w *Web) NewSignInLink() string { return "/sign-in/" + w.links.issue() }

// askToSignIn shows a button. Only pressing it uses the link up: programs that
// look ahead at links, such as those of chats, do not press buttons.
func (w *Web) askToSignIn(r *request) (answer, error) {
	code := r.PathValue("code")
	if !w.links.good(code) {
		return answer{}, w.badLink()
	}
	return answer{page: signInPage(w.frame(r, "Sign in"), "/sign-in/"+code), secret: true}, nil
}

func (w *Web) signIn(r *request) (answer, error) {
	if !w.links.take(r.PathValue("code")) {
		return answer{}, w.badLink()
	}
	return answer{location: "/", cookie: w.cookie(w.sessions.issue(), sessionLife)}, nil
}

// badLink does not tell a used link from one that has expired or never was.
func (w *Web) badLink() *problem {
	return &problem{
		status:  http.StatusNotFound,
		title:   "This link is not good any more",
		text:    "A sign-in link works once, within 30 minutes. Ask the running service for a new one, in a terminal on its machine:",
		command: w.cfg.Program + " admin setup-link",
		after:   "Add --data DIR if its data directory is not ./data.",
	}
}

func (w *Web) signOut(r *request) (answer, error) {
	if c, err := r.Cookie(w.cookieName()); err == nil {
		w.sessions.take(c.Value)
	}
	return answer{location: "/", cookie: w.cookie("", -1)}, nil
}

// signedIn lets only requests of a session through.
func (w *Web) signedIn(do handler) handler {
	return func(r *request) (answer, error) {
		if c, err := r.Cookie(w.cookieName()); err != nil || !w.sessions.good(c.Value) {
			return answer{}, &problem{
				status:  http.StatusUnauthorized,
				title:   "You are not signed in",
				text:    "Open the sign-in link that the service printed when it started, or ask the running service for a new one, in a terminal on its machine:",
				command: w.cfg.Program + " admin setup-link",
				after:   "Add --data DIR if its data directory is not ./data. A link works once, within 30 minutes.",
			}
		}
		return do(r)
	}
}

// cookieName has the prefix that makes browsers refuse the cookie unless this
// host alone set it over HTTPS; they would refuse it over HTTP, too.
func (w *Web) cookieName() string {
	if w.cfg.Secure {
		return "__Host-session"
	}
	return "session"
}

// cookie returns the session's cookie, or for a negative life the one that
// removes it.
func (w *Web) cookie(value string, life time.Duration) *http.Cookie {
	age := int(life.Seconds())
	if life < 0 {
		age = -1
	}
	return &http.Cookie{
		Name: w.cookieName(), Value: value, Path: "/", MaxAge: age,
		Secure: w.cfg.Secure, HttpOnly: true,
		// Lax, so that a link from elsewhere finds the admin signed in; what
		// changes something is a POST, which must come from our own pages.
		SameSite: http.SameSiteLaxMode,
	}
}
