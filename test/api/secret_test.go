package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ask sends a request unchanged: it follows no redirect and keeps no cookie.
func (p *platform) ask(t *testing.T, method, path, form string, header map[string]string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, p.URL()+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := p.Client.Transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

// cookie returns the value of a cookie that a response sets, whatever the prefix of its name.
func cookie(t *testing.T, resp *http.Response, name string) *http.Cookie {
	t.Helper()
	for _, c := range resp.Cookies() {
		if strings.TrimPrefix(c.Name, "__Host-") == name {
			return c
		}
	}
	t.Fatalf("%s: got %d with the cookies %v, want %s", resp.Request.URL.Path, resp.StatusCode, resp.Cookies(), name)
	return nil
}

// Each secret works in one place only: as a token, as a link, as a portal session, or as an admin
// session.
func TestSecretsWorkInOnePlace(t *testing.T) {
	p := newPlatform(t)
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("correct horse battery"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := p.Command("admin", "create", "--data", p.Data, "--email", "ana@example.com", "--password-file", password); err != nil {
		t.Fatalf("admin create: %v\n%s", err, out)
	}
	p.must(t, "PUT", "/v2/programs/acme", `{"name": "Acme"}`, http.StatusCreated)
	newLink := func() string {
		var made struct {
			Data struct{ URL string }
		}
		if err := json.Unmarshal(p.must(t, "POST", "/v2/programs/acme/portal_links", `{"role": "write"}`, 201), &made); err != nil {
			t.Fatal(err)
		}
		u, err := url.Parse(made.Data.URL)
		if err != nil || !strings.HasPrefix(u.Path, "/portal/link/") {
			t.Fatalf("got the link %q, %v", made.Data.URL, err)
		}
		return u.Path
	}
	unused := strings.TrimPrefix(newLink(), "/portal/link/")
	portal := cookie(t, p.ask(t, "POST", newLink(), "", nil), "portal")
	form := url.Values{"email": {"ana@example.com"}, "password": {"correct horse battery"}}
	admin := cookie(t, p.ask(t, "POST", "/sign-in", form.Encode(), nil), "session")

	status := func(path string, header map[string]string) int { return p.ask(t, "GET", path, "", header).StatusCode }
	as := func(c *http.Cookie, secret string) map[string]string {
		return map[string]string{"Cookie": c.Name + "=" + secret}
	}
	secrets := map[string]string{"token": p.token, "link": unused, "portal": portal.Value, "session": admin.Value}
	for name, secret := range secrets {
		bearer := map[string]string{"Authorization": "Bearer " + secret, "X-Program-Id": "acme"}
		for _, one := range []struct {
			place, path string
			header      map[string]string
			works       bool
		}{
			{"API", "/v2/webhooks/subscriptions", bearer, name == "token"},
			{"API of programs", "/v2/programs", map[string]string{"Authorization": "Bearer " + secret}, name == "token"},
			{"API, as cookies", "/v2/webhooks/subscriptions", map[string]string{"X-Program-Id": "acme",
				"Cookie": portal.Name + "=" + secret + "; " + admin.Name + "=" + secret}, false},
			{"portal", "/portal/subscriptions", as(portal, secret), name == "portal"},
			{"portal, as a token", "/portal/subscriptions", bearer, false},
			{"admin UI", "/subscriptions", as(admin, secret), name == "session"},
			{"admin UI, as a token", "/subscriptions", bearer, false},
		} {
			want := 401
			if one.works {
				want = 200
			}
			if got := status(one.path, one.header); got != want {
				t.Errorf("%s, with the secret of a %s: got %d, want %d", one.place, name, got, want)
			}
		}
		want := 404
		if name == "link" {
			want = 200
		}
		if got := status("/portal/link/"+url.PathEscape(secret), nil); got != want {
			t.Errorf("a link with the secret of a %s: got %d, want %d", name, got, want)
		}
		if got := status("/shared/"+url.PathEscape(secret), nil); got != 404 {
			t.Errorf("a link to a delivery with the secret of a %s: got %d", name, got)
		}
	}
}
