package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"service/internal/archive"
	"service/internal/certs"
	"service/internal/server"
	"service/internal/terminal"
	"service/store"
	"service/store/datadir"
	"service/store/replica"
	"service/webhook"
)

type restoreCmd struct {
	dataFlag
	keyFlag
	passphraseFlag
	From        string `placeholder:"FILE|URL" help:"Backup file or replica URL (file://, s3://) to restore from. Default: the replica in --litestream."`
	Litestream  string `placeholder:"FILE" help:"Replica configuration in Litestream's format. Default: litestream.yml in ${config}."`
	At          string `placeholder:"TIME" help:"Point in time to restore from a replica, such as 2026-03-14T08:24:48Z. Default: the newest state."`
	WithoutKeys bool   `help:"Ignore the keys in the backup and ask for no passphrase. Needs secret.key in the data directory, or --secret-key-file."`
	RestoreHold string `placeholder:"0" help:"0: send at once. Default: deliveries are paused until service release."`
	Force       bool   `help:"Replace existing data. It is moved to a subdirectory of the data directory."`
}

func (c *restoreCmd) Run(ctx context.Context, std Streams) error {
	if c.RestoreHold != "" && c.RestoreHold != "0" && c.RestoreHold != "0s" {
		return usagef("--restore-hold: must be 0, which sends at once; without it, deliveries are paused until service release")
	}
	if c.From == "" || strings.Contains(c.From, "://") {
		return c.fromReplica(ctx, std)
	}
	if c.At != "" {
		return usagef("--at: only applies to a replica; a backup has a single state")
	}
	return c.fromFile(ctx, std)
}

// fromFile restores a backup file.
func (c *restoreCmd) fromFile(ctx context.Context, std Streams) (err error) {
	f, err := openBackup(c.From)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := c.open(c.Force)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	aside, a, contents, err := c.fill(ctx, std, r, f)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: nothing was changed")
	case err != nil:
		return fmt.Errorf("%s: %w; nothing was changed", c.From, err)
	}
	fmt.Fprintf(std.Out, "Restored %s as of %s: %s.\n", terminal.Escape(c.Data), webhook.FormatTime(a.CreatedAt), counts(contents))
	fmt.Fprintln(std.Out, "Webhooks sent since then may be sent again. Deliveries in the backup keep their ids.")
	c.printPause(std)
	printAside(std, aside)
	return nil
}

// printPause says whether the restored service pauses deliveries.
func (c *restoreCmd) printPause(std Streams) {
	note := "Deliveries are paused: start the service, check the data, and resume them with service release."
	if c.RestoreHold != "" {
		note = "Deliveries begin as soon as the service starts."
	}
	fmt.Fprintln(std.Out, spelled(note, commandName()))
}

// printAside says where the previous data was moved, if there was any.
func printAside(std Streams, aside string) {
	if aside != "" {
		fmt.Fprintf(std.Out, "The previous data is in %s. Remove it when you no longer need it.\n", terminal.Escape(aside))
	}
}

// fill replaces the files of the data directory with those of a backup, after verifying all of
// them.
func (c *restoreCmd) fill(
	ctx context.Context, std Streams, r *datadir.Restoration, f *os.File,
) (aside string, a *archive.Archive, contents *datadir.Contents, err error) {
	info, err := f.Stat()
	if err == nil {
		err = roomFor(r.Dir(), info.Size())
	}
	if err != nil {
		return "", nil, nil, err
	}
	if a, err = archive.Read(ctx, f, r.Dir()); err != nil {
		return "", nil, nil, err
	}
	key, err := c.keys(ctx, std, r, a)
	if err != nil {
		return "", nil, nil, err
	}
	found, err := datadir.Inspect(ctx, filepath.Join(r.Dir(), archive.Database), key)
	if err != nil {
		return "", nil, nil, err
	}
	// An empty directory removes event types that are newer than the backup.
	if err := os.MkdirAll(filepath.Join(r.Dir(), archive.EventTypesDir), 0o700); err != nil {
		return "", nil, nil, err
	}
	if _, err := server.LoadCatalog(r.Dir()); err != nil {
		return "", nil, nil, err
	}
	if err := r.MarkBackup(ctx, "the backup of "+webhook.FormatTime(a.CreatedAt), a.CreatedAt); err != nil {
		return "", nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return "", nil, nil, err
	}
	aside, err = r.Commit()
	return aside, a, &found, err
}

// keys writes the keys of a backup into the directory to restore. It returns the key of the
// database, from the backup or from the key file.
func (c *restoreCmd) keys(ctx context.Context, std Streams, r *datadir.Restoration, a *archive.Archive) ([]byte, error) {
	certificate := filepath.Join(r.Dir(), certs.CAFile)
	if !a.HasKeys() || c.WithoutKeys {
		if err := os.Remove(certificate); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return c.keptKey(a)
	}
	passphrase, err := c.passphraseFlag.read(ctx, std, false)
	if err != nil {
		return nil, err
	}
	keys, err := a.OpenKeys(passphrase)
	if err != nil {
		return nil, err
	}
	for name, content := range keys {
		if name == archive.SecretKeyFile && c.SecretKeyFile != "" {
			continue // use the existing file
		}
		if err := os.WriteFile(filepath.Join(r.Dir(), name), content, 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(certificate, 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if c.SecretKeyFile != "" {
		return c.keptKey(a)
	}
	return keys[archive.SecretKeyFile], nil
}

// keptKey returns the key from --secret-key-file or the data directory.
func (c *restoreCmd) keptKey(a *archive.Archive) ([]byte, error) {
	key, err := datadir.ReadKeys(c.Data, c.SecretKeyFile)
	if c.SecretKeyFile == "" && errors.Is(err, fs.ErrNotExist) {
		if !a.HasKeys() {
			return nil, errors.New("the backup has no keys: copy its secret.key into the data directory, or set --secret-key-file")
		}
		return nil, errors.New("no secret.key in the data directory: restore it from the backup, or set --secret-key-file")
	}
	return key, c.keyFlag.explain(err)
}

// fromReplica restores a replica.
func (c *restoreCmd) fromReplica(ctx context.Context, std Streams) (err error) {
	from, at, err := c.replica()
	if err != nil {
		return err
	}
	// A replica contains only the database. A secret.key without a database does not require
	// --force, and stays.
	_, err = os.Stat(filepath.Join(c.Data, "service.db"))
	r, err := c.open(c.Force || errors.Is(err, fs.ErrNotExist))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	y, err := r.FromReplica(ctx, from, at)
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: nothing was changed")
	case err != nil:
		return fmt.Errorf("%w; nothing was changed", err)
	}
	aside, err := r.Commit()
	if err != nil {
		return err
	}
	for _, d := range y.Damaged {
		fmt.Fprintf(std.Err, "Warning: %s. Its changes were restored from other objects.\n", terminal.Escape(d))
	}
	fmt.Fprintf(std.Out, "Restored %s as of %s, from %s.\n", terminal.Escape(c.Data), webhook.FormatTime(y.State), terminal.Escape(y.From))
	fmt.Fprintln(std.Out, "Webhooks sent since then will be sent again.")
	c.printPause(std)
	printAside(std, aside)
	if _, err := os.Stat(filepath.Join(c.Data, archive.SecretKeyFile)); errors.Is(err, fs.ErrNotExist) && c.SecretKeyFile == "" {
		fmt.Fprintf(std.Out, "A replica does not include the key: "+
			"before the service starts, copy its secret.key into %s, or set --secret-key-file.\n", terminal.Escape(c.Data))
	}
	return nil
}

// replica returns the replica and the point in time to restore, from the flags.
func (c *restoreCmd) replica() (from *replica.Config, at time.Time, err error) {
	var f configErrors
	if c.At != "" {
		if at, err = time.Parse(time.RFC3339, c.At); err != nil {
			f.add("at", "must be a time such as 2026-03-14T08:24:48Z, not %q", c.At)
		} else if at.After(time.Now()) {
			f.add("at", "must not be in the future, like %q", c.At)
		}
	}
	if c.WithoutKeys {
		f.add("without-keys", "only applies to a backup; a replica has no keys")
	}
	if c.From != "" {
		if c.Litestream != "" {
			f.add("litestream", "must not be set with --from, which already names a replica")
		}
		if from, err = replica.ParseURL(c.From); err != nil {
			f.add("from", "%v", err)
		}
		clearCABundle()
	} else if from, err = readReplica(c.Litestream); err != nil {
		f.add("litestream", "%v", err)
	} else if from == nil {
		f.add("from", "is required: a backup file or the URL of a replica. "+
			"Or set --litestream, or put %s into %s", replicaFile, placesOf(ownName()).configName())
	}
	return from, at, f.err()
}

// open locks the data directory for a restore.
func (c *restoreCmd) open(force bool) (*datadir.Restoration, error) {
	if err := c.checkOwner(); err != nil {
		return nil, err
	}
	r, err := datadir.Restore(c.Data, force)
	switch {
	case errors.Is(err, datadir.ErrNotEmpty):
		return nil, fmt.Errorf("%w; --force replaces it", err)
	case errors.Is(err, store.ErrLocked):
		return nil, fmt.Errorf("%w; stop it first", err)
	case err == nil:
		r.SendAtOnce = c.RestoreHold != ""
	}
	return r, err
}
