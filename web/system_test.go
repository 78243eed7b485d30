package web

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"service/store"
)

func TestSystemPage(t *testing.T) {
	w := testWeb(t, func(c *Config) {
		c.Settings = []Setting{{"retention", "30d", "default"}, {"retention-delivered", "3d", "flag"}, {"alert-url", "set", "SERVICE_ALERT_URL"}, {"allow-destination", "", "default"}}
		c.Certificates = func() []Certificate {
			return []Certificate{
				{Names: []string{"localhost"}, Issuer: "our CA", Ends: time.Now().Add(48 * time.Hour)},
				{Names: []string{"hooks.example"}, Failing: time.Now().Add(-time.Hour), Fault: "the issuer <is> down"},
			}
		}
		c.Checks = func(context.Context) []store.Finding {
			return []store.Finding{{Check: "the moon", Level: store.LevelOK, Detail: "it is up"}, {Check: "the tide", Level: store.LevelWarn, Detail: "it is <low>", Advice: "Wait."}}
		}
	})
	v := visit(t, w)
	v.do("GET", "/system").want(t, 401, "")
	v.signIn(w)
	p := v.do("GET", "/system")
	p.want(t, 200, "SQLite 3.")
	for _, text := range []string{"v1.2.3", "Write-ahead log", "localhost", "our CA", "hooks.example: no new certificate", "the issuer &lt;is&gt; down", "none yet", "--retention", "30d", "3d for successful deliveries", "--alert-url", "SERVICE_ALERT_URL", "ready", "the moon", "it is &lt;low&gt;", "Wait.", "WARN the tide"} {
		if !strings.Contains(p.body, text) {
			t.Errorf("the page does not say %q", text)
		}
	}
	w.cfg.Ready = func(context.Context) error { return errors.New("the store is on fire") }
	v.do("GET", "/system").want(t, 200, "the store is on fire")
}
