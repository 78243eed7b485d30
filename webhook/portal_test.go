package webhook

import (
	"strings"
	"testing"
	"time"
)

func TestPortalOrigins(t *testing.T) {
	for _, good := range []string{"https://app.example.com", "https://app.example.com:8443", "https://localhost", "https://192.0.2.1",
		"https://xn--bcher-kva.example"} {
		if v := CheckPortalOrigins("o", []string{good}); v != nil {
			t.Errorf("%q: %v", good, v)
		}
	}
	for _, bad := range []string{"", "*", "https://*.example.com", "http://app.example.com",
		"https://app.example.com/", "https://app.example.com/x",
		"https://app.example.com:443", "https://app.example.com:70000", "https://app.example.com:", "https://App.example.com",
		"https://a.example https://b.example", "https://a.example;script-src", "https://a.example\n", "https://user@a.example",
		"'none'", "https://" + strings.Repeat("a", 300), "https://-a.example", "https://a..example", "https://[::1]"} {
		if CheckPortalOrigins("o", []string{bad}) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	if CheckPortalOrigins("o", []string{"https://a.example", "https://a.example"}) == nil {
		t.Error("a duplicate is accepted")
	}
	if CheckPortalOrigins("o", make([]string, MaxPortalOrigins+1)) == nil {
		t.Error("too many are accepted")
	}
}

func TestParsePortalLink(t *testing.T) {
	now := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct{ body, fault string }{
		{`{"role": "read"}`, ""},
		{`{"role": "write", "expires_at": null}`, ""},
		{`{"role": "write", "expires_at": "2027-01-03T00:00:00Z"}`, ""},
		{`{}`, "role"},
		{`{"role": 1}`, "role"},
		{`{"role": "owner"}`, "role"},
		{`{"role": "read", "expires_at": 1}`, "expires_at"},
		{`{"role": "read", "expires_at": "tomorrow"}`, "expires_at"},
		{`{"role": "read", "expires_at": "2027-01-02T03:04:06Z"}`, "expires_at"},
		{`{"role": "read", "expires_at": "2027-02-02T03:04:06Z"}`, "expires_at"},
		{`{"role": "read", "program_id": "x"}`, "program_id"},
	} {
		_, err := ParsePortalLink([]byte(tt.body), "acme", now)
		switch {
		case tt.fault == "" && err != nil:
			t.Errorf("%s: %v", tt.body, err)
		case tt.fault != "" && (err == nil || len(err.Validations) != 1 || err.Validations[0].Parameter != tt.fault):
			t.Errorf("%s: got %+v, want a fault of %s", tt.body, err, tt.fault)
		}
	}
	if _, err := ParsePortalLink([]byte(`[]`), "acme", now); err == nil {
		t.Error("an array is accepted")
	}
}

func TestPortalRoles(t *testing.T) {
	for _, tt := range []struct {
		has, need PortalRole
		want      bool
	}{
		{PortalRead, PortalRead, true}, {PortalRead, PortalWrite, false}, {PortalWrite, PortalRead, true}, {PortalWrite, PortalWrite, true},
		{"", PortalRead, false}, {"owner", PortalRead, false}, {PortalWrite, "", false}, {PortalWrite, "owner", false}, {"", "", false},
	} {
		if got := tt.has.Allows(tt.need); got != tt.want {
			t.Errorf("%q allows %q: %v", tt.has, tt.need, got)
		}
	}
}
