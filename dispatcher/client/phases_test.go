package client

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"service/webhook"
)

// An attempt records the durations of DNS lookup, connect, TLS handshake and first
// byte; on a reused connection only the last.
func TestPhases(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	s := loopbackClient(t)
	s.dialer.tls.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	first := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := first.Phases; first.Result != webhook.ResultSuccess || p.DNS != 0 || p.Connect <= 0 || p.TLS <= 0 || p.FirstByte <= 0 ||
		p.Connect+p.TLS+p.FirstByte > first.Duration {
		t.Errorf("first attempt: got %s in %s with %+v, want connect, TLS and first byte", first.Result, first.Duration, p)
	}
	second := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := second.Phases; second.Result != webhook.ResultSuccess || p != (webhook.Phases{FirstByte: p.FirstByte}) || p.FirstByte <= 0 {
		t.Errorf("reused connection: got %s in %s with %+v, want only first byte", second.Result, second.Duration, p)
	}
	server.Close()
	s.CloseIdle() // closes the reused connection
	refused := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := refused.Phases; refused.Error != webhook.ErrorConnect || p.Connect <= 0 || p.TLS != 0 || p.FirstByte != 0 {
		t.Errorf("refused connection: got error %q with %+v, want connect", refused.Error, p)
	}
}
