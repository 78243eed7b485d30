package people_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/people"
	"service/store/sqlite"
	"service/store/storetest"
	"service/webhook"
)

// portalLink creates a link to a program's portal and returns its code.
func portalLink(t *testing.T, s *store.Store, n webhook.NewPortalLink) (l webhook.PortalLink, code string) {
	t.Helper()
	mustWrite(t, s, func(w store.Write) (err error) {
		l, code, err = w.Programs().CreatePortalLink(n, webhook.AuditEntry{})
		return err
	})
	return l, code
}

// portalSession uses a link.
func portalSession(t *testing.T, s *store.Store, code, replaced string) (p webhook.PortalSession, secret string, err error) {
	t.Helper()
	err = s.Write(t.Context(), func(w store.Write) (err error) {
		p, secret, err = w.Portal().BeginSession(code, "203.0.113.9", "agent", replaced, false)
		return err
	})
	return p, secret, err
}

// inPortal reports whether a secret belongs to an open session.
func inPortal(t *testing.T, s *store.Store, secret string) bool {
	t.Helper()
	_, good, err := s.Portal().Session(t.Context(), secret)
	must(t, err)
	return good
}

// A link works once, until it expires, and opens a session of 8 hours.
func TestPortalLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := storetest.Open(t)
		ensure(t, s, "acme")
		began := time.Now()
		l, code := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalWrite})
		if !l.ExpiresAt.Equal(l.CreatedAt.Add(24*time.Hour)) || l.Role != webhook.PortalWrite {
			t.Errorf("got %+v", l)
		}
		if n := count(t, s, "SELECT count(*) FROM portal_links WHERE instr(hash || id || program_id, ?) > 0", code); n != 0 {
			t.Error("the code is stored")
		}
		wrongCodes(t, s, code)
		for range 2 { // reading the link does not use it up
			if got, good, err := s.Portal().Link(t.Context(), code); !good || err != nil || got != l {
				t.Errorf("got %+v, %v, %v", got, good, err)
			}
		}
		p, secret, err := portalSession(t, s, code, "")
		must(t, err)
		if p.ProgramID != "acme" || p.Role != webhook.PortalWrite || p.LinkID != l.ID || !p.ExpiresAt.Equal(p.CreatedAt.Add(8*time.Hour)) {
			t.Errorf("got %+v", p)
		}
		if got, good, err := s.Portal().Session(t.Context(), secret); !good || err != nil || got != p {
			t.Errorf("got %+v, %v, %v; want %+v", got, good, err, p)
		}
		_, _, err = portalSession(t, s, code, "")
		storetest.WantCode(t, err, webhook.CodeNotFound)
		if inPortal(t, s, code) || inPortal(t, s, p.ID) {
			t.Error("the code or the id is a session")
		}

		portalEnds(t, s, began, secret)
	})
}

// wrongCodes tries invalid codes.
func wrongCodes(t *testing.T, s *store.Store, code string) {
	t.Helper()
	for _, wrong := range []string{"", "guess", code + "A", code[:42]} {
		if _, good, err := s.Portal().Link(t.Context(), wrong); good || err != nil {
			t.Errorf("%q: got %v, %v", wrong, good, err)
		}
		_, _, err := portalSession(t, s, wrong, "")
		storetest.WantCode(t, err, webhook.CodeNotFound)
	}
}

// portalEnds waits for the end of a link, and of the session that began at a time.
func portalEnds(t *testing.T, s *store.Store, began time.Time, secret string) {
	t.Helper()
	_, short := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead, ExpiresAt: began.Add(time.Hour)})
	time.Sleep(time.Hour)
	if _, good, _ := s.Portal().Link(t.Context(), short); good {
		t.Error("the link is open after its end")
	}
	_, _, err := portalSession(t, s, short, "")
	storetest.WantCode(t, err, webhook.CodeNotFound)
	time.Sleep(7*time.Hour - time.Second)
	if !inPortal(t, s, secret) {
		t.Error("the session ended early")
	}
	time.Sleep(time.Second)
	if inPortal(t, s, secret) {
		t.Error("the session did not end after 8 hours")
	}
	_, code := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead})
	_, _, err = portalSession(t, s, code, "")
	must(t, err)
	wantNumber(t, "stored sessions", count(t, s, "SELECT count(*) FROM portal_sessions"), 1) // the open one
}

func ensure(t *testing.T, s *store.Store, programID string) {
	t.Helper()
	mustWrite(t, s, func(w store.Write) error {
		_, _, err := w.Programs().Put(programID, &webhook.ProgramFields{}, webhook.AuditEntry{})
		return err
	})
}

// Of concurrent requests with one link, one opens a session.
func TestPortalLinkOnce(t *testing.T) {
	s := storetest.Open(t)
	ensure(t, s, "acme")
	_, code := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead})
	var opened atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, _, err := portalSession(t, s, code, "")
			var mistake *webhook.Error
			switch {
			case err == nil:
				opened.Add(1)
			case !errors.As(err, &mistake) || mistake.Code != webhook.CodeNotFound:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantNumber(t, "sessions that began", int(opened.Load()), 1)
}

// TestPortalLinkRefused checks the requirements of a link.
func TestPortalLinkRefused(t *testing.T) {
	s := storetest.Open(t)
	ensure(t, s, "acme")
	now := time.Now()
	for _, tt := range []struct {
		n    webhook.NewPortalLink
		want webhook.Code
	}{
		{webhook.NewPortalLink{ProgramID: "acme"}, webhook.CodeInvalid},
		{webhook.NewPortalLink{ProgramID: "acme", Role: "owner"}, webhook.CodeInvalid},
		{webhook.NewPortalLink{ProgramID: "acme", Role: "read", ExpiresAt: now}, webhook.CodeInvalid},
		{webhook.NewPortalLink{ProgramID: "acme", Role: "read", ExpiresAt: now.Add(8 * 24 * time.Hour)}, webhook.CodeInvalid},
		{webhook.NewPortalLink{ProgramID: "none", Role: "read"}, webhook.CodeNotFound},
	} {
		storetest.WantCode(t, s.Write(t.Context(), func(w store.Write) error {
			_, _, err := w.Programs().CreatePortalLink(tt.n, webhook.AuditEntry{})
			return err
		}), tt.want)
	}
}

// TestPortalAccess checks when links and sessions end.
func TestPortalAccess(t *testing.T) {
	s := storetest.Open(t)
	ensure(t, s, "acme")
	ensure(t, s, "other")
	begin := func(program, replaced string) string {
		t.Helper()
		_, code := portalLink(t, s, webhook.NewPortalLink{ProgramID: program, Role: webhook.PortalRead})
		_, secret, err := portalSession(t, s, code, replaced)
		must(t, err)
		return secret
	}
	first := begin("acme", "")
	second, of := begin("acme", first), begin("other", "")
	if inPortal(t, s, first) || !inPortal(t, s, second) {
		t.Error("a new session did not replace the one of the browser")
	}
	_, left := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead})
	sessions, links, err := s.Portal().Sessions(t.Context(), "acme")
	if err != nil || len(sessions) != 1 || links != 1 {
		t.Errorf("got %d sessions, %d links, %v", len(sessions), links, err)
	}
	mustWrite(t, s, func(w store.Write) error {
		sessions, links, err := w.Portal().EndAccess("acme")
		if sessions != 1 || links != 1 {
			t.Errorf("ended %d sessions, %d links", sessions, links)
		}
		return err
	})
	if _, good, _ := s.Portal().Link(t.Context(), left); good || inPortal(t, s, second) || !inPortal(t, s, of) {
		t.Error("the wrong access ended")
	}

	_, left = portalLink(t, s, webhook.NewPortalLink{ProgramID: "other", Role: webhook.PortalRead})
	must(t, try(t, s, func(w store.Write) (any, error) { return w.Programs().Erase("other", webhook.AuditEntry{}) }))
	if _, good, _ := s.Portal().Link(t.Context(), left); good || inPortal(t, s, of) {
		t.Error("a program that is being erased can be used")
	}
	_, _, err = portalSession(t, s, left, "")
	storetest.WantCode(t, err, webhook.CodeNotFound)
	storetest.WantCode(t, s.Write(t.Context(), func(w store.Write) error {
		_, _, err := w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: "other", Role: webhook.PortalRead}, webhook.AuditEntry{})
		return err
	}), webhook.CodeConflict)

	var oldest string
	mustWrite(t, s, func(w store.Write) error {
		for i := range webhook.MaxPortalLinks + 1 {
			_, code, err := w.Programs().CreatePortalLink(webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead}, webhook.AuditEntry{})
			if err != nil {
				return err
			}
			if i == 0 {
				oldest = code
			}
		}
		return nil
	})
	must(t, people.DB(s.Admins()).Writer().Do(func(t *sqlite.Tx) error {
		return t.Exec("UPDATE portal_links SET created_at = created_at - 1 WHERE program_id = 'acme'")
	}))
	_, newest := portalLink(t, s, webhook.NewPortalLink{ProgramID: "acme", Role: webhook.PortalRead})
	if n := count(t, s, "SELECT count(*) FROM portal_links WHERE program_id = 'acme'"); n != webhook.MaxPortalLinks {
		t.Errorf("%d links are stored (%q is the oldest)", n, oldest)
	}
	if _, good, _ := s.Portal().Link(t.Context(), newest); !good {
		t.Error("the newest link ended")
	}
}
