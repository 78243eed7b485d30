package web

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestSystemPage(t *testing.T) {
	w := testWeb(t, func(c *Config) {
		c.Settings = []Setting{{"retention", "30d", "default"}, {"alert-url", "set", "SERVICE_ALERT_URL"}, {"allow-destination", "", "default"}}
		c.Certificates = func() []Certificate {
			return []Certificate{{[]string{"localhost"}, "our CA", time.Now().Add(48 * time.Hour)}}
		}
	})
	v := visit(t, w)
	v.do("GET", "/system").want(t, 401, "")
	v.signIn(w)
	p := v.do("GET", "/system")
	p.want(t, 200, "SQLite 3.")
	for _, text := range []string{"v1.2.3", "Write-ahead log", "localhost", "our CA", "--retention", "30d", "--alert-url", "SERVICE_ALERT_URL", "ready"} {
		if !strings.Contains(p.body, text) {
			t.Errorf("the page does not say %q", text)
		}
	}
	w.cfg.Ready = func(context.Context) error { return errors.New("the store is on fire") }
	v.do("GET", "/system").want(t, 200, "the store is on fire")
}
