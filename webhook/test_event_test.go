package webhook

import (
	"strings"
	"testing"
	"time"
)

func TestParseTest(t *testing.T) {
	c := testCatalog(t)
	now := time.Date(2026, 3, 14, 8, 24, 48, 0, time.UTC)
	for _, eventType := range c.Types() {
		e, invalid := c.ParseTest([]byte(`{"name":"`+eventType.Name+`"}`), now)
		if eventType.Name == EventPing {
			if invalid == nil || invalid.Validations[0].Parameter != "name" {
				t.Errorf("ping: got %v, want an error", invalid)
			}
			continue
		}
		if invalid != nil {
			t.Errorf("%s: %v", eventType.Name, invalid)
			continue
		}
		if e.Name != eventType.Name || !strings.Contains(string(e.JSON), FormatTime(now)) || !IsTestEvent(e.JSON) {
			t.Errorf("%s: got %s", eventType.Name, e.JSON)
		}
	}
	for body, code := range map[string]string{
		`{}`:                                     InvalidRequired,
		`{"name":1}`:                             InvalidType,
		`{"name":"content_delited"}`:             InvalidUnknownEvent,
		`{"name":"content_updated","version":1}`: InvalidUnknownField,
	} {
		if _, invalid := c.ParseTest([]byte(body), now); invalid == nil || len(invalid.Validations) != 1 || invalid.Validations[0].Code != code {
			t.Errorf("%s: got %v, want %s", body, invalid, code)
		}
	}
	for _, body := range []string{"", "[]", "{", `"content_updated"`} {
		if _, invalid := c.ParseTest([]byte(body), now); invalid == nil {
			t.Errorf("%q: got no error", body)
		}
	}
	if IsTestEvent(PingEvent(NewID(), now)) {
		t.Error("IsTestEvent(ping) = true, want false")
	}
}
