package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"service/dispatcher"
	"service/internal/durable"
	"service/webhook"
)

// SMTP is a mail server.
type SMTP = dispatcher.SMTP

// SMTPPort is the default port of a mail server.
const SMTPPort = dispatcher.SMTPPort

// AlertSecretFile is the file in the data directory with the signing secret of alerts.
const AlertSecretFile = "alert.secret"

// alertTarget returns the target of alerts, nil for none. It creates the signing secret if it does
// not exist.
func alertTarget(cfg *Config) (*dispatcher.AlertTarget, error) {
	secret, err := readAlertSecret(cfg)
	if errors.Is(err, fs.ErrNotExist) {
		path := filepath.Join(cfg.Dir, AlertSecretFile)
		secret = webhook.NewSigningSecret()
		if err := durable.WriteFile(path, []byte(secret.Reveal()+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		cfg.Logger.Info("created the signing secret of alerts", "file", path)
	} else if err != nil || cfg.AlertURL == "" {
		return nil, err
	}
	return &dispatcher.AlertTarget{URL: cfg.AlertURL, Secret: secret}, nil
}

// readAlertSecret reads the signing secret of alerts, if alerts are sent.
func readAlertSecret(cfg *Config) (secret webhook.SigningSecret, err error) {
	if cfg.AlertURL == "" {
		return secret, nil
	}
	path := filepath.Join(cfg.Dir, AlertSecretFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return secret, err
	}
	if secret, err = webhook.ParseSigningSecret(strings.TrimSpace(string(text))); err != nil {
		return secret, fmt.Errorf("%s %w; remove the file to create a new one", path, err)
	}
	return secret, nil
}
