package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The mail server is given whole or not at all, and no error has its password.
func TestSMTPFlags(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		want string // "" is right
	}{
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com"}, ""},
		{[]string{"--smtp-host", "smtp.example.com:465", "--smtp-from", "service@example.com", "--smtp-user", "u", "--smtp-password-file", password}, ""},
		{[]string{"--smtp-user", "u"}, "--smtp-user: needs --smtp-host"},
		{[]string{"--smtp-from", "service@example.com"}, "--smtp-from: needs --smtp-host"},
		{[]string{"--smtp-host", "smtp.example.com"}, "--smtp-from: must be an address"},
		{[]string{"--smtp-host", "smtp.example.com:x", "--smtp-from", "service@example.com"}, "--smtp-host: must be a host"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com", "--smtp-user", "u"}, "--smtp-password-file are given together"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com", "--smtp-user", "u", "--smtp-password-file", password + "x"}, "--smtp-password-file: open"},
	} {
		status, _, stderr := call(t, append([]string{"config", "validate"}, test.args...)...)
		if (status == 0) != (test.want == "") || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "canary") {
			t.Errorf("%v: %d, %q, want %q", test.args, status, stderr, test.want)
		}
	}
}
