package web

import (
	"net/http"
	"testing"
	"time"

	"service/store"
)

// A form whose change is not in the replica gets an error, not a success. Admins can still sign
// in.
func TestAcknowledge(t *testing.T) {
	dir := t.TempDir()
	// Nothing uploads to the replica.
	s, err := store.Open(t.Context(), store.Config{Dir: dir, Replica: replicaOf(t, dir, t.TempDir()),
		AcknowledgeTimeout: 10 * time.Millisecond})
	must(t, err)
	t.Cleanup(func() { s.Close() })
	w := testWeb(t, func(c *Config) { c.Store = s })
	v := visit(t, w)
	v.do("POST", "/sign-in").want(t, 401, "")
	v.signIn(w)
	v.do("GET", "/system").want(t, 200, "503 after 10 ms")
	const problem = "not in the replica yet"
	form := "program=acme&user=me&name=n&scope=events.read&days=30"
	p := v.post("/tokens/new", form)
	p.want(t, 503, problem)
	if p.Header.Get("Retry-After") == "" {
		t.Error("the answer has no Retry-After")
	}
	v.post("/tokens/new", "").want(t, 422, "")
	v.do("POST", "/tokens/none/revoke").want(t, 503, problem)
	p = v.do("POST", "/sign-out")
	p.want(t, 503, problem)
	if len(p.Cookies()) > 0 {
		t.Error("the answer sets cookies")
	}
	v.do("GET", "/").want(t, http.StatusUnauthorized, "") // the session was not created
}
