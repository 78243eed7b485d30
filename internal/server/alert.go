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

// SMTPPort is the port of a mail server that none is given for.
const SMTPPort = dispatcher.SMTPPort

// AlertSecretFile holds the secret that alerts are signed with, in the data
// directory.
const AlertSecretFile = "alert.secret"

// alertTarget returns where alerts are sent, nil for nowhere. Their signing
// secret is made when it is needed for the first time.
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
		cfg.Logger.Info("alerts are signed with a new secret", "file", path)
		return &dispatcher.AlertTarget{URL: cfg.AlertURL, Secret: secret}, nil
	}
	if err != nil {
		return nil, err
	}
	secret, err := webhook.ParseSigningSecret(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s %w; remove it to have a new one made", path, err)
	}
	return &dispatcher.AlertTarget{URL: cfg.AlertURL, Secret: secret}, nil
}
