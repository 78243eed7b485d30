package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"service/internal/archive"
	"service/internal/durable"
	"service/internal/terminal"
	"service/store/datadir"
	"service/webhook"
)

type backupCmd struct {
	Create backupCreateCmd `cmd:"" help:"Back up the database, event types and keys to one file. The server may be running."`
	Verify backupVerifyCmd `cmd:"" help:"Verify the checksums and the database of a backup and, with the passphrase, its keys."`
}

// passphraseFlag says where to read the passphrase of a backup's keys.
type passphraseFlag struct {
	PassphraseFile string `env:"SERVICE_BACKUP_PASSPHRASE_FILE" placeholder:"FILE" help:"File with the passphrase that encrypts the keys. Default: a prompt on a terminal, otherwise stdin."`
}

// read returns the passphrase, see [readPassword].
func (c passphraseFlag) read(ctx context.Context, std Streams, fresh bool) (string, error) {
	return readPassword(ctx, std, "passphrase", "Passphrase of the keys: ", c.PassphraseFile, fresh)
}

type backupCreateCmd struct {
	storeFlags
	passphraseFlag
	WithoutKeys bool   `help:"Leave out the keys and ask for no passphrase. A restore then needs a separate copy of secret.key."`
	Force       bool   `help:"Replace an existing file."`
	File        string `arg:"" help:"File to create, a tar archive."`
}

// newFile is a file that a command creates.
type newFile struct {
	name  string
	force bool // replaces an existing file
}

func (c *backupCreateCmd) Run(ctx context.Context, std Streams) error {
	file := newFile{c.File, c.Force}
	if err := file.check(); err != nil {
		return err
	}
	var passphrase string
	if !c.WithoutKeys {
		var err error
		if passphrase, err = c.passphraseFlag.read(ctx, std, true); err != nil {
			return err
		}
	}
	d, err := c.open(ctx, std)
	if err != nil {
		return err
	}
	defer d.Close()
	r := archive.Request{Keys: !c.WithoutKeys, Copies: 1}
	if onOneDisk(filepath.Dir(c.File), c.Data) {
		r.Copies = 2 // the snapshot, and the archive that it goes into
	}
	var m *archive.Manifest
	size, err := file.write(ctx, "backup", func(f *os.File) error {
		return d.Stream(ctx, http.MethodPost, "/v2/owner/backup", r, func(from io.Reader) (err error) {
			m, err = archive.Write(f, from, passphrase, file.room)
			return err
		})
	})
	if err != nil {
		return err
	}
	keys := "The keys are included, encrypted with the passphrase. Store the passphrase separately."
	if !m.HasKeys() {
		keys = "The keys are not included. Its secrets can only be decrypted with a separate copy of secret.key."
	}
	_, err = fmt.Fprintf(std.Out, "Created %s: the database as of %s, schema %d, %d bytes in total.\n%s\n",
		terminal.Escape(c.File), webhook.FormatTime(m.CreatedAt), m.Schema, size, keys)
	return err
}

// check returns an error for a file that cannot be created, before the passphrase prompt.
func (c newFile) check() error {
	info, err := os.Stat(c.name)
	switch {
	case c.name == "" || c.name == "-":
		return usagef("FILE: must be the name of a file to create")
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", c.name)
	case err == nil && !c.force:
		return c.taken()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if folder, err := os.Stat(filepath.Dir(c.name)); err != nil {
		return err
	} else if !folder.IsDir() {
		return fmt.Errorf("%s is not a directory", filepath.Dir(c.name))
	}
	return nil
}

func (c newFile) taken() error {
	return fmt.Errorf("%s already exists; --force replaces it", c.name)
}

// write creates the file from what fill writes to a temporary file, and returns its size in bytes.
// If ctx ends, the error says that no such content was written.
func (c newFile) write(ctx context.Context, content string, fill func(*os.File) error) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(c.name), "."+filepath.Base(c.name)+".unfinished-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	err = fill(f)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("interrupted: no %s was written", content)
	case err != nil:
		return 0, err
	}
	return c.finish(f)
}

// room returns an error unless the disk has that many bytes free.
func (c newFile) room(bytes int64) error { return roomFor(filepath.Dir(c.name), bytes) }

// finish syncs and closes the file, renames it to its final name, and returns its size.
func (c newFile) finish(f *os.File) (size int64, err error) {
	info, err := f.Stat()
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, err
	}
	if err := c.rename(f.Name()); err != nil {
		return 0, err
	}
	return info.Size(), durable.SyncDir(filepath.Dir(c.name))
}

// rename renames the finished file to its final name. Without force it fails if a file of that name
// was created after check.
func (c newFile) rename(unfinished string) error {
	if c.force {
		return os.Rename(unfinished, c.name)
	}
	err := os.Link(unfinished, c.name)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return c.taken()
	}
	if _, err := os.Lstat(c.name); err == nil {
		return c.taken()
	}
	return os.Rename(unfinished, c.name) // the file system has no hard links
}

// onOneDisk reports whether two directories are certain to be on the same file system.
func onOneDisk(a, b string) bool {
	var one, other syscall.Stat_t
	return syscall.Stat(a, &one) == nil && syscall.Stat(b, &other) == nil && one.Dev == other.Dev
}

// roomFor returns an error unless the disk of folder has that many bytes free.
func roomFor(folder string, bytes int64) error {
	free, _, err := durable.FreeSpace(folder)
	if err != nil || free > bytes { // if the free space is unknown, try
		return nil
	}
	return fmt.Errorf("not enough disk space for %s: needs %d bytes, %d are free", folder, bytes, free)
}

type backupVerifyCmd struct {
	passphraseFlag
	File string `arg:"" help:"Backup file."`
}

func (c *backupVerifyCmd) Run(ctx context.Context, std Streams) error {
	var passphrase string
	if c.PassphraseFile != "" {
		var err error
		if passphrase, err = c.passphraseFlag.read(ctx, std, false); err != nil {
			return err
		}
	}
	f, err := openBackup(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	dir, err := os.MkdirTemp("", "service-backup-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if info, err := f.Stat(); err == nil {
		if err := roomFor(dir, info.Size()); err != nil {
			return fmt.Errorf("%w; set TMPDIR to use another directory", err)
		}
	}
	a, err := archive.Read(ctx, f, dir)
	if err != nil {
		return c.explain(ctx, err)
	}
	var keys map[string][]byte
	if passphrase != "" && a.HasKeys() {
		if keys, err = a.OpenKeys(passphrase); err != nil {
			return c.explain(ctx, err)
		}
	}
	contents, err := datadir.Inspect(ctx, filepath.Join(dir, archive.Database), keys[archive.SecretKeyFile])
	if err != nil {
		return c.explain(ctx, err)
	}
	state := "not included: a restore needs a separate copy of secret.key"
	switch {
	case keys != nil:
		state = "verified: the passphrase decrypts them, and they decrypt the secrets"
	case a.HasKeys():
		state = "encrypted, not verified: give --passphrase-file to verify them"
	}
	_, err = fmt.Fprintf(std.Out, "%s is intact: %s, %d bytes.\nCreated   %s by service %s\nDatabase  schema %d: %s\nKeys      %s\n",
		terminal.Escape(c.File), webhook.Count(len(a.Files), "file"), a.Bytes,
		webhook.FormatTime(a.CreatedAt), terminal.Line(a.Version), contents.Schema, counts(&contents), state)
	return err
}

func (c *backupVerifyCmd) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return fmt.Errorf("%s: %w", c.File, err)
}

// openBackup opens a backup for sequential reading. A pipe is allowed, a directory is not.
func openBackup(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory, not a backup", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// counts summarizes the contents of a database in a phrase.
func counts(c *datadir.Contents) string {
	events := webhook.Count(c.Events, "event")
	if !c.Newest.IsZero() {
		events += " (newest " + webhook.FormatTime(c.Newest) + ")"
	}
	return strings.Join([]string{
		webhook.Count(c.Programs, "program"), webhook.Count(c.Subscriptions, "subscription"), events,
		webhook.Count(c.Deliveries, "delivery"), fmt.Sprintf("%d of them incomplete", c.Incomplete),
	}, ", ")
}
