package web

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestSignIn walks the way of an admin: no session, a link, its button, the
// page, signing out; over HTTP and over HTTPS.
func TestSignIn(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			w := testWeb(t, func(cfg *Config) { cfg.Secure = secure; cfg.Program = "./service" })
			v := visit(t, w)
			p := v.do("GET", "/")
			p.want(t, 401, "./service admin setup-link")
			if got := p.Header.Get("WWW-Authenticate"); got == "" {
				t.Error("401 without WWW-Authenticate")
			}

			link := w.NewSignInLink()
			// Looking at the link does not use it up.
			for _, method := range []string{"GET", "HEAD", "GET"} {
				v.do(method, link).want(t, 200, "")
			}
			v.do("GET", link).want(t, 200, `<form method="post" action="`+link+`">`)
			v.do("GET", "/").want(t, 401, "")

			p = v.do("POST", link, "Origin", v.base, "Sec-Fetch-Site", "same-origin")
			p.want(t, 303, "")
			if got := p.Header.Get("Location"); got != "/" {
				t.Errorf("Location: got %q, want /", got)
			}
			cookies := p.Cookies()
			if len(cookies) != 1 {
				t.Fatalf("cookies: got %v, want one", cookies)
			}
			c := cookies[0]
			wantName := map[bool]string{false: "session", true: "__Host-session"}[secure]
			if c.Name != wantName || c.Secure != secure || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/" || c.Domain != "" || c.MaxAge != 12*60*60 {
				t.Errorf("cookie: got %s", p.Header.Get("Set-Cookie"))
			}
			if strings.Contains(link, c.Value) {
				t.Error("the session has the code of the link")
			}
			v.do("GET", "/").want(t, 200, "<h1>Overview</h1>")

			p = v.do("POST", "/sign-out", "Sec-Fetch-Site", "same-origin")
			p.want(t, 303, "")
			if c := p.Cookies(); len(c) != 1 || c[0].MaxAge >= 0 || c[0].Value != "" {
				t.Errorf("cookies: got %v, want one that is removed", c)
			}
			v.do("GET", "/").want(t, 401, "")
			// The session itself has ended, not only the browser's memory of it.
			v.do("GET", "/", "Cookie", c.Name+"="+c.Value).want(t, 401, "")
		})
	}
}

// TestBadLinksAreAlike holds that a used link cannot be told from one that has
// never been.
func TestBadLinksAreAlike(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	used := w.NewSignInLink()
	v.do("POST", used).want(t, 303, "")
	var first string
	for _, method := range []string{"GET", "POST"} {
		for _, link := range []string{used, "/sign-in/" + strings.Repeat("A", 43), "/sign-in/x", "/sign-in/%3Cscript%3E"} {
			p := v.do(method, link)
			p.want(t, 404, "not good any more")
			if len(p.Cookies()) > 0 {
				t.Errorf("%s %s: sets a cookie", method, link)
			}
			body := strings.ReplaceAll(p.body, p.Header.Get("X-Request-Id"), "ID")
			if first == "" {
				first = body
			}
			if body != first {
				t.Errorf("%s %s: another page than the first:\n%s\n%s", method, link, body, first)
			}
		}
	}
}

// TestLinkSignsInOnce has many press the button at the same time.
func TestLinkSignsInOnce(t *testing.T) {
	w := testWeb(t, nil)
	link := w.NewSignInLink()
	var wg sync.WaitGroup
	var in atomic.Int32
	for range 20 {
		wg.Go(func() {
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, httptest.NewRequest("POST", link, nil))
			if rw.Code == 303 {
				in.Add(1)
			}
		})
	}
	wg.Wait()
	if got := in.Load(); got != 1 {
		t.Errorf("%d were signed in, want 1", got)
	}
}

func TestOtherSitesCannotPost(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	link := w.NewSignInLink()
	foreign := [][]string{
		{"Sec-Fetch-Site", "cross-site"},
		{"Sec-Fetch-Site", "same-site"},
		{"Origin", "https://evil.example"},
		{"Origin", "null"},
	}
	for _, header := range foreign {
		v.do("POST", link, header...).want(t, 403, "another site")
	}
	v.do("POST", link).want(t, 303, "") // none of them used it up
	for _, header := range foreign {
		v.do("POST", "/sign-out", header...).want(t, 403, "another site")
	}
	v.do("GET", "/", "Sec-Fetch-Site", "cross-site").want(t, 200, "") // a link may come from anywhere
}

func TestLinksAndSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Config{}) // the pages asked for here ask no store
		status := func(method, path, cookie string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(method, path, nil)
			r.Header.Set("Cookie", cookie)
			rw := httptest.NewRecorder()
			w.ServeHTTP(rw, r)
			return rw
		}
		late, intime := w.NewSignInLink(), w.NewSignInLink()
		time.Sleep(30*time.Minute - time.Nanosecond)
		in := status("POST", intime, "")
		if in.Code != 303 {
			t.Fatalf("within 30 minutes: got %d, want 303", in.Code)
		}
		time.Sleep(time.Nanosecond)
		for _, method := range []string{"GET", "POST"} {
			if got := status(method, late, "").Code; got != 404 {
				t.Errorf("%s after 30 minutes: got %d, want 404", method, got)
			}
		}
		session := strings.Split(in.Header().Get("Set-Cookie"), ";")[0]
		time.Sleep(12*time.Hour - 2*time.Nanosecond)
		if got := status("GET", "/nowhere", session).Code; got != 404 {
			t.Errorf("within 12 hours: got %d, want 404", got)
		}
		time.Sleep(time.Nanosecond)
		if got := status("GET", "/nowhere", session).Code; got != 401 {
			t.Errorf("after 12 hours: got %d, want 401", got)
		}
	})
}

func TestSecretsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSecrets(time.Hour, 3)
		var codes []string
		for range 4 {
			codes = append(codes, s.issue())
			time.Sleep(time.Second)
		}
		for i, want := range []bool{false, true, true, true} {
			if got := s.good(codes[i]); got != want {
				t.Errorf("code %d of 4: good is %v, want %v", i, got, want)
			}
		}
		time.Sleep(time.Hour)
		s.issue()
		if got := len(s.ends); got != 1 {
			t.Errorf("%d are kept after all but one have expired", got)
		}
	})
}

// TestSecretsAreNotKept holds that what is in memory does not give a code away.
func TestSecretsAreNotKept(t *testing.T) {
	s := newSecrets(time.Hour, 3)
	code := s.issue()
	if len(code) != 43 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		t.Errorf("a code is %q, want 32 bytes in base64url", code)
	}
	for hash := range s.ends {
		if bytes.Contains([]byte(code), hash[:]) {
			t.Error("the code itself is kept")
		}
	}
	if code == s.issue() {
		t.Error("the same code was issued twice")
	}
}
