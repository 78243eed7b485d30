package client

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"service/webhook"
)

// An attempt knows where its time went: into the name, the connection, its
// security and the wait for an answer; on an open connection into the last alone.
func TestPhases(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { time.Sleep(3 * time.Millisecond) }))
	defer server.Close()
	s := loopbackClient(t)
	s.dialer.tls.RootCAs = server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	first := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := first.Phases; first.Result != webhook.ResultSuccess || p.DNS != 0 || p.Connect <= 0 || p.TLS <= 0 || p.FirstByte < 3*time.Millisecond ||
		p.Connect+p.TLS+p.FirstByte > first.Duration {
		t.Errorf("the first attempt: %s in %s, %+v", first.Result, first.Duration, p)
	}
	second := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := second.Phases; second.Result != webhook.ResultSuccess || p != (webhook.Phases{FirstByte: p.FirstByte}) || p.FirstByte < 3*time.Millisecond {
		t.Errorf("on the open connection: %s in %s, %+v", second.Result, second.Duration, p)
	}
	server.Close()
	s.CloseIdle() // the connection that was open
	refused := s.Send(t.Context(), testRequest(server.URL, 10))
	if p := refused.Phases; refused.Error != webhook.ErrorConnect || p.Connect <= 0 || p.TLS != 0 || p.FirstByte != 0 {
		t.Errorf("refused: %s, %+v", refused.Error, p)
	}
}
