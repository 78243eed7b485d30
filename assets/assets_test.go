package assets

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
)

func get(a *Assets, method, path string, acceptEncoding ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for _, v := range acceptEncoding {
		r.Header.Add("Accept-Encoding", v)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func TestEveryFileIsServedUnderItsHash(t *testing.T) {
	a := New()
	for _, name := range []string{"style.css", "app.js", "favicon.svg"} {
		if _, ok := a.paths[name]; !ok {
			t.Errorf("%s is not embedded", name)
		}
	}
	hashed := regexp.MustCompile(`^/assets/[a-z-]+\.[0-9a-f]{16}\.(css|js|svg)$`)
	for name := range a.paths {
		want, err := files.ReadFile("dist/" + name)
		if err != nil {
			t.Fatal(err)
		}
		path := a.Path(name)
		if !hashed.MatchString(path) {
			t.Errorf("%s: the path %s has not the form %s", name, path, hashed)
		}
		plain := get(a, "GET", path)
		if plain.Code != 200 || !bytes.Equal(plain.Body.Bytes(), want) {
			t.Errorf("%s: got %d and %d bytes, want 200 and %d", path, plain.Code, plain.Body.Len(), len(want))
		}
		for key, want := range map[string]string{
			"Cache-Control":    "public, max-age=31536000, immutable",
			"Vary":             "Accept-Encoding",
			"Content-Encoding": "",
		} {
			if got := plain.Header().Get(key); got != want {
				t.Errorf("%s: %s: got %q, want %q", path, key, got, want)
			}
		}
		checkCompressed(t, a, path, want)
		head := get(a, "HEAD", path)
		if head.Body.Len() != 0 || head.Header().Get("Content-Length") != plain.Header().Get("Content-Length") {
			t.Errorf("HEAD %s: got %d bytes, Content-Length %q", path, head.Body.Len(), head.Header().Get("Content-Length"))
		}
	}
}

// checkCompressed checks that a client that accepts gzip gets the content compressed.
func checkCompressed(t *testing.T, a *Assets, path string, want []byte) {
	t.Helper()
	zipped := get(a, "GET", path, "br, gzip")
	if got := zipped.Header().Get("Content-Encoding"); got != "gzip" {
		t.Errorf("%s: Content-Encoding: got %q, want gzip", path, got)
		return
	}
	z, err := gzip.NewReader(zipped.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: the compressed file is another one (%v)", path, err)
	}
}

func TestHashFollowsContent(t *testing.T) {
	one, other := New(), New()
	other.Add("style.css", []byte("body { color: red }"))
	if one.Path("style.css") == other.Path("style.css") {
		t.Errorf("two contents have one path, %s", one.Path("style.css"))
	}
}

func TestNoOtherPathIsServed(t *testing.T) {
	a := New()
	for _, path := range []string{"/assets/", "/assets/style.css", "/assets/style.0000000000000000.css", "/assets/assets.go",
		"/assets/../go.mod"} {
		w := get(a, "GET", path)
		if w.Code != 404 || w.Header().Get("Cache-Control") != "" {
			t.Errorf("%s: got %d, Cache-Control %q", path, w.Code, w.Header().Get("Cache-Control"))
		}
	}
	w := get(a, "POST", a.Path("style.css"))
	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d, Allow %q", w.Code, w.Header().Get("Allow"))
	}
}

func TestAcceptsGzip(t *testing.T) {
	for _, tt := range []struct {
		fields []string
		want   bool
	}{
		{nil, false},
		{[]string{""}, false},
		{[]string{"gzip"}, true},
		{[]string{"GZip"}, true},
		{[]string{"br, gzip;q=0.5"}, true},
		{[]string{"br", "gzip"}, true},
		{[]string{"gzip;q=0"}, false},
		{[]string{"gzip; q=0.000"}, false},
		{[]string{"gzip;q=x"}, false},
		{[]string{"*"}, true},
		{[]string{"*;q=0"}, false},
		{[]string{"*, gzip;q=0"}, false},
		{[]string{"identity"}, false},
		{[]string{"notgzip"}, false},
	} {
		if got := AcceptsGzip(http.Header{"Accept-Encoding": tt.fields}); got != tt.want {
			t.Errorf("%q: got %v, want %v", tt.fields, got, tt.want)
		}
	}
}
