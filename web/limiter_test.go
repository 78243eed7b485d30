package web

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := newTryLimiter(3)
		slow := limit{"slow", 3, time.Minute}
		fast := limit{"fast", 5, time.Second}
		takes := func(about string, want time.Duration, tries ...limitKey) {
			t.Helper()
			if wait := th.allow(tries...); wait != want {
				t.Errorf("%s: got %s, want %s", about, wait, want)
			}
		}
		for range 3 {
			takes("within the limit", 0, limitKey{slow, "a"}, limitKey{fast, "x"})
		}
		takes("beyond the limit", time.Minute, limitKey{slow, "a"}, limitKey{fast, "x"})
		for range 2 {
			takes("what was refused counts nowhere", 0, limitKey{fast, "x"})
		}
		takes("beyond the other limit", time.Second, limitKey{fast, "x"})
		takes("another", 0, limitKey{slow, "b"})
		time.Sleep(time.Minute - time.Nanosecond)
		takes("just before it is forgiven", time.Nanosecond, limitKey{slow, "a"})
		time.Sleep(time.Nanosecond)
		takes("when one is forgiven", 0, limitKey{slow, "a"})
		th.refund(limitKey{slow, "a"})
		takes("when one was taken back", 0, limitKey{slow, "a"})
		th.reset(slow, "a")
		for range 3 {
			takes("when all was forgotten", 0, limitKey{slow, "a"})
		}
	})
}

// TestThrottleIsBounded checks that memory is bounded, and that a flood of keys
// does not evict the key with the most tries.
func TestThrottleIsBounded(t *testing.T) {
	th := newTryLimiter(3)
	l := limit{"l", 2, time.Hour}
	th.allow(limitKey{l, "worst"})
	th.allow(limitKey{l, "worst"})
	for i := range 100 {
		th.allow(limitKey{l, fmt.Sprint(i)})
		if got := len(th.nextAllowed["l"]); got > 3 {
			t.Fatalf("%d are remembered, want 3", got)
		}
	}
	if wait := th.allow(limitKey{l, "worst"}); wait == 0 {
		t.Error("the worst was forgotten")
	}
}

// TestHashingIsBounded holds that two hash at a time, one of them a stranger,
// that few wait, and that who gives up waits no more.
func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPasswordHasher()
		var running, most, strangers atomic.Int32
		release := make(chan struct{})
		count := func() {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			<-release
			running.Add(-1)
		}
		countStranger := func() {
			if strangers.Add(1) > 1 {
				t.Error("two strangers at a time")
			}
			count()
			strangers.Add(-1)
		}
		results := make(chan error, 100)
		for range 20 {
			go func() { results <- h.do(t.Context(), false, countStranger) }()
		}
		synctest.Wait()
		busy := 0
		for range len(results) {
			if err := <-results; errors.As(err, new(errBusy)) {
				busy++
			} else {
				t.Errorf("got %v, want that there are too many", err)
			}
		}
		if busy != 4 || running.Load() != 1 {
			t.Errorf("of 20 strangers %d were refused and %d are hashing, want 4 and 1", busy, running.Load())
		}
		// However many strangers wait, there is a place for who is known.
		go func() { results <- h.do(t.Context(), true, count) }()
		synctest.Wait()
		if running.Load() != 2 {
			t.Errorf("%d are hashing, want 2", running.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() { gone <- h.do(ctx, true, func() { t.Error("hashed for one who is gone") }) }()
		synctest.Wait()
		cancel()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the visitor left", err)
		}
		close(release)
		synctest.Wait()
		if most.Load() != maxHashes || len(results) != 17 {
			t.Errorf("at most %d at a time, and %d were done; want %d and 17", most.Load(), len(results), maxHashes)
		}
	})
}

// wrongTries sends n wrong passwords, each by enter, and returns how many of
// them were checked; the others are to be refused for now.
func wrongTries(t *testing.T, n int, enter func(i int) *httptest.ResponseRecorder) (checked int) {
	t.Helper()
	for i := range n {
		switch got := enter(i); got.Code {
		case 401:
			checked++
		case 429:
		default:
			t.Fatalf("try %d: got %d", i, got.Code)
		}
	}
	return checked
}

// TestNobodyIsLockedOut plays attackers who know an admin's address: they get
// some tries in a while and no more, and whatever they do the admin signs in.
func TestNobodyIsLockedOut(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		withPassword(t, w, testAdmin)
		enter := func(cookie, address, password string) *httptest.ResponseRecorder {
			return do("POST", "/sign-in", cookie, address, "email", testAdmin, "password", password)
		}
		// wants sends the right password, which is a guess for all the service knows.
		wants := func(about string, want int, cookie, address string) *httptest.ResponseRecorder {
			t.Helper()
			got := enter(cookie, address, testPassword)
			if got.Code != want {
				t.Errorf("%s: got %d, want %d", about, got.Code, want)
			}
			return got
		}
		device := cookiesOf(wants("signing in", 303, "", "[2001:db8:1::1]:1000"), "device")

		// One address: 10 tries, whichever of its /64.
		tried := wrongTries(t, 30, func(i int) *httptest.ResponseRecorder {
			got := enter("", fmt.Sprintf("[2001:db8:bad::%x]:1000", i+1), fmt.Sprintf("wrong password %d", i))
			if after := got.Header().Get("Retry-After"); got.Code == 429 && (after != "60" || !strings.Contains(got.Body.String(),
				"Try again in 1 min")) {
				t.Errorf("refused with Retry-After %q:\n%s", after, got.Body)
			}
			return got
		})
		if tried != 10 {
			t.Errorf("one network had %d tries, want 10", tried)
		}
		wants("a guess of an address that had its tries", 429, "", "[2001:db8:bad::1]:1000")
		wants("another browser elsewhere, of no name", 303, "", "192.0.2.7:1000")
		wants("the admin's browser from the same address, as behind one proxy", 303, device, "[2001:db8:bad::1]:1000")

		// Many addresses: 60 tries between them.
		tried += wrongTries(t, 100, func(i int) *httptest.ResponseRecorder {
			return enter("", fmt.Sprintf("198.51.100.%d:1000", i+1), "wrong password")
		})
		if tried != 60 {
			t.Errorf("all attackers had %d tries, want 60", tried)
		}
		wants("a guess of a new address", 429, "", "203.0.113.1:1000")
		for range 30 {
			wants("the admin's browser at the same time", 303, device, "203.0.113.1:1000")
		}
		// Another admin is not concerned, and a mark of another's device is none.
		withPassword(t, w, "bo@example.com")
		bo := do("POST", "/sign-in", "", "203.0.113.1:1000", "email", "bo@example.com", "password", testPassword)
		if bo.Code != 303 {
			t.Errorf("another admin: got %d, want 303", bo.Code)
		}
		wants("with the mark of another admin's device", 429, cookiesOf(bo, "device"), "203.0.113.1:1000")
		wants("with a forged mark", 429, "device=AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAA", "203.0.113.1:1000")
		// A device that is stolen has its own few tries.
		tried = wrongTries(t, 30, func(int) *httptest.ResponseRecorder { return enter(device, "203.0.113.2:1000", "wrong password") })
		if tried != 10 {
			t.Errorf("a device had %d tries, want 10", tried)
		}
		// The terminal forgives, and so does time.
		w.AdminsChanged(testAdmin)
		wants("after the terminal has set a password", 303, "", "203.0.113.1:1000")
		time.Sleep(10 * time.Minute)
		wants("ten minutes later", 303, "", "[2001:db8:bad::1]:1000")
	})
}

// TestPasswordChangeIsThrottled holds that a stolen session is no way to guess
// the password, and does not keep the admin from changing it.
func TestPasswordChangeIsThrottled(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		admin := withPassword(t, w, testAdmin)
		stolen := cookiesOf(do("POST", w.NewSignInLink(admin.ID), "", "192.0.2.1:1"), "session")
		own := cookiesOf(do("POST", w.NewSignInLink(admin.ID), "", "192.0.2.1:1"), "session")
		change := func(cookie, current string) int {
			return do("POST", "/account/password", cookie, "192.0.2.1:1", "current", current, "password", "another password", "again",
				"another password").Code
		}
		for range 10 {
			if got := change(stolen, "wrong"); got != 422 {
				t.Fatalf("a wrong password: got %d, want 422", got)
			}
		}
		if got := change(stolen, testPassword); got != 429 {
			t.Errorf("the 11th try: got %d, want 429", got)
		}
		if got := change(own, testPassword); got != 303 {
			t.Errorf("from the admin's session: got %d, want 303", got)
		}
		if got := do("GET", "/nowhere", stolen, "").Code; got != 401 {
			t.Errorf("the stolen session afterwards: got %d, want 401", got)
		}
	})
}

// TestBusy checks that a sign-in that cannot be served at once is answered with the
// time to retry, and does not count as a try.
func TestBusy(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	v := visit(t, w)
	for range maxHashQueue {
		w.pages.signIn.hasher.unknownQueue <- struct{}{}
	}
	for range 20 {
		p := v.enter(testAdmin, testPassword)
		p.want(t, 503, "Try again in a few seconds")
		if got := p.Header.Get("Retry-After"); got != "2" {
			t.Errorf("Retry-After: got %q", got)
		}
	}
	// Whether there is such an admin does not show: a password is hashed all the same.
	v.enter("unknown@example.com", testPassword).want(t, 503, "Try again in a few seconds")
	for range maxHashQueue {
		<-w.pages.signIn.hasher.unknownQueue
	}
	v.enter(testAdmin, testPassword).want(t, 303, "")
}
