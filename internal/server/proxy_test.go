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

// Who a request is from is what a trusted proxy says, and nobody else.
func TestProxyDoor(t *testing.T) {
	trusted := TrustedProxies{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("2001:db8::7/128"), netip.MustParsePrefix("127.0.0.1/32")}
	st, err := store.Open(t.Context(), store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	partners := api.New(api.Config{Store: st, Catalog: catalog})
	plain := &proxyHandler{
		trusted:  trusted,
		insecure: &redirectHandler{api: partners, port: "443"},
		direct:   &redirectHandler{api: partners},
		handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RemoteAddr) }),
	}
	encrypted := &proxyHandler{trusted: trusted, insecure: plain.insecure, handler: plain.handler}
	const led, refused, envelope = "308 https://hooks.test", "403 text", "403 envelope"
	for _, test := range []struct {
		name   string
		door   *proxyHandler
		from   string
		method string
		path   string
		header http.Header
		want   string // what the handler sees the request from, or led, refused or envelope
	}{
		{"a proxy", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7"}, "X-Forwarded-Proto": {"https"}}, "203.0.113.7:0"},
		{"one on this machine", plain, "127.0.0.1:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
		{"one that is mapped", plain, "[::ffff:10.0.0.9]:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
		{"one of IPv6", plain, "[2001:db8::7]:5000", "GET", "/", http.Header{"X-Forwarded-For": {"2001:db8::99"}}, "[2001:db8::99]:0"},
		{"with a port", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7:4711"}}, "203.0.113.7:0"},
		{"in brackets", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"[2001:db8::99]"}}, "[2001:db8::99]:0"},
		{"several proxies", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7, 10.0.0.3", "10.0.0.4"}}, "203.0.113.7:0"},
		{"what the client said itself", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"127.0.0.1, 203.0.113.7"}}, "203.0.113.7:0"},
		{"what the client said, nonsense", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"evil\r\n, 203.0.113.7"}}, "203.0.113.7:0"},
		{"nonsense after which there are proxies", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"unknown, 10.0.0.3"}}, "10.0.0.3:0"},
		{"nothing but nonsense", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"unknown"}}, "10.0.0.9:5000"},
		{"proxies alone", plain, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"10.0.0.2, 10.0.0.3"}}, "10.0.0.2:0"},
		{"a proxy that says nothing", plain, "10.0.0.9:5000", "GET", "/v2/events", nil, "10.0.0.9:5000"},
		{"a proxy that was asked in the clear", plain, "10.0.0.9:5000", "GET", "/subscriptions", http.Header{"X-Forwarded-Proto": {"http"}}, led},
		{"behind one that was", plain, "10.0.0.9:5000", "GET", "/subscriptions", http.Header{"X-Forwarded-Proto": {"HTTP, https"}}, led},
		{"the API in the clear", plain, "10.0.0.9:5000", "GET", "/v2/events", http.Header{"X-Forwarded-Proto": {"http"}}, envelope},
		{"a form in the clear", plain, "10.0.0.9:5000", "POST", "/sign-in", http.Header{"X-Forwarded-Proto": {"http"}}, refused},
		{"this machine", plain, "127.0.0.2:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7"}, "X-Forwarded-Proto": {"http"}}, "127.0.0.2:5000"},
		{"a stranger", plain, "10.0.1.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"https"}}, refused},
		{"a stranger with a token", plain, "10.0.1.9:5000", "GET", "/v2/events", http.Header{"X-Forwarded-For": {"10.0.0.9"}}, envelope},
		{"a stranger who asks for its health", plain, "10.0.1.9:5000", "GET", "/readyz", http.Header{"X-Forwarded-For": {"127.0.0.1"}}, "10.0.1.9:5000"},
		{"a stranger by HTTPS", encrypted, "10.0.1.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Proto": {"http"}}, "10.0.1.9:5000"},
		{"a proxy by HTTPS", encrypted, "10.0.0.9:5000", "GET", "/", http.Header{"X-Forwarded-For": {"203.0.113.7"}}, "203.0.113.7:0"},
	} {
		r := httptest.NewRequest(test.method, "http://hooks.test"+test.path, nil)
		r.RemoteAddr = test.from
		if test.header != nil {
			r.Header = test.header
		}
		w := httptest.NewRecorder()
		test.door.ServeHTTP(w, r)
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
		t.Errorf("got %s of clients that fail", &log)
	}
	logger.Print("http: Accept error: too many open files")
	if !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("got %q of a fault of the service's own", &log)
	}
}
