package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// testWeb returns the admin UI with its own store.
func testWeb(t *testing.T, change func(*Config)) *Web {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{Dir: t.TempDir()})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	catalog, err := testCatalog()
	must(t, err)
	cfg := Config{
		Store: s, Rules: webhook.SubscriptionRules{Catalog: catalog}, Version: "v1.2.3", Started: time.Now(), BaseURL: "https://service.example",
		Ready: func(context.Context) error { return nil },
	}
	if change != nil {
		change(&cfg)
	}
	return New(cfg)
}

// testCatalog is the catalog of the tests, which is slow to create.
var testCatalog = sync.OnceValues(func() (*webhook.Catalog, error) { return webhook.LoadCatalog() })

// visitor is a browser without JavaScript.
type visitor struct {
	t      *testing.T
	base   string
	client *http.Client
}

// visit returns a browser and its server.
func visit(t *testing.T, w *Web) visitor {
	t.Helper()
	start := httptest.NewServer
	if w.cfg.Secure {
		start = httptest.NewTLSServer
	}
	server := start(w)
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	must(t, err)
	client := server.Client()
	client.Jar = jar
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return visitor{t, server.URL, client}
}

// testAdmin is the admin of most tests, without a password.
const testAdmin = "ana@example.com"

// makeAdmin creates an admin without a password, unless the admin exists.
func makeAdmin(t *testing.T, w *Web, email string) webhook.Admin {
	t.Helper()
	admin, _, err := w.store.Admins().ByEmail(t.Context(), email)
	if isCallerError(err) {
		err = w.store.Write(t.Context(), func(sw store.Write) (err error) {
			admin, err = sw.Admins().Create(email, webhook.RoleOwner, w.pages.signIn.noPassword)
			return err
		})
	}
	must(t, err)
	return admin
}

// signIn gives the browser a session of testAdmin.
func (v visitor) signIn(w *Web) {
	v.t.Helper()
	admin := makeAdmin(v.t, w, testAdmin)
	v.do("POST", w.NewSignInLink(admin.ID)).want(v.t, 303, "")
}

// visitSignedIn returns a browser with a session of testAdmin.
func visitSignedIn(t *testing.T, w *Web) visitor {
	t.Helper()
	v := visit(t, w)
	v.signIn(w)
	return v
}

// startSignedIn returns the admin UI with its own store, and a browser with a session of testAdmin.
func startSignedIn(t *testing.T, change func(*Config)) (visitor, *Web) {
	t.Helper()
	w := testWeb(t, change)
	return visitSignedIn(t, w), w
}

// newProgramToken creates a token of a program, and with it the program.
func newProgramToken(t *testing.T, s *store.Store, programID string) {
	t.Helper()
	_, _, err := storetest.CreateToken(t.Context(), s, webhook.NewToken{ProgramID: programID, UserID: "1", Scopes: webhook.Scopes()})
	must(t, err)
}

// putProgram creates or changes a program.
func putProgram(t *testing.T, w *Web, id string, fields webhook.ProgramFields) {
	t.Helper()
	must(t, w.store.Write(t.Context(), func(sw store.Write) error {
		_, _, err := sw.Programs().Put(id, &fields, webhook.AuditEntry{})
		return err
	}))
}

func createSubscription(t *testing.T, s *store.Store, programID string, fields webhook.SubscriptionFields) webhook.Subscription {
	t.Helper()
	sub, _, err := storetest.CreateSubscription(t.Context(), s, programID, "1", &fields)
	must(t, err)
	return sub
}

// updateSubscription changes a subscription of acme.
func updateSubscription(t *testing.T, s *store.Store, id string, fields webhook.SubscriptionFields) {
	t.Helper()
	_, err := storetest.UpdateSubscription(t.Context(), s, "acme", id, &fields)
	must(t, err)
}

// publishIn publishes an event without fields in a program, and returns its ID.
func publishIn(t *testing.T, s *store.Store, programID, name string) (id string) {
	t.Helper()
	id = webhook.NewID()
	e := webhook.Event{ID: id, Name: name, ReceivedAt: time.Now(), JSON: fmt.Appendf(nil, `{"id":%q,"name":%q}`, id, name)}
	_, err := s.Events().Publish(t.Context(), programID, []webhook.Event{e})
	must(t, err)
	return id
}

// spend creates a delivery of the waiting events, with its first attempt in flight. The credit says
// how many events.
func spend(t *testing.T, s *store.Store, subscriptionID string, credit store.Credit) *store.Claim {
	t.Helper()
	queue, err := s.Queues().Get(t.Context(), subscriptionID)
	must(t, err)
	credit.Queue, credit.Newest, credit.Size = queue, queue.Wanted, webhook.MaxDeliveryBytes
	c, err := s.Queues().Spend(t.Context(), &credit).Wait()
	must(t, err)
	return c
}

// claimPing begins the first attempt of a ping that is queued.
func claimPing(t *testing.T, w *Web, subscriptionID string) *store.Claim {
	t.Helper()
	c, err := storetest.ClaimPing(t.Context(), w.store, subscriptionID)
	if err != nil || c == nil {
		t.Fatalf("no ping is queued: %v", err)
	}
	return c
}

// recordStatus records an attempt whose response had a status.
func recordStatus(t *testing.T, s *store.Store, c *store.Claim, status int, policy webhook.HealthPolicy) {
	t.Helper()
	a := webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Duration: 12 * time.Millisecond, ResponseStatus: status,
		Result: webhook.Classify(status, webhook.ErrorNone)}
	_, err := s.Queues().Record(c, &a, webhook.DefaultRetryPolicy().After(&a, time.Now(), 0.5), policy)
	must(t, err)
}

// page is a response with its whole body.
type page struct {
	*http.Response
	body string
}

func (v visitor) do(method, path string, header ...string) page {
	v.t.Helper()
	return v.ask(method, path, "", header...)
}

// post submits an encoded form.
func (v visitor) post(path, form string, header ...string) page {
	v.t.Helper()
	return v.ask("POST", path, form, append([]string{"Content-Type", "application/x-www-form-urlencoded"}, header...)...)
}

func (v visitor) ask(method, path, sent string, header ...string) page {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.base+path, strings.NewReader(sent))
	must(v.t, err)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := v.client.Do(r)
	must(v.t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(v.t, err)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") && resp.Header.Get("Content-Encoding") == "" {
		if found := strayIn(string(body)); found != nil {
			v.t.Errorf("%s %s has stray spaces: %q", method, path, found)
		}
	}
	return page{resp, string(body)}
}

// want checks the status of a response and that it contains every text.
func (p page) want(t *testing.T, status int, texts ...string) {
	t.Helper()
	if p.StatusCode != status {
		t.Fatalf("%s %s: got %d, want %d:\n%s", p.Request.Method, p.Request.URL.Path, p.StatusCode, status, p.body)
	}
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			t.Fatalf("%s %s: want %q:\n%s", p.Request.Method, p.Request.URL.Path, text, p.body)
		}
	}
}

func TestEveryAnswerHasItsHeaders(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	link := w.NewSignInLink(makeAdmin(t, w, testAdmin).ID)
	want := map[string]string{
		"Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; connect-src 'self'; " +
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
		"X-Content-Type-Options":       "nosniff",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
	}
	seen := make(map[string]bool)
	for _, tt := range []struct {
		method, path string
		status       int
		stored       bool // browsers may store it
		header       []string
	}{
		{"GET", "/", 401, false, nil},
		{"GET", "/nowhere", 401, false, nil},
		{"GET", "//", 307, false, nil},
		{"GET", "/sign-in/unknown", 404, false, nil},
		{"GET", "/setup/unknown", 404, false, nil},
		{"GET", "/sign-in", 200, false, nil},
		{"POST", "/sign-in", 401, false, nil},
		{"GET", "/account", 401, false, nil},
		{"POST", "/account/password", 401, false, nil},
		{"GET", link, 200, false, nil},
		{"HEAD", link, 200, false, nil},
		{"DELETE", link, 405, false, nil},
		{"POST", link, 403, false, []string{"Sec-Fetch-Site", "cross-site"}},
		{"POST", link, 303, false, nil},
		{"GET", "/", 200, false, nil},
		{"HEAD", "/", 200, false, nil},
		{"POST", "/", 405, false, nil},
		{"GET", "/sign-out", 405, false, nil},
		{"GET", "/nowhere", 404, false, nil},
		{"GET", w.assets.Path("style.css"), 200, true, nil},
		{"GET", w.assets.Path("favicon.svg"), 200, true, nil},
		{"GET", "/assets/style.css", 404, false, nil},
		{"POST", w.assets.Path("style.css"), 405, false, nil},
		{"POST", "/sign-out", 303, false, nil},
	} {
		p := v.do(tt.method, tt.path, tt.header...)
		if p.StatusCode != tt.status {
			t.Errorf("%s %s: got %d, want %d", tt.method, tt.path, p.StatusCode, tt.status)
		}
		for key, value := range want {
			p.wantHeader(t, key, value)
		}
		cache := "no-store"
		if tt.stored {
			cache = "public, max-age=31536000, immutable"
		}
		p.wantHeader(t, "Cache-Control", cache)
		id := p.Header.Get("X-Request-Id")
		if len(id) != 36 || seen[id] {
			t.Errorf("%s %s: X-Request-Id: got %q", tt.method, tt.path, id)
		}
		seen[id] = true
		if tt.status >= 400 && strings.HasPrefix(p.Header.Get("Content-Type"), "text/html") && !strings.Contains(p.body, id) {
			t.Errorf("%s %s: the page does not show its request id", tt.method, tt.path)
		}
		if allow := p.Header.Get("Allow"); (allow != "") != (tt.status == 405) {
			t.Errorf("%s %s: %d with Allow %q", tt.method, tt.path, tt.status, allow)
		}
	}
}

// loads returns the files that a page loads.
var loads = regexp.MustCompile(`<(?:link|script) [^>]*(?:href|src)="([^"]*)"`)

// TestPagesLoadOnlyWhatThePolicyAllows checks that no page has inline styles or scripts, or loads
// anything from another host.
func TestPagesLoadOnlyWhatThePolicyAllows(t *testing.T) {
	w := testWeb(t, nil)
	v := visit(t, w)
	setup := w.NewSetupLink()
	pages := []page{v.do("GET", "/"), v.do("GET", setup)}
	link := w.NewSignInLink(makeAdmin(t, w, testAdmin).ID)
	pages = append(pages, v.do("GET", "/"), v.do("GET", setup), v.do("GET", "/sign-in"), v.do("GET", link), v.do("GET", "/sign-in/x"))
	v.do("POST", link)
	pages = append(pages, v.do("GET", "/"), v.do("GET", "/nowhere"), v.do("GET", "/account"), v.do("GET", "/audit"),
		v.do("GET", "/preferences"))
	refused := regexp.MustCompile(`<style|<script>|<script [^>]*>[^<]|<iframe|<img|\sstyle=|\son[a-z]+=|javascript:`)
	for _, p := range pages {
		if found := refused.FindString(p.body); found != "" {
			t.Errorf("%s: has %s", p.Request.URL.Path, found)
		}
		files := loads.FindAllStringSubmatch(p.body, -1)
		if len(files) != 3 {
			t.Errorf("%s: loads %d files, want 3", p.Request.URL.Path, len(files))
		}
		for _, f := range files {
			v.do("GET", f[1]).want(t, 200, "")
		}
		if n := strings.Count(p.body, "<h1"); n != 1 {
			t.Errorf("%s: has %d h1", p.Request.URL.Path, n)
		}
	}
}

func TestPagesAreCompressed(t *testing.T) {
	v := visit(t, testWeb(t, nil))
	plain := v.do("GET", "/", "Accept-Encoding", "identity")
	zipped := v.do("GET", "/", "Accept-Encoding", "gzip")
	plain.wantHeader(t, "Content-Encoding", "")
	zipped.wantHeader(t, "Content-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(zipped.body))
	must(t, err)
	got, err := io.ReadAll(z)
	id := func(p page) string { return p.Header.Get("X-Request-Id") }
	if want := strings.ReplaceAll(plain.body, id(plain), id(zipped)); err != nil || string(got) != want {
		t.Errorf("the compressed page is another one (%v):\n%s", err, got)
	}
}

// TestFaultsAreLoggedOnce checks that the page of an internal error shows only the request ID, and
// that the log contains the error once, without the code of a link.
func TestFaultsAreLoggedOnce(t *testing.T) {
	for name, do := range map[string]handler{
		"a panic":  func(*request) (response, error) { panic("the cause") },
		"an error": func(*request) (response, error) { return response{}, errors.New("the cause") },
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			w := testWeb(t, func(cfg *Config) {
				cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
			})
			w.mux.Handle("GET /broken/{code}", w.serve(do))
			p := visit(t, w).do("GET", "/broken/secret-code")
			id := p.Header.Get("X-Request-Id")
			p.want(t, 500, "Request ID <code>"+id+"</code>")
			p.hasNot(t, "the cause")
			p.has(t, "Try again")
			got := log.String()
			if strings.Count(got, "level=") != 1 || !strings.Contains(got, "the cause") || !strings.Contains(got, "request_id="+id) {
				t.Errorf("the log contains\n%s", got)
			}
			if strings.Contains(got, "secret-code") {
				t.Errorf("the log tells the path:\n%s", got)
			}
		})
	}
}

func TestVisitorWhoLeavesIsNoFault(t *testing.T) {
	var log bytes.Buffer
	w := testWeb(t, func(cfg *Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	ctx, leave := context.WithCancel(t.Context())
	w.mux.Handle("GET /slow", w.serve(func(r *request) (response, error) {
		leave()
		return response{}, r.Context().Err()
	}))
	w.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/slow", nil))
	if log.Len() > 0 {
		t.Errorf("the log contains\n%s", log.String())
	}
}
