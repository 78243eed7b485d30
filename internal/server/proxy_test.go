package server

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"service/api"
	"service/store"
	"service/webhook"
)

// proxyHandlers returns the handlers of a listener, without TLS and with it.
func proxyHandlers(t *testing.T) (plain, encrypted *proxyHandler) {
	t.Helper()
	trusted := TrustedProxies{
		netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("127.0.0.1/32"),
	}
	st, err := store.Open(t.Context(), store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	apiHandler := api.New(api.Config{Store: st, Catalog: catalog})
	plain = &proxyHandler{
		trusted:  trusted,
		insecure: &redirectHandler{api: apiHandler, port: "443"},
		direct:   &redirectHandler{api: apiHandler},
		handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) }),
	}
	encrypted = &proxyHandler{trusted: trusted, insecure: plain.insecure, handler: plain.handler}
	return plain, encrypted
}

// TestProxyHandler checks that only a trusted proxy can set the client's address.
func TestProxyHandler(t *testing.T) {
	plain, encrypted := proxyHandlers(t)
	const fromProxy, direct = "10.0.0.9:5000", "10.0.1.9:5000"
	type h = http.Header
	const redirected, refused, envelope = "308 https://hooks.test", "403 text", "403 envelope"

	for _, test := range []struct {
		name    string
		handler *proxyHandler
		from    string
		method  string
		path    string
		header  http.Header
		want    string // the remote address that the handler sees, or redirected, refused or envelope
	}{
		{"a proxy", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"203.0.113.7"}, "X-Forwarded-Proto": {"https"}}, "203.0.113.7:0"},
		{"a local proxy", plain, "127.0.0.1:5000", "GET", "/", h{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
		{"a proxy with an IPv4-mapped address", plain,
			"[::ffff:10.0.0.9]:5000", "GET", "/", h{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
		{"a proxy with IPv6", plain, "[2001:db8::7]:5000", "GET", "/", h{"X-Forwarded-For": {"2001:db8::99"}}, "[2001:db8::99]:0"},
		{"with a port", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"203.0.113.7:4711"}}, "203.0.113.7:0"},
		{"in brackets", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"[2001:db8::99]"}}, "[2001:db8::99]:0"},
		{"several proxies", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"203.0.113.7, 10.0.0.3", "10.0.0.4"}}, "203.0.113.7:0"},
		{"an address from the client", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"127.0.0.1, 203.0.113.7"}}, "203.0.113.7:0"},
		{"nonsense from the client", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"evil\r\n, 203.0.113.7"}}, "203.0.113.7:0"},
		{"nonsense before a proxy", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"unknown, 10.0.0.3"}}, "10.0.0.3:0"},
		{"only nonsense", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"unknown"}}, "10.0.0.9:5000"},
		{"only proxies", plain, fromProxy, "GET", "/", h{"X-Forwarded-For": {"10.0.0.2, 10.0.0.3"}}, "10.0.0.2:0"},
		{"a proxy without headers", plain, "10.0.0.9:5000", "GET", "/v2/events", nil, "10.0.0.9:5000"},
		{"a proxy that received plain HTTP", plain, "10.0.0.9:5000", "GET", "/subscriptions", h{"X-Forwarded-Proto": {"http"}}, redirected},
		{"a second proxy after plain HTTP", plain, "10.0.0.9:5000", "GET", "/subscriptions", h{"X-Forwarded-Proto": {"HTTP, https"}}, redirected},
		{"the API over plain HTTP", plain, "10.0.0.9:5000", "GET", "/v2/events", h{"X-Forwarded-Proto": {"http"}}, envelope},
		{"a form over plain HTTP", plain, "10.0.0.9:5000", "POST", "/sign-in", h{"X-Forwarded-Proto": {"http"}}, refused},
		{"a local client", plain,
			"127.0.0.2:5000", "GET", "/", h{"X-Forwarded-For": {"203.0.113.7"}, "X-Forwarded-Proto": {"http"}}, "127.0.0.2:5000"},
		{"a direct client", plain, direct, "GET", "/", h{"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"https"}}, refused},
		{"a direct client of the API", plain, "10.0.1.9:5000", "GET", "/v2/events", h{"X-Forwarded-For": {"10.0.0.9"}}, envelope},
		{"a direct health check", plain, "10.0.1.9:5000", "GET", "/readyz", h{"X-Forwarded-For": {"127.0.0.1"}}, "10.0.1.9:5000"},
		{"a direct client over HTTPS", encrypted,
			direct, "GET", "/", h{"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"}}, "10.0.1.9:5000"},
		{"a proxy over HTTPS", encrypted, fromProxy, "GET", "/", h{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
	} {
		r := httptest.NewRequest(test.method, "http://hooks.test"+test.path, nil)
		r.RemoteAddr = test.from
		if test.header != nil {
			r.Header = test.header
		}
		w := httptest.NewRecorder()
		test.handler.ServeHTTP(w, r)
		got := w.Body.String()
		switch {
		case w.Code == http.StatusPermanentRedirect:
			got = strings.TrimSuffix("308 "+w.Header().Get("Location"), test.path)
		case w.Code == http.StatusForbidden && json.Valid(w.Body.Bytes()):
			got = envelope
		case w.Code == http.StatusForbidden:
			got = refused
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
}

func TestServerLog(t *testing.T) {
	var log bytes.Buffer
	logger := slog.NewLogLogger(serverLog{slog.NewTextHandler(&log, nil)}, slog.LevelWarn)
	logger.Print("http: TLS handshake error from 192.0.2.7:4711: EOF")
	logger.Print("http2: server connection error")
	if log.Len() > 0 {
		t.Errorf("got %s, want no warnings about clients", &log)
	}
	logger.Print("http: Accept error: too many open files")
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("got %q, want a warning", &log)
	}
}
