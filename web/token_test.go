package web

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"service/store/storetest"
	"service/webhook"
)

// A token is created on a page, shown once, works, is listed with its last use, and is rejected
// once it is revoked. The audit log records both actions.
func TestTokenPages(t *testing.T) {
	v, w := startSignedIn(t, nil)
	makeAdmin(t, w, "eve@example.com")

	v.do("GET", "/tokens").want(t, http.StatusOK, "No tokens yet.")
	v.do("GET", "/tokens/new?program=acme").want(t, http.StatusOK, `value="acme"`)
	wrong := v.post("/tokens/new", "program=a+b&user=&days=90")
	wrong.want(t, http.StatusUnprocessableEntity, "Nothing was saved.")
	wrong.has(t, `href="#program"`, `href="#user"`, `href="#scope-webhooks.read"`, `value="a b"`)
	v.post("/tokens/new", "program=acme&user=me&scope=events.read&days=1").want(t, http.StatusUnprocessableEntity,
		"must be one of the options")

	made := v.post("/tokens/new", "program=acme&user=me&name=%3Cb%3E%E2%80%AE&scope=events.read&scope=events.write&days=30")
	made.want(t, http.StatusOK, "Copy it now:")
	secret := regexp.MustCompile(`svc_[0-9A-Za-z]{46}`).FindString(made.body)
	made.wantHeader(t, "Cache-Control", "no-store")
	token, err := w.store.Tokens().Authenticate(t.Context(), secret)
	if err != nil || token.ProgramID != "acme" || !token.Allows(webhook.ScopeEventsWrite) || token.Allows(webhook.ScopeWebhooksRead) ||
		token.ExpiresAt.IsZero() {
		t.Fatalf("the token made is %+v, %v", token, err)
	}

	list := v.do("GET", "/tokens?program=acme")
	list.want(t, http.StatusOK, token.Hint, "Equivalent command", "service token list --data ")
	single := v.do("GET", "/tokens/"+token.ID)
	single.want(t, http.StatusOK, "publish events", "service token revoke "+token.ID+" --data ")
	for _, p := range []page{list, single} {
		p.hasNot(t, secret, "<b>", "\u202e")
	}
	list.has(t, " ago") // when the token was used
	v.do("GET", "/tokens?filter[state]=revoked").want(t, http.StatusOK, "No results.")
	v.do("GET", "/tokens?filter[state]=lost").want(t, http.StatusBadRequest, "valid, expired, revoked")
	v.do("GET", "/tokens/"+webhook.NewID()).want(t, http.StatusNotFound, "")

	v.do("GET", "/tokens/"+token.ID+"/revoke").want(t, http.StatusOK, "Revoke token")
	for range 2 {
		v.post("/tokens/"+token.ID+"/revoke", "").want(t, http.StatusSeeOther, "")
	}
	if _, err := w.store.Tokens().Authenticate(t.Context(), secret); err == nil {
		t.Error("the token works though it is revoked")
	}
	v.do("GET", "/tokens?filter[state]=revoked").want(t, http.StatusOK, token.Hint)
	v.do("GET", "/tokens/"+token.ID+"/revoke").want(t, http.StatusOK, "Already revoked.")
	audit := v.do("GET", "/audit?filter[subject_id]="+token.ID)
	if strings.Count(audit.body, "Create token</td>") != 1 || strings.Count(audit.body, "Revoke token</td>") != 1 {
		t.Error("the audit does not have one making and one revocation")
	}
}

// TestMetricsToken checks that the form creates a metrics token only within a program, and how a
// token of the installation is shown.
func TestMetricsToken(t *testing.T) {
	v, w := startSignedIn(t, nil)
	makeAdmin(t, w, "eve@example.com")
	v.post("/tokens/new", "program=&user=prometheus&scope=metrics.read&days=30").want(t, http.StatusUnprocessableEntity, "Program")
	v.post("/tokens/new", "program=acme&user=prometheus&scope=metrics.read&days=30").want(t, http.StatusOK, "Copy it now:")
	token, _, err := storetest.CreateToken(t.Context(), w.store,
		webhook.NewToken{UserID: "grafana", Scopes: []webhook.Scope{webhook.ScopeMetricsRead}})
	must(t, err)
	v.do("GET", "/tokens").want(t, http.StatusOK, "all programs")
	page := v.do("GET", "/tokens/"+token.ID)
	page.want(t, http.StatusOK, "metrics.read")
	page.hasNot(t, "platform token", `href="/programs/"`)
	v.do("GET", "/tokens/"+token.ID+"/revoke").want(t, http.StatusOK, "all programs")
}

// An owner can create a platform token, with a separate form that warns about it.
func TestPlatformToken(t *testing.T) {
	v, w := startSignedIn(t, nil)
	makeAdmin(t, w, "eve@example.com")

	form := v.do("GET", "/tokens/new?scopes=platform&program=acme")
	form.want(t, http.StatusOK, "A platform token is not limited to a program.", `name="scope" value="platform"`)
	form.hasNot(t, `id="program"`, `data-preset`, `type="checkbox"`)
	v.do("GET", "/tokens/new").hasNot(t, "not limited to a program", `value="platform"`, `data-preset="platform"`)
	v.post("/tokens/new", "user=&scope=platform&days=30").want(t, http.StatusUnprocessableEntity, "A platform token is not limited")

	made := v.post("/tokens/new", "user=ops&scope=platform&days=30&program=acme")
	made.want(t, http.StatusOK, "Copy it now:", "/v2/programs")
	made.hasNot(t, "/subscriptions/new") // which needs a program
	token, err := w.store.Tokens().Authenticate(t.Context(), regexp.MustCompile(`svc_[0-9A-Za-z]{46}`).FindString(made.body))
	if err != nil || !token.Platform() || token.ProgramID != "" {
		t.Fatalf("the token made is %+v, %v", token, err)
	}
	v.do("GET", "/tokens").want(t, http.StatusOK, "platform token")
	v.do("GET", "/tokens/"+token.ID).want(t, http.StatusOK, "All (platform token)")
	v.do("GET", "/tokens/"+token.ID+"/revoke").want(t, http.StatusOK, "all programs")
	v.post("/tokens/"+token.ID+"/revoke", "").want(t, http.StatusSeeOther, "")
}
