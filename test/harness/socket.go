package harness

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
)

// SocketProxy returns a directory with an admin socket that passes requests on to the running
// service. A command that uses it as its data directory lets a test hold a request, before the
// service receives it or before the command receives the response. The proxy aborts requests that
// it cannot pass on, as a killed service does.
func (in *Instance) SocketProxy(hold *Hold) (dir string) {
	in.TB.Helper()
	dir, err := os.MkdirTemp("", "service-test-") // the path of a socket must be short
	if err != nil {
		in.TB.Fatal(err)
	}
	in.TB.Cleanup(func() { os.RemoveAll(dir) })
	const name = "admin.sock"
	service := filepath.Join(dir, "service")
	if err := os.Symlink(in.Data, service); err != nil { // also a short path
		in.TB.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		in.TB.Fatal(err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(service, name))
	}
	hold.Pass = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: name})
			r.Out.Host = r.In.Host
		},
		Transport:    &http.Transport{DialContext: dial, DisableKeepAlives: true},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	Serve(in.TB, l, hold)
	return dir
}
