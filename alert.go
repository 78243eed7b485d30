package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"service/dispatcher"
	"service/internal/durable"
	"service/webhook"
)

// alertSecretFile holds the secret that alerts are signed with, in the data
// directory.
const alertSecretFile = "alert.secret"

// alertTarget returns where alerts are sent, nil for nowhere. Their signing
// secret is made when it is needed for the first time.
func alertTarget(s *settings) (*dispatcher.AlertTarget, error) {
	if s.alertURL == "" {
		return nil, nil
	}
	path := filepath.Join(s.data, alertSecretFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret := webhook.NewSigningSecret()
		if err := durable.WriteFile(path, []byte(secret.Reveal()+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		s.logger.Info("alerts are signed with a new secret", "file", path)
		return &dispatcher.AlertTarget{URL: s.alertURL, Secret: secret}, nil
	}
	if err != nil {
		return nil, err
	}
	secret, err := webhook.ParseSigningSecret(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s %w; remove it to have a new one made", path, err)
	}
	return &dispatcher.AlertTarget{URL: s.alertURL, Secret: secret}, nil
}

// alertURL reads where alerts are to be sent. No error holds the URL: where it
// leads to may be a secret.
func (f *faults) alertURL(value, file string, rules webhook.SubscriptionRules) string {
	u, err := secret("alert-url", value, file)
	if err != nil {
		if text, ok := strings.CutPrefix(err.Error(), "--alert-url-file: "); ok {
			f.add("alert-url-file", "%s", text)
		} else {
			*f = append(*f, fault{text: err.Error()})
		}
		return ""
	}
	if u == "" {
		return ""
	}
	if parsed, err := url.Parse(u); err == nil && parsed.User != nil {
		f.add("alert-url", "must not hold a user name or password; a secret can stand in its path or query")
		return u
	}
	for _, v := range rules.CheckURL(u) {
		f.add("alert-url", "%s", v.Detail)
	}
	return u
}
