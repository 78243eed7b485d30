package people_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/people"
	"service/store/storetest"
	"service/test/harness"
	"service/webhook"
)

// hashOf returns a password hash derived from name; no password matches it.
func hashOf(name string) webhook.PasswordHash {
	return webhook.PasswordHash("$argon2id$v=19$m=19456,t=2,p=1$" + (name + strings.Repeat("A", 22))[:22] + "$" + strings.Repeat("A", 43))
}

// mustWrite runs do in one write, which must succeed.
func mustWrite(t *testing.T, s *store.Store, do func(w store.Write) error) {
	t.Helper()
	must(t, s.Write(t.Context(), do))
}

// try runs do in one write and returns its error.
func try(t *testing.T, s *store.Store, do func(w store.Write) (any, error)) error {
	t.Helper()
	return s.Write(t.Context(), func(w store.Write) error {
		_, err := do(w)
		return err
	})
}

// createAdmin creates an admin.
func createAdmin(t *testing.T, s *store.Store, email string) webhook.Admin {
	t.Helper()
	var a webhook.Admin
	mustWrite(t, s, func(w store.Write) (err error) {
		a, err = w.Admins().Create(email, webhook.RoleOwner, hashOf("abc"))
		return err
	})
	return a
}

// createSession signs in an admin created by createAdmin, and returns the session and its
// secret.
func createSession(t *testing.T, s *store.Store, a webhook.Admin, replaced string) (webhook.Session, string) {
	t.Helper()
	var session webhook.Session
	var secret string
	mustWrite(t, s, func(w store.Write) (err error) {
		session, secret, err = w.Sessions().Create(a.ID, hashOf("abc"), "192.0.2.1", "Firefox", replaced)
		return err
	})
	return session, secret
}

// good reports whether a secret belongs to an active session.
func good(t *testing.T, s *store.Store, secret string) bool {
	t.Helper()
	_, ok, err := s.Sessions().Get(t.Context(), secret)
	must(t, err)
	return ok
}

func TestAdmins(t *testing.T) {
	s := storetest.Open(t)
	exist, err := s.Admins().Exist(t.Context())
	if err != nil || exist {
		t.Fatalf("at first: got %v, %v", exist, err)
	}
	ana := createAdmin(t, s, "ana@example.com")
	bo := createAdmin(t, s, "bo@example.com")
	if exist, err = s.Admins().Exist(t.Context()); err != nil || !exist {
		t.Fatalf("with two: got %v, %v", exist, err)
	}
	for email, want := range map[string]webhook.Code{
		"ana@example.com": webhook.CodeConflict, "Cy@example.com": webhook.CodeInvalid, "cy": webhook.CodeInvalid, "": webhook.CodeInvalid,
	} {
		storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) {
			return w.Admins().Create(email, webhook.RoleOwner, hashOf("abc"))
		}), want)
	}
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) {
		return w.Admins().CreateFirst("cy@example.com", hashOf("abc"))
	}), webhook.CodeConflict)
	if err := try(t, s, func(w store.Write) (any, error) {
		return w.Admins().Create("cy@example.com", webhook.RoleOwner, "a password")
	}); err == nil {
		t.Error("stored a password instead of its hash")
	}

	got, hash, err := s.Admins().ByEmail(t.Context(), "ana@example.com")
	if err != nil || got != ana || hash != hashOf("abc") {
		t.Errorf("got %+v, %s, %v; want %+v", got, hash, err, ana)
	}
	if got, _, err = s.Admins().Get(t.Context(), bo.ID); err != nil || got != bo {
		t.Errorf("got %+v, %v; want %+v", got, err, bo)
	}
	_, _, err = s.Admins().ByEmail(t.Context(), "cy@example.com")
	storetest.WantCode(t, err, webhook.CodeNotFound)

	_, kept := createSession(t, s, bo, "")
	_, first := createSession(t, s, ana, "")
	second, secret := createSession(t, s, ana, "")
	ended := 0
	mustWrite(t, s, func(w store.Write) (err error) {
		ended, err = w.Admins().SetPassword(ana.ID, hashOf("def"), second.ID)
		return err
	})
	if ended != 1 || good(t, s, first) || !good(t, s, secret) || !good(t, s, kept) {
		t.Errorf("after a new password: %d sessions ended, active: first %v, kept %v, other admin's %v", ended, good(t, s, first),
			good(t, s, secret), good(t, s, kept))
	}
	// A sign-in fails if the password was replaced after it was checked.
	storetest.WantCode(t, s.Write(t.Context(), func(w store.Write) error {
		_, _, err := w.Sessions().Create(ana.ID, hashOf("abc"), "", "", "")
		return err
	}), webhook.CodeNotFound)

	all, err := s.Admins().List(t.Context())
	if err != nil || len(all) != 2 || all[0].Email != ana.Email || all[0].Sessions != 1 || all[0].SignedInAt.IsZero() || all[1].Sessions != 1 {
		t.Errorf("got %+v, %v", all, err)
	}
	must(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().Remove(ana.Email) }))
	if good(t, s, secret) {
		t.Error("a removed admin is still signed in")
	}
	storetest.WantCode(t, try(t, s, func(w store.Write) (any, error) { return w.Admins().Remove(ana.Email) }), webhook.CodeNotFound)
}

func TestSessions(t *testing.T) {
	s := storetest.Open(t)
	ana, bo := createAdmin(t, s, "ana@example.com"), createAdmin(t, s, "bo@example.com")
	session, secret := createSession(t, s, ana, "")
	got, ok, err := s.Sessions().Get(t.Context(), secret)
	session.Email, session.Role = ana.Email, ana.Role
	if err != nil || !ok || got != session {
		t.Errorf("got %+v, %v, %v; want %+v", got, ok, err, session)
	}
	if len(secret) != 43 {
		t.Errorf("the secret is %q, want 32 bytes in base64url", secret)
	}
	for _, other := range []string{"", "x", secret[1:], strings.Repeat("A", 43)} {
		if good(t, s, other) {
			t.Errorf("%q is accepted as a secret", other)
		}
	}
	// The next sign-in of a browser replaces its session.
	_, next := createSession(t, s, ana, secret)
	if good(t, s, secret) || !good(t, s, next) {
		t.Errorf("after signing in again: active: old %v, new %v; want false, true", good(t, s, secret), good(t, s, next))
	}
	third, thirdSecret := createSession(t, s, ana, "")
	// An admin cannot revoke another admin's session.
	err = s.Write(t.Context(), func(w store.Write) error { return w.Sessions().Revoke(bo.ID, third.ID) })
	storetest.WantCode(t, err, webhook.CodeNotFound)
	if !good(t, s, thirdSecret) {
		t.Error("another admin revoked the session")
	}
	mustWrite(t, s, func(w store.Write) error { return w.Sessions().Revoke(ana.ID, third.ID) })
	if good(t, s, thirdSecret) || !good(t, s, next) {
		t.Errorf("after a revocation: active: revoked %v, other %v; want false, true", good(t, s, thirdSecret), good(t, s, next))
	}
	mustWrite(t, s, func(w store.Write) error {
		_, found, err := w.Sessions().End(next)
		if !found {
			t.Error("EndSession found no session")
		}
		return err
	})
	if good(t, s, next) {
		t.Error("the session is active after its end")
	}
}

func TestSessionsAreBounded(t *testing.T) {
	s, now := openAt(t)
	ana := createAdmin(t, s, "ana@example.com")
	var secrets []string
	for range webhook.MaxSessions + 1 {
		_, secret := createSession(t, s, ana, "")
		secrets = append(secrets, secret)
		*now = now.Add(time.Second)
	}
	if good(t, s, secrets[0]) || !good(t, s, secrets[1]) {
		t.Errorf("active: oldest %v, next %v; want false, true", good(t, s, secrets[0]), good(t, s, secrets[1]))
	}
	all, err := s.Sessions().List(t.Context(), ana.ID)
	if err != nil || len(all) != webhook.MaxSessions || !all[0].CreatedAt.After(all[1].CreatedAt) {
		t.Errorf("%d sessions are listed, %v", len(all), err)
	}
}

// TestSessionsEnd checks that a session ends 12 hours after it began, and 2 hours after it was
// last seen, even across a restart.
func TestSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := harness.MemoryDir(t)
		s := mustOpen(t, dir)
		ana := createAdmin(t, s, "ana@example.com")
		_, idle := createSession(t, s, ana, "")
		_, busy := createSession(t, s, ana, "")
		_, watched := createSession(t, s, ana, "")
		began := time.Now()
		for time.Since(began) < webhook.SessionLife-time.Hour {
			time.Sleep(time.Hour)
			if !good(t, s, busy) {
				t.Fatalf("the session ended after %s", time.Since(began))
			}
			if _, ok, err := s.Sessions().GetUnseen(t.Context(), watched); err != nil || ok != (time.Since(began) < webhook.SessionIdle) {
				t.Errorf("after %s, a session seen only by live pages is active: %v, %v", time.Since(began), ok, err)
			}
			if time.Since(began) == webhook.SessionIdle-time.Hour {
				must(t, s.Close())
				s = mustOpen(t, dir)
			}
		}
		if good(t, s, idle) {
			t.Errorf("a session not seen for %s is active", time.Since(began))
		}
		time.Sleep(time.Until(began.Add(webhook.SessionLife - time.Millisecond)))
		if !good(t, s, busy) {
			t.Error("the session ended early")
		}
		time.Sleep(time.Millisecond)
		if good(t, s, busy) {
			t.Errorf("the session is active after %s", webhook.SessionLife)
		}
		if all, err := s.Sessions().List(t.Context(), ana.ID); err != nil || len(all) != 0 {
			t.Errorf("listed: %+v, %v", all, err)
		}
		createSession(t, s, ana, "")
		var left int
		if err := people.DB(s.Admins()).Scan(t.Context(), "SELECT count(*) FROM sessions", nil, &left); err != nil || left != 1 {
			t.Errorf("%d sessions are stored (%v), want the expired ones removed", left, err)
		}
		must(t, s.Close())
	})
}

// TestSeenIsWrittenOnceAMinute checks that not every request writes.
func TestSeenIsWrittenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := mustOpen(t, harness.MemoryDir(t))
		defer s.Close()
		_, secret := createSession(t, s, createAdmin(t, s, "ana@example.com"), "")
		written := func() (ms int64) {
			must(t, people.DB(s.Admins()).Scan(t.Context(), "SELECT seen_at FROM sessions", nil, &ms))
			return ms
		}
		before := written()
		time.Sleep(59 * time.Second)
		if good(t, s, secret); written() != before {
			t.Error("seen_at was written again within a minute")
		}
		time.Sleep(time.Second)
		if good(t, s, secret); written() != time.Now().UnixMilli() {
			t.Error("seen_at was not written after a minute")
		}
	})
}

func TestDevices(t *testing.T) {
	dir := harness.MemoryDir(t)
	s := mustOpen(t, dir)
	mark := s.Sessions().NewDevice("ana")
	name, ok := s.Sessions().Device("ana", mark)
	if !ok || name == "" || !strings.HasPrefix(mark, name) {
		t.Fatalf("got %q, %v", name, ok)
	}
	if other, _ := s.Sessions().Device("ana", s.Sessions().NewDevice("ana")); other == name {
		t.Error("two devices have the same name")
	}
	for _, m := range []string{"", ".", mark[:len(mark)-1], "A" + mark[1:], name + ".", name, mark + "A"} {
		if m == mark {
			continue
		}
		if _, ok := s.Sessions().Device("ana", m); ok {
			t.Errorf("%q is accepted as a mark", m)
		}
	}
	if _, ok := s.Sessions().Device("bo", mark); ok {
		t.Error("a mark is accepted for another admin")
	}
	must(t, s.Close())
	s = mustOpen(t, dir)
	if _, ok := s.Sessions().Device("ana", mark); !ok {
		t.Error("the device is unknown after a restart")
	}
	must(t, s.Close())
}

func mustOpen(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: dir})
	must(t, err)
	return s
}

// openAt is open with a clock that the test sets.
func openAt(t *testing.T) (*store.Store, *time.Time) {
	t.Helper()
	now := time.Now()
	s, err := store.Open(t.Context(), store.Config{Dir: harness.MemoryDir(t), Now: func() time.Time { return now }})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return s, &now
}

func TestAudit(t *testing.T) {
	s, now := openAt(t)
	began := *now
	add := func(e webhook.AuditEntry) {
		t.Helper()
		mustWrite(t, s, func(w store.Write) error { return w.Audit(e) })
	}
	ana := func(action webhook.Action, subject string) webhook.AuditEntry {
		return webhook.AuditEntry{Admin: "ana@example.com", Address: "192.0.2.1", Action: action, ProgramID: "acme", SubjectID: subject,
			Detail: "detail of " + subject}
	}
	add(ana(webhook.ActionSubscriptionPause, "s1"))
	*now = now.Add(time.Hour)
	add(ana(webhook.ActionSubscriptionResume, "s1"))
	*now = now.Add(-2 * time.Hour) // set back: times in the audit log must not decrease
	add(webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionTokenCreate, ProgramID: "other", SubjectID: "t1"})
	*now = now.Add(4 * time.Hour)
	add(ana(webhook.ActionSubscriptionPause, "s2"))

	list := func(query string) (subjects []string, next string) {
		t.Helper()
		values := make(map[string][]string)
		for pair := range strings.SplitSeq(query, "&") {
			if name, value, ok := strings.Cut(pair, "="); ok {
				values[name] = append(values[name], value)
			}
		}
		q, wrong := webhook.AuditList.Parse(values)
		if wrong != nil {
			t.Fatal(wrong)
		}
		entries, next, err := s.Audit().Page(t.Context(), &q)
		must(t, err)
		for i, e := range entries {
			subjects = append(subjects, e.SubjectID+" "+string(e.Action))
			if i > 0 && q.Sort[0].Descending == entries[i-1].At.Before(e.At) && !entries[i-1].At.Equal(e.At) {
				t.Errorf("%q: %s comes after %s", query, e.At, entries[i-1].At)
			}
		}
		return subjects, next
	}
	all := []string{"s2 subscription.pause", "t1 token.create", "s1 subscription.resume", "s1 subscription.pause"}
	for query, want := range map[string][]string{
		"":                                       all,
		"filter[admin]=terminal":                 {all[1]},
		"filter[admin]=terminal,ana@example.com": all,
		"filter[subject_id]=s1":                  {all[2], all[3]},
		"filter[subject_id]=s1,s2&filter[action]=subscription.pause":  {all[0], all[3]},
		"filter[action]=subscription.pause":                           {all[0], all[3]},
		"filter[program_id]=other":                                    {all[1]},
		"filter[program_id]=unknown":                                  nil,
		"filter[admin]=' OR 1=1 --":                                   nil,
		"sort=at":                                                     {all[3], all[2], all[1], all[0]},
		"filter[at.from]=" + webhook.FormatTime(began.Add(time.Hour)): {all[0], all[1], all[2]},
		"filter[at.to]=" + webhook.FormatTime(began.Add(time.Hour-time.Millisecond)): {all[3]},
	} {
		if got, next := list(query); !slices.Equal(got, want) || next != "" {
			t.Errorf("%q: got %q, next %q; want %q", query, got, next, want)
		}
	}

	// Pages have cursors, so later entries do not shift them.
	first, next := list("page[size]=2")
	if !slices.Equal(first, all[:2]) || next == "" {
		t.Fatalf("the first page is %q, next %q", first, next)
	}
	add(ana(webhook.ActionSubscriptionDelete, "s3"))
	if second, next := list("page[size]=2&page[cursor]=" + next); !slices.Equal(second, all[2:]) || next != "" {
		t.Errorf("the second page is %q, next %q", second, next)
	}
	q, _ := webhook.AuditList.Parse(map[string][]string{"page[cursor]": {next}, "filter[admin]": {"terminal"}})
	_, _, err := s.Audit().Page(t.Context(), &q)
	storetest.WantCode(t, err, webhook.CodeInvalid)
}

// TestAuditIsAtomic checks that a failed write leaves no audit entry, and that an action which
// cannot be recorded is not performed.
func TestAuditIsAtomic(t *testing.T) {
	s := storetest.Open(t)
	rollback := errors.New("roll back")
	err := s.Write(t.Context(), func(w store.Write) error {
		if err := w.Audit(webhook.AuditEntry{Admin: "a", Action: webhook.ActionEventPublish}); err != nil {
			return err
		}
		return rollback
	})
	if !errors.Is(err, rollback) {
		t.Fatal(err)
	}
	err = s.Write(t.Context(), func(w store.Write) error {
		if _, err := w.Admins().Create("ana@example.com", webhook.RoleOwner, hashOf("abc")); err != nil {
			return err
		}
		return w.Audit(webhook.AuditEntry{Admin: "a", Action: "admin.crown"})
	})
	if err == nil {
		t.Error("an unknown action was recorded")
	}
	q, _ := webhook.AuditList.Parse(nil)
	entries, _, err := s.Audit().Page(context.Background(), &q)
	if any, err2 := s.Admins().Exist(t.Context()); err != nil || err2 != nil || len(entries) != 0 || any {
		t.Errorf("got %+v, %v, an admin: %v, %v", entries, err, any, err2)
	}
	mustWrite(t, s, func(w store.Write) error {
		return w.Audit(webhook.AuditEntry{Admin: "a", Action: webhook.ActionEventPublish, Detail: strings.Repeat("ö", 2000) + "\xff"})
	})
	if entries, _, err = s.Audit().Page(t.Context(), &q); err != nil || len(entries) != 1 ||
		len(entries[0].Detail) > webhook.MaxAuditDetail || !strings.HasSuffix(entries[0].Detail, "ö…") {
		t.Errorf("got %+v, %v", entries, err)
	}
}
