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
	"service/store/replica"
	"service/webhook"
)

type restoreCmd struct {
	dataFlag
	keyFlag
	passphraseFlag
	From        string `placeholder:"FILE|URL" help:"The backup to restore, or the URL of a replica (file://, s3://); without it the replica that --litestream names."`
	Litestream  string `placeholder:"FILE" help:"The configuration of the replica to restore from, in Litestream's own format; without it litestream.yml in the working directory."`
	At          string `placeholder:"TIME" help:"From a replica: the state of this time, such as 2026-03-14T08:24:48Z, and not the newest."`
	WithoutKeys bool   `help:"Leave the keys of the backup alone, and ask for no passphrase: secret.key is in the data directory, or is named by --secret-key-file."`
	Force       bool   `help:"Replace the data that is there. It is moved into a folder beside."`
}

func (c *restoreCmd) Run(ctx context.Context, std Streams) error {
	if c.From == "" || strings.Contains(c.From, "://") {
		return c.fromReplica(ctx, std)
	}
	if c.At != "" {
		return usagef("--at: a backup has one state; leave it out")
	}
	return c.fromFile(ctx, std)
}

// fromFile restores a backup that is a file.
func (c *restoreCmd) fromFile(ctx context.Context, std Streams) (err error) {
	f, err := openBackup(c.From)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := c.take(c.Force)
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
	fmt.Fprintf(std.Out, "%s is as it was at %s: %s.\n", terminal.Escape(c.Data), webhook.FormatTime(a.CreatedAt), counts(contents))
	fmt.Fprintln(std.Out, "What has been sent since then may be sent again, with the same delivery ids where the deliveries are in the backup.")
	if aside != "" {
		fmt.Fprintf(std.Out, "What was there is in %s; remove it when it is of no more use.\n", terminal.Escape(aside))
	}
	return nil
}

// fill puts a backup into the place of the data directory's files, when all of it
// was found right.
func (c *restoreCmd) fill(ctx context.Context, std Streams, r *store.Restoration, f *os.File) (aside string, a *archive.Archive, contents *store.Contents, err error) {
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
	found, err := store.Inspect(ctx, filepath.Join(r.Dir(), archive.Database), key)
	if err != nil {
		return "", nil, nil, err
	}
	// Event types that came later are not of this state, and go.
	if err := os.MkdirAll(filepath.Join(r.Dir(), archive.EventTypesDir), 0o700); err != nil {
		return "", nil, nil, err
	}
	if _, err := server.LoadCatalog(r.Dir()); err != nil {
		return "", nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return "", nil, nil, err
	}
	aside, err = r.Commit()
	return aside, a, &found, err
}

// keys puts the keys of a backup among the files to be restored, and returns the
// one that its database needs: from the backup, or where it is kept.
func (c *restoreCmd) keys(ctx context.Context, std Streams, r *store.Restoration, a *archive.Archive) ([]byte, error) {
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
			continue // it is kept there, and is not made
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

// keptKey returns the key that is kept elsewhere, or in the data directory
// already.
func (c *restoreCmd) keptKey(a *archive.Archive) ([]byte, error) {
	key, err := store.ReadKeys(c.Data, c.SecretKeyFile)
	if c.SecretKeyFile == "" && errors.Is(err, fs.ErrNotExist) {
		if !a.HasKeys() {
			return nil, errors.New("it holds no keys: put its secret.key into the data directory, or name the file by --secret-key-file")
		}
		return nil, errors.New("there is no secret.key in the data directory: restore it from the backup, or name the file by --secret-key-file")
	}
	return key, c.keyFlag.explain(err)
}

// fromReplica restores a replica.
func (c *restoreCmd) fromReplica(ctx context.Context, std Streams) (err error) {
	from, at, err := c.replica()
	if err != nil {
		return err
	}
	// A replica holds the database alone: the key may be there already, and stays.
	_, err = os.Stat(filepath.Join(c.Data, "service.db"))
	r, err := c.take(c.Force || errors.Is(err, fs.ErrNotExist))
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
		fmt.Fprintf(std.Err, "Warning: %s. The changes in it were restored from other objects.\n", terminal.Escape(d))
	}
	fmt.Fprintf(std.Out, "%s is as it was at %s, restored from %s.\n", terminal.Escape(c.Data), webhook.FormatTime(y.State), terminal.Escape(y.From))
	fmt.Fprintln(std.Out, spelled("What has been sent since then is not known any more, and is sent again: service serve --restore-hold 1h holds deliveries, so that you can look first.", ownName()))
	if aside != "" {
		fmt.Fprintf(std.Out, "What was there is in %s; remove it when it is of no more use.\n", terminal.Escape(aside))
	}
	if _, err := os.Stat(filepath.Join(c.Data, archive.SecretKeyFile)); errors.Is(err, fs.ErrNotExist) && c.SecretKeyFile == "" {
		fmt.Fprintf(std.Out, "A replica does not hold the key of the secrets: put the service's secret.key into %s before it starts, or name it by --secret-key-file.\n", terminal.Escape(c.Data))
	}
	return nil
}

// replica is what the flags say of the replica to restore, and of the time.
func (c *restoreCmd) replica() (from *replica.Config, at time.Time, err error) {
	var f configErrors
	if c.At != "" {
		if at, err = time.Parse(time.RFC3339, c.At); err != nil {
			f.add("at", "must be a time such as 2026-03-14T08:24:48Z, not %q", c.At)
		} else if at.After(time.Now()) {
			f.add("at", "must not lie in the future, as %q does", c.At)
		}
	}
	if c.WithoutKeys {
		f.add("without-keys", "a replica holds no keys; leave it out")
	}
	if c.From != "" {
		if c.Litestream != "" {
			f.add("litestream", "--from names the replica already; leave one of the two out")
		}
		if from, err = replica.ParseURL(c.From); err != nil {
			f.add("from", "%v", err)
		}
		clearCABundle()
	} else if from, err = readReplica(c.Litestream); err != nil {
		f.add("litestream", "%v", err)
	} else if from == nil {
		f.add("from", "must name a backup or the URL of a replica, unless --litestream FILE (or %s in the working directory) names a replica", replicaFile)
	}
	return from, at, f.err()
}

// take takes the data directory to be filled.
func (c *restoreCmd) take(force bool) (*store.Restoration, error) {
	if err := c.mine(); err != nil {
		return nil, err
	}
	r, err := store.Restore(c.Data, force)
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return nil, fmt.Errorf("%w; --force replaces what is there", err)
	case errors.Is(err, store.ErrLocked):
		return nil, fmt.Errorf("%w; stop it first", err)
	}
	return r, err
}
