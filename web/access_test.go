package web

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"service/store"
	"service/webhook"
)

// heldBody reports when a handler begins to read the body.
type heldBody struct {
	io.ReadCloser
	begun func()
}

func (b heldBody) Read(p []byte) (int, error) {
	b.begun()
	return b.ReadCloser.Read(p)
}

// sendHeld posts a form as a browser does, but keeps the handler waiting for the last byte until
// held has returned. By then the handler has checked the session.
func (v visitor) sendHeld(w *Web, path string, held func(), fields ...string) page {
	v.t.Helper()
	reading := make(chan struct{})
	begun := sync.OnceFunc(func() { close(reading) })
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		r.Body = heldBody{r.Body, begun}
		w.ServeHTTP(rw, r)
	}))
	defer server.Close()
	form := make(url.Values)
	for i := 0; i < len(fields); i += 2 {
		form.Set(fields[i], fields[i+1])
	}
	text := form.Encode() + "&"
	body, sent := io.Pipe()
	r, err := http.NewRequestWithContext(v.t.Context(), "POST", server.URL+path, body)
	must(v.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	at, err := url.Parse(v.base)
	must(v.t, err)
	for _, c := range v.client.Jar.Cookies(at) {
		r.AddCookie(c)
	}
	go func() {
		if _, err := io.WriteString(sent, text[:len(text)-1]); err != nil {
			return // the client reports why
		}
		<-reading
		held()
		io.WriteString(sent, text[len(text)-1:])
		sent.Close()
	}()
	resp, err := (&http.Client{CheckRedirect: v.client.CheckRedirect}).Do(r)
	must(v.t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	must(v.t, err)
	select {
	case <-reading:
	default:
		v.t.Fatalf("POST %s: responded %d without reading the form", path, resp.StatusCode)
	}
	return page{resp, string(got)}
}

// withHidden sets the last field of a form, if it is empty, to the value on the form's page.
func (v visitor) withHidden(form []string) []string {
	v.t.Helper()
	form = slices.Clone(form)
	if n := len(form) - 1; form[n] == "" {
		form[n] = v.do("GET", form[0]).hidden(v.t, form[n-1])
	}
	return form
}

// A form whose sender loses the session or the role before the last byte arrives changes nothing.
func TestHeldForms(t *testing.T) {
	forms := [][]string{
		{"/admins/invite", "email", "dee@example.com", "role", "owner"},
		{"/programs/-/new", "id", "held"},
		{"/tokens/new", "program", "acme", "user", "me", "scope", "webhooks.write", "days", "30"},
		{"/alerts/new", "name", "Held", "kind", "webhook", "url", "https://held.example/", "alert", "events_lost"},
		{"/subscriptions/new", "for_program", "acme", "url", "https://held.example.com/", "events", "content_published", "once", ""},
		{"/account/password", "current", testPassword, "password", "another long password", "again", "another long password"},
	}
	changes := map[string]struct {
		change func(sw store.Write, admin *webhook.Admin) error
		own    int // status for a form that a viewer may send
		status int
		says   string
	}{
		"demoted": {func(sw store.Write, a *webhook.Admin) error {
			_, err := sw.Admins().SetRole(a.ID, webhook.RoleViewer)
			return err
		}, 303, 403, "You are signed in as eve@example.com with the role viewer. Nothing was changed."},
		"removed": {func(sw store.Write, a *webhook.Admin) error {
			_, err := sw.Admins().Remove(a.Email)
			return err
		}, 404, 401, "Your session has ended"},
		"sessions ended": {func(sw store.Write, a *webhook.Admin) error {
			_, err := sw.Sessions().EndAll(a.ID, "")
			return err
		}, 401, 401, "Your session has ended"},
		"nothing": {func(store.Write, *webhook.Admin) error { return nil }, 303, 0, ""},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			for _, form := range forms {
				w := testWeb(t, nil)
				withPassword(t, w, "owner@example.com")
				newProgramToken(t, w.store, "acme")
				eve := withPassword(t, w, "eve@example.com")
				v := visit(t, w)
				v.enter(eve.Email, testPassword).want(t, 303, "")
				form = v.withHidden(form)
				before := len(audited(t, w))
				got := v.sendHeld(w, form[0], func() {
					must(t, w.store.Write(t.Context(), func(sw store.Write) error { return c.change(sw, &eve) }))
				}, form[1:]...)
				after := len(audited(t, w))
				own := form[0] == "/account/password"
				switch {
				case name == "nothing":
					if got.StatusCode >= 400 || after != before+1 {
						t.Errorf("%s: the form of an owner: got %d, with %d entries of the audit log\n%s", form[0], got.StatusCode, after-before, got.body)
					}
				case name == "demoted" && own:
					got.want(t, c.own, "")
				case name == "removed" && own && got.StatusCode == c.own:
				case got.StatusCode != c.status || !strings.Contains(got.body, c.says) || after != before:
					t.Errorf("%s: got %d, with %d entries of the audit log\n%s", form[0], got.StatusCode, after-before, got.body)
				}
			}
		})
	}
}

// The same for partners.
func TestHeldPortalForms(t *testing.T) {
	changes := map[string]func(store.Write) error{
		"access ended": func(sw store.Write) error {
			_, _, err := sw.Portal().EndAccess("acme")
			return err
		},
		"program erased": func(sw store.Write) error {
			_, err := sw.Programs().Erase("acme", webhook.AuditEntry{})
			return err
		},
		"nothing": func(store.Write) error { return nil },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			w := testWeb(t, nil)
			v := enter(t, w, "acme", webhook.PortalWrite)
			u := sender{t, w.store}.subscribe("acme", "https://hooks.example.com/")
			for i, form := range [][]string{
				{"/portal/subscriptions/new", "url", "https://held.example.com/", "events", "content_published", "once", ""},
				{"/portal" + subscriptionPath(u.ID) + "/edit", "url", "https://held.example.com/2", "events", "content_published", "was", ""},
			} {
				if i > 0 {
					v = enter(t, w, "acme", webhook.PortalWrite)
				}
				form = v.withHidden(form)
				before := len(audited(t, w))
				got := v.sendHeld(w, form[0], func() { must(t, w.store.Write(t.Context(), change)) }, form[1:]...)
				entries := len(audited(t, w)) - before
				if name == "nothing" && (got.StatusCode >= 400 || entries != 1) ||
					name != "nothing" && (got.StatusCode != 401 || entries != 0 || !strings.Contains(got.body, "Your session has ended")) {
					t.Errorf("%s: got %d, with %d entries of the audit log\n%s", form[0], got.StatusCode, entries, got.body)
				}
				if name == "program erased" {
					break // a portal that takes no new sessions
				}
			}
		})
	}
}

// Each handler that writes checks the access again: no route changes anything if the session ends
// between the check and the handler.
func TestEachRouteChecksAgain(t *testing.T) {
	f := furnish(t)
	for _, one := range slices.Concat(f.w.routes(), f.w.portalRoutes()) {
		if one.role == anyone || one.post == nil {
			continue
		}
		role, partner := webhook.RoleOwner, strings.HasPrefix(one.path, portalBase+"/")
		if partner {
			role = writer
		}
		v := f.as(role)
		cookie := v.client.Transport.(withCookie).cookie
		before := 0
		post := one.post
		one.post = func(r *request) (response, error) {
			if err := f.w.store.Write(t.Context(), func(sw store.Write) error {
				_, _, err := sw.Sessions().End(cookie.Value)
				if partner {
					_, _, err = sw.Portal().EndSession(cookie.Value)
				}
				return err
			}); err != nil {
				return response{}, err
			}
			before = len(audited(t, f.w))
			return post(r)
		}
		r := httptest.NewRequestWithContext(t.Context(), "POST", f.path(one.path), strings.NewReader(""))
		r.AddCookie(cookie)
		rw := httptest.NewRecorder()
		m := http.NewServeMux()
		m.Handle(one.path, f.w.serve(f.w.guard(one)))
		m.ServeHTTP(rw, r)
		path := strings.TrimPrefix(one.path, portalBase)
		if after := len(audited(t, f.w)); before == 0 || after != before || rw.Code < 300 && !slices.Contains(readingPosts, path) ||
			rw.Code >= 500 || rw.Code == 303 && path != "/preferences" && path != "/subscriptions/{id}/probe" {
			t.Errorf("POST %s: got %d, with %d entries of the audit log", one.path, rw.Code, after-before)
		}
	}
}

// readingPosts are routes that change nothing, and use POST because their input may be secret or long.
var readingPosts = []string{"/subscriptions/check-url", "/subscriptions/filters", "/subscriptions/{id}/filters"}

// storeWrites are the methods of the handles of the store that write by themselves.
var storeWrites = []string{"Create", "Update", "Delete", "RotateSecret", "Redeliver", "Cancel", "Publish", "Put", "Revoke", "Complete"}

// isWriteFunc reports whether an argument is a function literal that runs in a write.
func isWriteFunc(arg ast.Expr) bool {
	fn, ok := arg.(*ast.FuncLit)
	if !ok || len(fn.Type.Params.List) != 1 {
		return false
	}
	param, ok := fn.Type.Params.List[0].Type.(*ast.SelectorExpr)
	return ok && fmt.Sprint(param.X) == "store" && param.Sel.Name == "Write"
}

// No page writes without the access check, see pageStore. Only access.go calls the store's own
// Write.
func TestPagesWriteWithTheAccessCheck(t *testing.T) {
	sources := token.NewFileSet()
	all, err := filepath.Glob("*.go")
	must(t, err)
	checked := 0
	for _, name := range all {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := parser.ParseFile(sources, name, nil, 0)
		must(t, err)
		ast.Inspect(source, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				checked += checkWrite(t, sources, call)
			}
			return true
		})
	}
	if checked < 40 {
		t.Errorf("found only %d writes", checked)
	}
}

// checkWrite reports a call that writes without the access check. It returns 1 for a write.
func checkWrite(t *testing.T, sources *token.FileSet, call *ast.CallExpr) (writes int) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return 0
	}
	name, at := method.Sel.Name, sources.Position(call.Pos())
	first := fmt.Sprint(call.Args[0])
	if name == "Write" && len(call.Args) == 2 {
		if writes++; first != "r" && at.Filename != "access.go" {
			t.Errorf("%s writes without the access check", at)
		}
	}
	if name == "WriteAgain" {
		t.Errorf("%s writes without the access check", at)
	}
	for _, arg := range call.Args {
		if isWriteFunc(arg) && name != "checked" && (name != "Write" || first != "r") {
			t.Errorf("%s passes a write without the access check, see request.checked", at)
		}
	}
	context, ok := call.Args[0].(*ast.CallExpr)
	if !ok || !slices.Contains(storeWrites, name) {
		return writes
	}
	if from, ok := context.Fun.(*ast.SelectorExpr); ok && from.Sel.Name == "Context" {
		t.Errorf("%s: %s of a handle writes without the access check", at, name)
	}
	return writes
}
