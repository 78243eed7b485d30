package certs

import (
	"context"

	"github.com/caddyserver/certmagic"

	"service/store/certificate"
)

// databaseStorage implements certmagic's storage in the database.
type databaseStorage struct{ *certificate.Storage }

// Stat implements [certmagic.Storage].
func (s databaseStorage) Stat(ctx context.Context, path string) (certmagic.KeyInfo, error) {
	f, err := s.Storage.Stat(ctx, path)
	return certmagic.KeyInfo{Key: f.Path, Modified: f.Changed, Size: f.Size, IsTerminal: !f.Folder}, err
}

// String keeps the contents out of logs.
func (databaseStorage) String() string { return "the database" }
