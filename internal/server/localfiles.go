package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"service/internal/certs"
	"service/store/datadir"
	"service/store/replica"
	"service/webhook"
)

// intactInterval is the time between two checks of all pages of a standby's copy.
const intactInterval = 24 * time.Hour

// digest returns the first half of the SHA-256 of a file's content, in hexadecimal digits.
func digest(content []byte) string {
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:sha256.Size/2])
}

// localFiles returns the digests of the files of this node that all nodes need.
func (cfg *Config) localFiles() (files datadir.LocalFiles, err error) {
	types, err := readEventTypes(cfg.Dir)
	if err != nil {
		return files, err
	}
	files.EventTypes = make(map[string]string, len(types))
	for _, t := range types {
		files.EventTypes[t.Name] = digest(t.Content)
	}
	if cfg.TLS && len(cfg.Domains) == 0 {
		ca, err := os.ReadFile(filepath.Join(cfg.Dir, certs.CAFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return files, err
		}
		files.CA = digest(ca)
	}
	return files, nil
}

// checkLocal returns an error if this node's files prevent it from being the primary, whatever the
// data.
func (cfg *Config) checkLocal() error {
	if _, err := LoadCatalog(cfg.Dir); err != nil {
		return err
	}
	if _, err := readAlertSecret(cfg); !errors.Is(err, fs.ErrNotExist) { // the start creates it
		return err
	}
	return nil
}

// proveLocal checks this node's own state: that its copy is intact, once per day, and that it has
// the primary's files.
func (b *Standby) proveLocal(ctx context.Context) {
	if now := time.Now(); now.After(b.intactNext) {
		if err := b.data.CheckIntact(ctx); err == nil {
			b.intactNext = now.Add(intactInterval)
		} else if ctx.Err() == nil && !errors.Is(err, replica.ErrNoCopy) {
			b.cfg.Logger.Error("failed to check the database copy, will retry", "error", err)
		}
	}
	warning, lacks := b.compareFiles(ctx)
	if ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	told := b.warning
	b.lacks, b.warning = lacks, warning
	b.mu.Unlock()
	if warning != "" && warning != told {
		b.cfg.Logger.Warn(warning)
	}
}

// compareFiles compares the files of this node with the primary's. It returns an error if the
// service would refuse events that the primary accepts, and a warning for differences that cost
// less than an outage. Files that only this node has are no difference.
func (b *Standby) compareFiles(ctx context.Context) (warning string, lacks error) {
	if err := b.cfg.checkLocal(); err != nil {
		return "", err
	}
	want, err := b.data.PrimaryFiles(ctx)
	if errors.Is(err, replica.ErrNoCopy) {
		return "", nil
	}
	have, filesErr := b.cfg.localFiles()
	if err := errors.Join(err, filesErr); err != nil {
		return "", err
	}
	b.mu.Lock()
	primary := cmp.Or(b.primary, "the primary")
	b.mu.Unlock()
	if want.CA != "" && have.CA != "" && want.CA != have.CA {
		warning = "Its ca.pem is not the one of the primary, so clients that trust only that one will refuse it after a takeover: " +
			"copy ca.pem and ca.key from " + primary
	}
	for name := range want.EventTypes {
		if have.EventTypes[name] == want.EventTypes[name] {
			delete(want.EventTypes, name)
		}
	}
	differing := slices.Sorted(maps.Keys(want.EventTypes))
	switch n := len(differing); n {
	case 0:
		return warning, nil
	case 1:
		return warning, fmt.Errorf("copy %s/%s from %s", eventTypesFolder, differing[0], primary)
	default:
		return warning, fmt.Errorf("copy %s/%s and %s from %s", eventTypesFolder, differing[0], webhook.Count(n-1, "more file"), primary)
	}
}
