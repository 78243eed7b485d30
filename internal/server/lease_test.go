package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Once the lease has ended no response is a success, even if its request was handled before.
func TestLeasedWriter(t *testing.T) {
	for _, test := range []struct {
		name   string
		status int
		ends   int // the lease ends before this write: 0 the header, 1 and 2 parts of the body; 3 is never
		want   int
	}{
		{"success", 201, 3, 201}, {"success after the end", 201, 0, 503}, {"error after the end", 400, 0, 400},
		{"no header after the end", 0, 0, 503}, {"not modified", 304, 3, 304},
	} {
		t.Run(test.name, func(t *testing.T) {
			valid := true
			recorder := httptest.NewRecorder()
			w := &leasedWriter{ResponseWriter: recorder, valid: func() bool { return valid }}
			valid = test.ends > 0
			w.Header().Set("Etag", "x")
			if test.status != 0 {
				w.WriteHeader(test.status)
			}
			io.WriteString(w, "body")
			got := recorder.Result()
			if got.StatusCode != test.want {
				t.Errorf("got status %d, want %d", got.StatusCode, test.want)
			}
			body := recorder.Body.String()
			if refused := test.want == http.StatusServiceUnavailable; refused != (got.Header.Get("Retry-After") != "") ||
				refused != strings.Contains(body, "lease") || refused == strings.Contains(body, "body") {
				t.Errorf("got %v and %q, refused: %v", got.Header, body, refused)
			}
		})
	}
	valid := true
	w := &leasedWriter{ResponseWriter: httptest.NewRecorder(), valid: func() bool { return valid }}
	w.WriteHeader(200)
	io.WriteString(w, "first")
	valid = false
	defer func() {
		if recover() != http.ErrAbortHandler { //nolint:errorlint // a panic value
			t.Error("a body after the end of the lease was not aborted")
		}
	}()
	io.WriteString(w, "second")
}
