package oidc

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/test/harness"
)

// person is a browser without JavaScript.
type person struct {
	t      *testing.T
	client *http.Client
	base   string // of the service
}

func newPerson(t *testing.T, base string) *person {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &person{t, &http.Client{Jar: jar, Timeout: harness.Timeout()}, base}
}

// page is the page after following all redirects.
type page struct {
	status int
	at     *url.URL
	body   string
}

func (p *person) open(address string, form url.Values) page {
	p.t.Helper()
	method, body := http.MethodGet, ""
	if form != nil {
		method, body = http.MethodPost, form.Encode()
	}
	r, err := http.NewRequestWithContext(p.t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := p.client.Do(r)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return page{resp.StatusCode, resp.Request.URL, string(b)}
}

var loginID = regexp.MustCompile(`name="id" value="([^"]+)"`)

// signIn goes through the pages of the provider.
func (p *person) signIn(provider *harness.Provider, user, next string) page {
	p.t.Helper()
	login := p.open(p.base+"/sign-in/oidc?next="+url.QueryEscape(next), nil)
	id := loginID.FindStringSubmatch(login.body)
	if id == nil || !strings.HasPrefix(login.at.String(), provider.Issuer+"/login/") {
		p.t.Fatalf("got no login page of the provider, but %s: %d\n%s", login.at, login.status, login.body)
	}
	return p.open(provider.Issuer+"/login/username", url.Values{"id": {id[1]}, "username": {user}, "password": {harness.ProviderPassword}})
}

func (p page) want(t *testing.T, status int, path, text string) {
	t.Helper()
	if p.status != status || p.at.Path != path || !strings.Contains(p.body, text) {
		t.Errorf("got %d at %s, want %d at %s with %q:\n%s", p.status, p.at.Path, status, path, text, p.body)
	}
}

const ownerPassword = "correct horse battery staple"

// TestProvider signs in through a real provider, as a confidential and as a public client.
func TestProvider(t *testing.T) {
	harness.Long(t)
	for _, client := range []string{harness.ProviderClient, harness.ProviderPublicClient} {
		t.Run(client, func(t *testing.T) {
			provider := harness.StartProvider(t)
			dir := t.TempDir()
			file := func(name, text string) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				return path
			}
			flags := []string{"--oidc-issuer", provider.Issuer, "--oidc-client-id", client, "--oidc-name", "Corp",
				"--oidc-role", "groups=staff:viewer", "--oidc-role", "groups=ops:operator"}
			if client == harness.ProviderClient {
				flags = append(flags, "--oidc-client-secret-file", file("secret", harness.ProviderSecret))
			}
			in := harness.NewInstance(t, harness.Build(t), filepath.Join(dir, "data"), flags...)
			in.Create()
			if out, err := in.Command("admin", "create", "--data", in.Data, "--email", "owner@example.com", "--password-file",
				file("password", ownerPassword)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			in.MustStart()
			signIns(t, provider, in)
		})
	}
}

// signIns signs in several people one after the other.
func signIns(t *testing.T, provider *harness.Provider, in *harness.Instance) {
	base := in.URL()
	provider.SetGroups("ana", "staff", "ops")
	ana := newPerson(t, base)
	ana.signIn(provider, "ana", "/deliveries").want(t, http.StatusOK, "/deliveries", "ana@example.com")
	ana.open(base+"/account", nil).want(t, http.StatusOK, "/account", "Signed in as ana@example.com with the role operator")

	// The provider has not verified cy's address, and no admin has it.
	provider.SetGroups("cy", "staff")
	cy := newPerson(t, base)
	cy.signIn(provider, "cy", "/").want(t, http.StatusOK, "/", "cy@example.com")
	cy.open(base+"/subscriptions/new", nil).want(t, http.StatusForbidden, "/subscriptions/new", "Your role does not allow this")

	// A user without a group gets no role, and nothing is created.
	bo := newPerson(t, base)
	bo.signIn(provider, "bo", "/").want(t, http.StatusForbidden, "/sign-in/oidc/callback", "No role for this account")
	bo.open(base+"/", nil).want(t, http.StatusUnauthorized, "/", "Sign in with Corp")

	// Losing a group ends the access at the next sign-in, and the sessions.
	provider.SetGroups("ana", "staff")
	newPerson(t, base).signIn(provider, "ana", "/account").want(t, http.StatusOK, "/account", "with the role viewer")
	ana.open(base+"/account", nil).want(t, http.StatusOK, "/account", "with the role viewer")
	provider.SetGroups("ana")
	newPerson(t, base).signIn(provider, "ana", "/").want(t, http.StatusForbidden, "/sign-in/oidc/callback", "No role for this account")
	ana.open(base+"/account", nil).want(t, http.StatusUnauthorized, "/account", "Sign in with Corp")

	// The owner can still sign in with the password.
	owner := newPerson(t, base)
	owner.open(base+"/sign-in", url.Values{"email": {"owner@example.com"}, "password": {ownerPassword}, "next": {"/admins"}}).
		want(t, http.StatusOK, "/admins", "OpenID Connect")
	list, err := in.Command("admin", "list", "--data", in.Data, "--json")
	if err != nil || !strings.Contains(list, `"oidc_subject": "id-ana"`) || strings.Contains(list, "bo@example.com") {
		t.Errorf("got %v\n%s", err, list)
	}
	if out, err := in.Command("doctor", "--data", in.Data, "--oidc-issuer", provider.Issuer, "--oidc-client-id", "x", "--oidc-role",
		"groups=x:viewer"); !strings.Contains(out, provider.Issuer+" responds, and its metadata fits") {
		t.Errorf("got %v\n%s", err, out)
	}
}
