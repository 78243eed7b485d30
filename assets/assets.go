// Package assets contains the files that the admin pages load. They are embedded in the binary.
// Their names contain a hash of their content, so that browsers can cache them permanently and
// never show an old version.
//
// The sources are style.css and the folders src (this project's) and vendor (third-party files,
// unchanged).
//
//	go generate ./assets
//
// generates the served files in dist: one style sheet and one script, bundled and minified by
// esbuild, whose version go.mod pins. They are committed, so that building the binary needs only
// Go.
package assets

//go:generate go tool esbuild src/app.js src/style.css favicon.svg --bundle --minify --outdir=dist --outbase=src --entry-names=[name] --loader:.svg=copy --format=esm --target=es2022,chrome123,firefox121,safari17.5 --legal-comments=none --log-level=warning

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed dist
var files embed.FS

// Prefix is the path prefix of all assets.
const Prefix = "/assets/"

var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
	".png": "image/png",
	".jpg": "image/jpeg",
}

// Assets serves the files. Do not change it once it serves.
type Assets struct {
	paths map[string]string // by file name
	files map[string]*file  // by path
}

type file struct {
	contentType string
	plain       []byte
	gzipped     []byte // nil unless it is smaller
}

// New returns the embedded files, to which Add can add others.
func New() *Assets {
	e := embedded()
	return &Assets{paths: maps.Clone(e.paths), files: maps.Clone(e.files)}
}

// embedded reads and compresses the embedded files, once per process: a node serves them in each role.
var embedded = sync.OnceValue(func() *Assets {
	a := &Assets{paths: make(map[string]string), files: make(map[string]*file)}
	entries, err := files.ReadDir("dist")
	if err != nil {
		panic(err) // embedded files are always readable
	}
	for _, e := range entries {
		content, err := files.ReadFile("dist/" + e.Name())
		if err != nil {
			panic(err)
		}
		a.Add(e.Name(), content)
	}
	return a
})

// Add adds a file. The name determines its type: css, js, svg, png or jpg.
func (a *Assets) Add(name string, content []byte) {
	ext := path.Ext(name)
	hash := sha256.Sum256(content)
	at := Prefix + strings.TrimSuffix(name, ext) + "." + hex.EncodeToString(hash[:8]) + ext
	f := &file{contentType: contentTypes[ext], plain: content}
	if f.contentType == "" {
		panic("assets: no content type for " + name)
	}
	if z := compress(content); len(z) < len(content) {
		f.gzipped = z
	}
	a.paths[name], a.files[at] = at, f
}

// compress gzips content. It cannot fail: writing to a bytes.Buffer does not, and the level is valid.
func compress(content []byte) []byte {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
	z.Write(content)
	z.Close()
	return b.Bytes()
}

// Path returns the path at which a file is served: its name with the hash of its content. It panics
// if there is no such file.
func (a *Assets) Path(name string) string {
	p, ok := a.paths[name]
	if !ok {
		panic("assets: there is no " + name)
	}
	return p
}

// ServeHTTP serves a file for GET and HEAD, and responds 404 for any other path, including the path
// of an earlier version.
func (a *Assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := a.files[r.URL.Path]
	if f == nil {
		http.Error(w, "There is no such file.", http.StatusNotFound)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "A file can only be read.", http.StatusMethodNotAllowed)
		return
	}
	h, body := w.Header(), f.plain
	if f.gzipped != nil {
		h.Set("Vary", "Accept-Encoding")
		if AcceptsGzip(r.Header) {
			h.Set("Content-Encoding", "gzip")
			body = f.gzipped
		}
	}
	h.Set("Content-Type", f.contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	if r.Method == http.MethodHead {
		return
	}
	w.Write(body) // fails only if the client has disconnected
}

// AcceptsGzip reports whether a request accepts a gzipped response (RFC 9110, 12.5.3): its
// Accept-Encoding contains gzip or * with a weight other than zero. The weight of gzip takes
// precedence.
func AcceptsGzip(h http.Header) bool {
	star := false
	for _, field := range h.Values("Accept-Encoding") {
		for coding := range strings.SplitSeq(field, ",") {
			name, weight, _ := strings.Cut(coding, ";")
			switch name = strings.TrimSpace(name); {
			case strings.EqualFold(name, "gzip"), strings.EqualFold(name, "x-gzip"):
				return !refused(weight)
			case name == "*":
				star = !refused(weight)
			}
		}
	}
	return star
}

func refused(weight string) bool {
	q, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(weight)), "q=")
	if !ok {
		return false
	}
	n, err := strconv.ParseFloat(q, 64)
	return err != nil || n == 0
}
