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
		th := newThrottle(3)
		slow := limit{"slow", 3, time.Minute}
		fast := limit{"fast", 5, time.Second}
		for range 3 {
			if wait := th.take(try{slow, "a"}, try{fast, "x"}); wait != 0 {
				t.Fatalf("within the limit: got %s", wait)
			}
		}
		if wait := th.take(try{slow, "a"}, try{fast, "x"}); wait != time.Minute {
			t.Errorf("beyond the limit: got %s, want 1m", wait)
		}
		// What was refused counted nowhere.
		for range 2 {
			if wait := th.take(try{fast, "x"}); wait != 0 {
				t.Errorf("what was refused has counted: %s", wait)
			}
		}
		if wait := th.take(try{fast, "x"}); wait != time.Second {
			t.Errorf("beyond the other limit: got %s, want 1s", wait)
		}
		if wait := th.take(try{slow, "b"}); wait != 0 {
			t.Errorf("another is held up: %s", wait)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		if wait := th.take(try{slow, "a"}); wait != time.Nanosecond {
			t.Errorf("just before it is forgiven: got %s", wait)
		}
		time.Sleep(time.Nanosecond)
		if wait := th.take(try{slow, "a"}); wait != 0 {
			t.Errorf("when one is forgiven: got %s", wait)
		}
		th.forgive(try{slow, "a"})
		if wait := th.take(try{slow, "a"}); wait != 0 {
			t.Errorf("when one was taken back: got %s", wait)
		}
		th.forget(slow, "a")
		for range 3 {
			if wait := th.take(try{slow, "a"}); wait != 0 {
				t.Errorf("when all was forgotten: got %s", wait)
			}
		}
	})
}

// TestThrottleIsBounded holds that memory is, and that nobody makes room for
// himself by being many: who has tried the most is remembered.
func TestThrottleIsBounded(t *testing.T) {
	th := newThrottle(3)
	l := limit{"l", 2, time.Hour}
	th.take(try{l, "worst"})
	th.take(try{l, "worst"})
	for i := range 100 {
		th.take(try{l, fmt.Sprint(i)})
		if got := len(th.forgiven["l"]); got > 3 {
			t.Fatalf("%d are remembered, want 3", got)
		}
	}
	if wait := th.take(try{l, "worst"}); wait == 0 {
		t.Error("the worst was forgotten")
	}
}

// TestHashingIsBounded holds that two hash at a time, one of them a stranger,
// that few wait, and that who gives up waits no more.
func TestHashingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHashing()
		var running, most, strangers atomic.Int32
		release := make(chan struct{})
		work := func(known bool) error {
			return h.do(t.Context(), known, func() {
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				if !known && strangers.Add(1) > 1 {
					t.Error("two strangers at a time")
				}
				<-release
				if !known {
					strangers.Add(-1)
				}
				running.Add(-1)
			})
		}
		results := make(chan error, 100)
		for range 20 {
			go func() { results <- work(false) }()
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
		go func() { results <- work(true) }()
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
		if most.Load() != maxHashing || len(results) != 17 {
			t.Errorf("at most %d at a time, and %d were done; want %d and 17", most.Load(), len(results), maxHashing)
		}
	})
}

// TestNobodyIsLockedOut plays attackers who know an admin's address: they get
// some tries in a while and no more, and whatever they do the admin signs in.
func TestNobodyIsLockedOut(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		withPassword(t, w, testAdmin)
		enter := func(cookie, address, password string) *httptest.ResponseRecorder {
			return do("POST", "/sign-in", cookie, address, "email", testAdmin, "password", password)
		}
		home := enter("", "[2001:db8:1::1]:1000", testPassword)
		if home.Code != 303 {
			t.Fatalf("signing in: got %d", home.Code)
		}
		device := cookiesOf(home, "device")

		// One address: 10 tries, whichever of its /64.
		tried := 0
		for i := range 30 {
			switch got := enter("", fmt.Sprintf("[2001:db8:bad::%x]:1000", i+1), fmt.Sprintf("wrong password %d", i)); got.Code {
			case 401:
				tried++
			case 429:
				if got.Header().Get("Retry-After") != "60" || !strings.Contains(got.Body.String(), "Try again in 1 min") {
					t.Errorf("refused with Retry-After %q:\n%s", got.Header().Get("Retry-After"), got.Body)
				}
			default:
				t.Fatalf("got %d", got.Code)
			}
		}
		if tried != 10 {
			t.Errorf("one network had %d tries, want 10", tried)
		}
		// The right password is not let through either: it could be a guess.
		if got := enter("", "[2001:db8:bad::1]:1000", testPassword).Code; got != 429 {
			t.Errorf("a guess of an address that had its tries: got %d, want 429", got)
		}
		// The admin signs in from elsewhere, also with a browser of no name.
		if got := enter("", "192.0.2.7:1000", testPassword).Code; got != 303 {
			t.Errorf("another browser elsewhere: got %d, want 303", got)
		}
		// And from the attacker's very address, as behind one proxy.
		if got := enter(device, "[2001:db8:bad::1]:1000", testPassword).Code; got != 303 {
			t.Errorf("the admin's browser from the same address: got %d, want 303", got)
		}

		// Many addresses: 60 tries between them.
		for i := range 100 {
			code := enter("", fmt.Sprintf("198.51.100.%d:1000", i+1), "wrong password").Code
			if code == 401 {
				tried++
			} else if code != 429 {
				t.Fatalf("got %d", code)
			}
		}
		if tried != 60 {
			t.Errorf("all attackers had %d tries, want 60", tried)
		}
		if got := enter("", "203.0.113.1:1000", testPassword).Code; got != 429 {
			t.Errorf("a guess of a new address: got %d, want 429", got)
		}
		for range 30 {
			if got := enter(device, "203.0.113.1:1000", testPassword).Code; got != 303 {
				t.Fatalf("the admin's browser meanwhile: got %d, want 303", got)
			}
		}
		// Another admin is not concerned, and a mark of another's device is none.
		withPassword(t, w, "bo@example.com")
		bo := do("POST", "/sign-in", "", "203.0.113.1:1000", "email", "bo@example.com", "password", testPassword)
		if bo.Code != 303 {
			t.Errorf("another admin: got %d, want 303", bo.Code)
		}
		if got := enter(cookiesOf(bo, "device"), "203.0.113.1:1000", testPassword).Code; got != 429 {
			t.Errorf("with the mark of another admin's device: got %d, want 429", got)
		}
		if got := enter("device=AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAA", "203.0.113.1:1000", testPassword).Code; got != 429 {
			t.Errorf("with a forged mark: got %d, want 429", got)
		}
		// A device that is stolen has its own few tries.
		tried = 0
		for range 30 {
			if enter(device, "203.0.113.2:1000", "wrong password").Code == 401 {
				tried++
			}
		}
		if tried != 10 {
			t.Errorf("a device had %d tries, want 10", tried)
		}
		// The terminal forgives, and so does time.
		w.AdminsChanged(testAdmin)
		if got := enter("", "203.0.113.1:1000", testPassword).Code; got != 303 {
			t.Errorf("after the terminal has set a password: got %d, want 303", got)
		}
		time.Sleep(10 * time.Minute)
		if got := enter("", "[2001:db8:bad::1]:1000", testPassword).Code; got != 303 {
			t.Errorf("ten minutes later: got %d, want 303", got)
		}
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
			return do("POST", "/account/password", cookie, "192.0.2.1:1", "current", current, "password", "another password", "again", "another password").Code
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

// TestBusy holds that who cannot be served at once is told when to come again,
// and that it counts as no try.
func TestBusy(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	v := visit(t, w)
	for range maxQueue {
		w.signIn.hashing.unknown <- struct{}{}
	}
	for range 20 {
		p := v.enter(testAdmin, testPassword)
		p.want(t, 503, "Try again in a few seconds")
		if got := p.Header.Get("Retry-After"); got != "2" {
			t.Errorf("Retry-After: got %q", got)
		}
	}
	// Whether there is such an admin does not show: a password is hashed all the same.
	v.enter("nobody@example.com", testPassword).want(t, 503, "Try again in a few seconds")
	for range maxQueue {
		<-w.signIn.hashing.unknown
	}
	v.enter(testAdmin, testPassword).want(t, 303, "")
}
