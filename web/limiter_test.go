package web

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"service/store"
	"service/web/hashing"
	"service/webhook"
)

// wrongTries sends n wrong passwords with enter, and returns how many were checked; the others must
// be rejected for now.
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

// TestNobodyIsLockedOut attacks with a known email address of an admin: one network gets a limited
// number of tries, and the admin can sign in.
func TestNobodyIsLockedOut(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		withPassword(t, w, testAdmin)
		enter := func(cookie, address, password string) *httptest.ResponseRecorder {
			return do("POST", "/sign-in", cookie, address, "email", testAdmin, "password", password)
		}
		// wants sends the right password, which counts as a guess.
		wants := func(about string, want int, cookie, address string) *httptest.ResponseRecorder {
			t.Helper()
			got := enter(cookie, address, testPassword)
			if got.Code != want {
				t.Errorf("%s: got %d, want %d", about, got.Code, want)
			}
			return got
		}
		device := cookiesOf(wants("signing in", 303, "", "[2001:db8:1::1]:1000"), "device")

		// One network: 10 tries, from any address of its /64.
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

		for range 3 {
			wants("the admin's browser at the same time", 303, device, "[2001:db8:bad::2]:1000")
		}
		// The device cookie of another admin does not count.
		withPassword(t, w, "bo@example.com")
		bo := do("POST", "/sign-in", "", "203.0.113.1:1000", "email", "bo@example.com", "password", testPassword)
		if bo.Code != 303 {
			t.Errorf("another admin: got %d, want 303", bo.Code)
		}
		wants("with the mark of another admin's device", 429, cookiesOf(bo, "device"), "[2001:db8:bad::1]:1000")
		wants("with a forged mark", 429, "device=AAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAA", "[2001:db8:bad::1]:1000")
		// A stolen device has its own limited tries.
		tried = wrongTries(t, 30, func(int) *httptest.ResponseRecorder { return enter(device, "203.0.113.2:1000", "wrong password") })
		if tried != 10 {
			t.Errorf("a device had %d tries, want 10", tried)
		}
		time.Sleep(10 * time.Minute)
		wants("ten minutes later", 303, "", "[2001:db8:bad::1]:1000")
	})
}

// cheapPassword gives an admin testPassword with a hash that takes no time, and creates the admin
// if necessary. Signing in replaces the hash.
func cheapPassword(t *testing.T, w *Web, email string) {
	t.Helper()
	const hash = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHRzYWx0c2FsdA$uxWTSOnvlCJwDdrvGjf7x3xvw771mTCJHUN5gdfCrTw"
	err := w.store.Write(t.Context(), func(sw store.Write) error {
		admin, err := sw.Admins().Get(email)
		if isCallerError(err) {
			_, err = sw.Admins().Create(email, webhook.RoleOwner, hash)
		} else if err == nil {
			_, err = sw.Admins().SetPassword(admin.ID, hash, "")
		}
		return err
	})
	must(t, err)
}

// TestStrangersCannotKeepAnOwnerOut sends wrong passwords for one owner from 1,000 addresses,
// either as fast as allowed, or paced so that addresses without a wrong password fill the queue as
// long as possible. The owner's browser signs in immediately, and a new browser at a new address
// within a minute.
func TestStrangersCannotKeepAnOwnerOut(t *testing.T) {
	t.Run("as fast as allowed", func(t *testing.T) { strangersAttack(t, 0) })
	t.Run("each first try", func(t *testing.T) { strangersAttack(t, time.Minute) })
}

// strangersAttack pauses each stranger after a wrong password.
func strangersAttack(t *testing.T, rest time.Duration) {
	t.Helper()
	const strangers = 1000
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		cheapPassword(t, w, testAdmin)
		enter := func(cookie, address, password string) *httptest.ResponseRecorder {
			return do("POST", "/sign-in", cookie, address, "email", testAdmin, "password", password)
		}
		device := cookiesOf(enter("", "192.0.2.1:1000", testPassword), "device")
		cheapPassword(t, w, testAdmin)
		const hashing = 40 * time.Millisecond // longer than on a small server
		w.pages.signIn.hasher.Hashed = func() { time.Sleep(hashing) }

		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		var guesses atomic.Int32
		retry := func(rw *httptest.ResponseRecorder) time.Duration {
			after, err := time.ParseDuration(rw.Header().Get("Retry-After") + "s")
			if err != nil {
				t.Errorf("%d with Retry-After: %v", rw.Code, err)
			}
			return after
		}
		for i := range strangers {
			address := fmt.Sprintf("198.51.%d.%d:1000", 100+i/250, i%250)
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				guess(ctx, func() (wait time.Duration) {
					rw := enter("", address, "wrong password")
					if rw.Code != 401 {
						return retry(rw)
					}
					guesses.Add(1)
					return rest
				})
			})
		}
		// signsIn enters the right password and retries as the page says.
		signsIn := func(about, cookie, address string, within time.Duration) {
			t.Helper()
			began := time.Now()
			rw := enter(cookie, address, testPassword)
			for rw.Code == 503 || rw.Code == 429 {
				if time.Since(began) > 10*within {
					break
				}
				time.Sleep(retry(rw))
				rw = enter(cookie, address, testPassword)
			}
			if took := time.Since(began); rw.Code != 303 || took > within {
				t.Errorf("%s: got %d after %s, want 303 within %s", about, rw.Code, took, within)
			} else {
				t.Logf("%s: signed in after %s and %d wrong passwords", about, took, guesses.Load())
			}
			cheapPassword(t, w, testAdmin)
		}
		time.Sleep(2 * time.Second)
		signsIn("the owner's browser", device, "203.0.113.1:1000", time.Second)
		signsIn("a new browser at a new address", "", "203.0.113.2:1000", time.Minute)
		signsIn("another one later", "", "203.0.113.3:1000", time.Minute)
		stop()
		all.Wait()
	})
}

// guess calls try until ctx ends, and waits for the returned time after each call.
func guess(ctx context.Context, try func() (wait time.Duration)) {
	for ctx.Err() == nil {
		select {
		case <-time.After(try()):
		case <-ctx.Done():
		}
	}
}

// TestManyAddressesGetFewGuesses uses up the tries of many addresses, and the tries that they
// share. That limits neither an address with tries of its own nor another admin.
func TestManyAddressesGetFewGuesses(t *testing.T) {
	timed(t, func(t *testing.T, w *Web, do func(method, path, cookie, address string, fields ...string) *httptest.ResponseRecorder) {
		cheapPassword(t, w, testAdmin)
		cheapPassword(t, w, "bo@example.com")
		enter := func(email, address, password string) *httptest.ResponseRecorder {
			return do("POST", "/sign-in", "", address, "email", email, "password", password)
		}
		const strangers = 30
		tried := 0
		for minute := range 60 {
			tried += wrongTries(t, 10*strangers, func(i int) *httptest.ResponseRecorder {
				return enter(testAdmin, fmt.Sprintf("198.51.100.%d:1000", i%strangers+1), "wrong password")
			})
			time.Sleep(time.Minute)
			if minute == 0 && tried != 10*strangers {
				t.Errorf("in the first minute %d tries, want %d", tried, 10*strangers)
			}
		}
		// 20 of each address, then 60, and 6 per minute from the 11th minute on.
		if tried < 20*strangers+60+6*45 || tried > 20*strangers+60+6*50 {
			t.Errorf("%d addresses had %d tries in an hour", strangers, tried)
		}
		// The limits of this minute are used up; the clock stands still below.
		wrongTries(t, 10*strangers, func(i int) *httptest.ResponseRecorder {
			return enter(testAdmin, fmt.Sprintf("198.51.100.%d:1000", i%strangers+1), "wrong password")
		})
		wants := func(about string, want int, email, address, password string) {
			t.Helper()
			if got := enter(email, address, password); got.Code != want {
				t.Errorf("%s: got %d, want %d", about, got.Code, want)
			}
		}
		wants("a guess of an address that had its tries", 429, testAdmin, "198.51.100.1:1000", testPassword)
		for range 9 {
			wants("a mistake at a new address", 401, testAdmin, "203.0.113.1:1000", "wrong password")
		}
		wants("the owner at that address", 303, testAdmin, "203.0.113.1:1000", testPassword)
		cheapPassword(t, w, testAdmin)
		w.AdminsChanged(testAdmin)
		time.Sleep(time.Minute)
		wants("after the terminal has set a password", 401, testAdmin, "198.51.100.2:1000", "wrong password")

		// All networks of a site share 100 tries.
		tried = wrongTries(t, 300, func(i int) *httptest.ResponseRecorder {
			return enter("bo@example.com", fmt.Sprintf("[2001:db8:bad:%x::1]:1000", i+1), "wrong password")
		})
		if tried != 160 {
			t.Errorf("the networks of a site had %d tries, want 160", tried)
		}
		wants("a guess of a new network of that site", 429, "bo@example.com", "[2001:db8:bad:ffff::1]:1000", testPassword)
		wants("of another site", 303, "bo@example.com", "[2001:db8:900d:1::1]:1000", testPassword)
	})
}

// TestPasswordChangeIsThrottled checks that a stolen session cannot be used to guess the
// password, and does not keep the admin from changing it.
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

// TestBusy checks that a sign-in that cannot be served gets a retry time and does not count as a
// try.
func TestBusy(t *testing.T) {
	w := testWeb(t, nil)
	withPassword(t, w, testAdmin)
	v := visit(t, w)
	hasher := w.pages.signIn.hasher
	release := make(chan struct{})
	var waiting sync.WaitGroup
	for range hashing.MaxQueue {
		waiting.Go(func() { _ = hasher.Do(t.Context(), 0, func() { <-release }) })
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	for !errors.Is(hasher.Do(gone, sharedRank, func() {}), hashing.ErrBusy) {
		runtime.Gosched()
	}
	for range 20 {
		p := v.enter(testAdmin, testPassword)
		p.want(t, 503, "Try again in a few seconds")
		p.wantHeader(t, "Retry-After", "2")
	}
	// The response must not reveal whether the admin exists: a password is hashed in both cases.
	v.enter("unknown@example.com", testPassword).want(t, 503, "Try again in a few seconds")
	close(release)
	waiting.Wait()
	v.enter(testAdmin, testPassword).want(t, 303, "")
}
