package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestOIDCFlags checks the flags for sign-in through OpenID Connect, and that no error contains the
// secret.
func TestOIDCFlags(t *testing.T) {
	secret := writeFile(t, filepath.Join(t.TempDir(), "secret"), "canary\n")
	with := func(more ...string) []string {
		return append([]string{"--oidc-issuer", "https://login.example.com", "--oidc-client-id", "webhooks"}, more...)
	}
	role := []string{"--oidc-role", "groups=admins:owner"}
	validateAll(t, "canary", []validation{
		{with(role...), ""},
		{with(append(role, "--oidc-role", "realm_access.roles=a=b:c:viewer", "--oidc-client-secret-file", secret, "--oidc-name", "Corp",
			"--oidc-scope", "groups", "--public-url", "https://hooks.example.com/")...), ""},
		{with("--oidc-role", `groups=cn=admins\,ou=corp:owner`), ""},
		{with(append(role, "--tls", "off", "--listen", "127.0.0.1:8080")...), ""},
		{with(append(role, "--tls", "off", "--trusted-proxy", "10.0.0.7")...), "--public-url: is required with"},
		{with(), "--oidc-role: is required with --oidc-issuer"},
		{with("--oidc-role", "groups:owner"), "--oidc-role: must be CLAIM=VALUE:ROLE"},
		{with("--oidc-role", "=admins:owner"), "--oidc-role: must be CLAIM=VALUE:ROLE"},
		{with("--oidc-role", "groups=:owner"), "--oidc-role: must be CLAIM=VALUE:ROLE"},
		{with("--oidc-role", "groups=admins:root"), "--oidc-role: must end with a role, viewer, operator or owner"},
		{with(append(role, "--oidc-client-secret-file", secret+"x")...), "--oidc-client-secret-file: open"},
		{with(append(role, "--oidc-scope", "a b")...), "--oidc-scope: must be scopes"},
		{with(append(role, "--oidc-name", strings.Repeat("n", 61))...), "--oidc-name: must be one line"},
		{append(role, "--oidc-issuer", "https://login.example.com"), "--oidc-client-id: is required"},
		{append(role, "--oidc-issuer", "http://login.example.com", "--oidc-client-id", "x"), "--oidc-issuer: must be the https URL"},
		{append(role, "--oidc-issuer", "https://u:p@login.example.com", "--oidc-client-id", "x"), "--oidc-issuer: must be the https URL"},
		{append(role, "--oidc-issuer", "https://login.example.com?x", "--oidc-client-id", "x"), "--oidc-issuer: must be the https URL"},
		{append(role, "--oidc-issuer", "http://127.0.0.1:5556/dex", "--oidc-client-id", "x"), ""},
		{[]string{"--oidc-client-id", "x"}, "--oidc-client-id: needs --oidc-issuer"},
		{role, "--oidc-role: needs --oidc-issuer"},
	})
}

// TestOIDCRoleComma checks that a value can contain a comma.
func TestOIDCRoleComma(t *testing.T) {
	out, _ := expect(t, 0, "config", "show", "--oidc-role", `groups=cn=admins\,ou=corp:owner,groups=staff:viewer`)
	if !strings.Contains(out, "groups=cn=admins,ou=corp:owner, groups=staff:viewer") {
		t.Errorf("got %s", out)
	}
}

// TestDoctorOIDC checks the doctor's findings for a suitable provider, for an unsuitable one, and
// without a provider.
func TestDoctorOIDC(t *testing.T) {
	issuer := "" // as the provider says it
	keys := `{"keys":[{"kty":"RSA"}]}`
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			fmt.Fprint(w, keys)
			return
		}
		fmt.Fprintf(w, `{"issuer":%q,"authorization_endpoint":"%s/auth","token_endpoint":"%[2]s/token","jwks_uri":"%[2]s/keys"}`,
			issuer, "http://"+r.Host)
	}))
	defer provider.Close()
	run := func(more ...string) string {
		_, out, _ := call(t, append([]string{"doctor", "--data", filepath.Join(t.TempDir(), "data"), "--oidc-issuer", provider.URL,
			"--oidc-client-id", "x", "--oidc-role", "groups=admins:owner", "--listen", "127.0.0.1:0"}, more...)...)
		return out
	}
	doctor := func() string {
		_, line, _ := strings.Cut(run(), "OpenID Connect: ")
		return line
	}
	issuer = provider.URL
	if got := doctor(); !strings.HasPrefix(got, provider.URL+" responds, and its metadata fits") {
		t.Errorf("got %q", got)
	}
	if got := run(); strings.Contains(got, "OpenID Connect roles") {
		t.Errorf("got a warning for groups:\n%s", got)
	}
	for role, want := range map[string]string{
		"email=ana@example.com:owner":             "email matches only with email_verified true",
		"claims.phone_number=+15550100:owner":     "claims.phone_number matches only with claims.phone_number_verified true",
		"https://corp.example/email=a@b.c:viewer": "https://corp.example/email matches only with https://corp.example/email_verified true",
		"preferred_username=ana:owner":            "preferred_username can be changed by the users themselves",
	} {
		if got := run("--oidc-role", role); !strings.Contains(got, "WARN  OpenID Connect roles: --oidc-role "+role+": "+want) {
			t.Errorf("%s: got no warning:\n%s", role, got)
		}
	}
	keys = `{"keys":[]}`
	if got := doctor(); !strings.Contains(got, "jwks_uri has no keys") {
		t.Errorf("got %q", got)
	}
	issuer = "https://evil.example"
	if got := doctor(); !strings.Contains(got, "did not match the issuer URL") {
		t.Errorf("got %q", got)
	}
	provider.Close()
	if got := doctor(); !strings.Contains(got, "is not available") {
		t.Errorf("got %q", got)
	}
}
