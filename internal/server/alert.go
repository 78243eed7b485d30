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

// alertTarget returns the target of alerts, nil for none. It creates the signing secret if
// there is none.
func alertTarget(cfg *Config) (*dispatcher.AlertTarget, error) {
	if cfg.AlertURL == "" {
		return nil, nil
	}
	path := filepath.Join(cfg.Dir, AlertSecretFile)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		secret := webhook.NewSigningSecret()
		if err := durable.WriteFile(path, []byte(secret.Reveal()+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
		cfg.Logger.Info("created the signing secret of alerts", "file", path)
		return &dispatcher.AlertTarget{URL: cfg.AlertURL, Secret: secret}, nil
	}
	if err != nil {
		return nil, err
	}
	secret, err := webhook.ParseSigningSecret(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s %w; remove the file to create a new one", path, err)
	}
	return &dispatcher.AlertTarget{URL: cfg.AlertURL, Secret: secret}, nil
}
