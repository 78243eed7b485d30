package cli

import (
	"path/filepath"
	"testing"
)

// TestSMTPFlags checks the flags for the mail server, and that no error contains its password.
func TestSMTPFlags(t *testing.T) {
	password := writeFile(t, filepath.Join(t.TempDir(), "password"), "canary\n")
	validateAll(t, "canary", []validation{
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com"}, ""},
		{[]string{"--smtp-host", "smtp.example.com:465", "--smtp-from", "service@example.com",
			"--smtp-user", "u", "--smtp-password-file", password}, ""},
		{[]string{"--smtp-user", "u"}, "--smtp-user: needs --smtp-host"},
		{[]string{"--smtp-from", "service@example.com"}, "--smtp-from: needs --smtp-host"},
		{[]string{"--smtp-host", "smtp.example.com"}, "--smtp-from: must be an email address"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "Service%0D%0ABcc@example.com"}, "--smtp-from: must be an email address"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "Service@Example.com"}, ""},
		{[]string{"--alert-url", "https://hooks.example.com/%0d%0aX:y"}, "--alert-url: must not contain percent-encoded control characters"},
		{[]string{"--domain", "hooks.example.com", "--acme-email", "a%0abcc@example.com"}, "--acme-email: must be an email address"},
		{[]string{"--smtp-host", "smtp.example.com:x", "--smtp-from", "service@example.com"}, "--smtp-host: must be a host"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com", "--smtp-user", "u"},
			"--smtp-password-file must be set together"},
		{[]string{"--smtp-host", "smtp.example.com", "--smtp-from", "service@example.com", "--smtp-user", "u",
			"--smtp-password-file", password + "x"}, "--smtp-password-file: open"},
	})
}
