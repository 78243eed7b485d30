package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/term"

	"service/internal/archive"
	"service/internal/durable"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type backupCmd struct {
	Create backupCreateCmd `cmd:"" help:"Write the database, the event types and the keys into one file, while the server runs or not."`
	Verify backupVerifyCmd `cmd:"" help:"Read a backup through: checksums, the database, and with the passphrase its keys."`
}

// passphraseFlag says where the passphrase of a backup's keys comes from.
type passphraseFlag struct {
	PassphraseFile string `env:"SERVICE_BACKUP_PASSPHRASE_FILE" placeholder:"FILE" help:"A file that holds the passphrase of the keys; without it the terminal is asked, or stdin read when it is none."`
}

// read returns the passphrase. A new one is asked for twice, and must be as long
// as a password.
func (c passphraseFlag) read(ctx context.Context, std Streams, fresh bool) (string, error) {
	passphrase, err := secret("passphrase", "", c.PassphraseFile)
	if c.PassphraseFile == "" {
		passphrase, err = askForPassphrase(ctx, std, fresh)
	}
	if err != nil {
		return "", err
	}
	if wrong := webhook.CheckPassword("passphrase", passphrase); fresh && wrong != nil {
		return "", fmt.Errorf("the passphrase %s", wrong[0].Detail)
	}
	return passphrase, nil
}

func askForPassphrase(ctx context.Context, std Streams, fresh bool) (string, error) {
	tty, ok := std.In.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		line, err := passwordLine(std.In)
		if err != nil {
			return "", errors.New("stdin holds no passphrase; give one there, in a terminal, or by --passphrase-file")
		}
		return line, nil
	}
	first, err := typedPassword(ctx, tty, std.Err, "Passphrase of the keys: ")
	if err != nil || !fresh {
		return first, err
	}
	if wrong := webhook.CheckPassword("passphrase", first); wrong != nil {
		return first, nil // there is no use in typing it again
	}
	second, err := typedPassword(ctx, tty, std.Err, "Once more: ")
	if err == nil && first != second {
		err = errors.New("the two passphrases are not the same")
	}
	return first, err
}

type backupCreateCmd struct {
	dataFlag
	keyFlag
	passphraseFlag
	WithoutKeys bool   `help:"Leave the keys out, and ask for no passphrase: without secret.key, kept elsewhere, the secrets in such a backup cannot be opened."`
	Force       bool   `help:"Replace the file when it is there."`
	File        string `arg:"" help:"The file to make: a tar archive."`
}

func (c *backupCreateCmd) Run(ctx context.Context, std Streams) error {
	if err := c.check(); err != nil {
		return err
	}
	var passphrase string
	if !c.WithoutKeys {
		var err error
		if passphrase, err = c.passphraseFlag.read(ctx, std, true); err != nil {
			return err
		}
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	folder := filepath.Dir(c.File)
	r := archive.Request{Keys: !c.WithoutKeys, Copies: 1}
	if onOneDisk(folder, c.Data) {
		r.Copies = 2 // the snapshot, and the archive that it goes into
	}
	f, err := os.CreateTemp(folder, "."+filepath.Base(c.File)+".unfinished-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	var m *archive.Manifest
	err = d.Backup(ctx, r, func(from io.Reader) (err error) {
		m, err = archive.Write(f, from, passphrase, func(bytes int64) error { return roomFor(folder, bytes) })
		return err
	})
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted: there is no backup")
	case err != nil:
		return err
	}
	info, err := f.Stat()
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := c.name(f.Name()); err != nil {
		return err
	}
	if err := durable.SyncDir(folder); err != nil {
		return err
	}
	what := "the keys, sealed with the passphrase: keep that apart from it"
	if !m.HasKeys() {
		what = "no keys: without secret.key, kept elsewhere, its secrets cannot be opened"
	}
	_, err = fmt.Fprintf(std.Out, "%s holds the database as it was at %s (schema %d, %d bytes in all), and %s.\n",
		terminal.Escape(c.File), webhook.FormatTime(m.CreatedAt), m.Schema, info.Size(), what)
	return err
}

// check refuses a file that cannot be made, before a passphrase is asked for.
func (c *backupCreateCmd) check() error {
	info, err := os.Stat(c.File)
	switch {
	case c.File == "" || c.File == "-":
		return usagef("FILE: must be the name of a file to make")
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", c.File)
	case err == nil && !c.Force:
		return c.taken()
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if folder, err := os.Stat(filepath.Dir(c.File)); err != nil {
		return err
	} else if !folder.IsDir() {
		return fmt.Errorf("%s is not a folder", filepath.Dir(c.File))
	}
	return nil
}

func (c *backupCreateCmd) taken() error {
	return fmt.Errorf("%s is there already; --force replaces it", c.File)
}

// name gives the finished archive its name. Only with force does it take the
// place of another, though that came a moment ago.
func (c *backupCreateCmd) name(unfinished string) error {
	if c.Force {
		return os.Rename(unfinished, c.File)
	}
	err := os.Link(unfinished, c.File)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrExist):
		return c.taken()
	}
	if _, err := os.Lstat(c.File); err == nil {
		return c.taken()
	}
	return os.Rename(unfinished, c.File) // a disk without links
}

// onOneDisk says whether two folders are on the same file system, as far as can
// be told.
func onOneDisk(a, b string) bool {
	var one, other syscall.Stat_t
	return syscall.Stat(a, &one) == nil && syscall.Stat(b, &other) == nil && one.Dev == other.Dev
}

// roomFor refuses to write so many bytes to a disk that has no room for them.
func roomFor(folder string, bytes int64) error {
	free, err := store.FreeDisk(folder)
	if err != nil || free > bytes { // a file system that does not say has room
		return nil
	}
	return fmt.Errorf("there is not enough room on the disk of %s: %d bytes are needed, and %d are free", folder, bytes, free)
}

type backupVerifyCmd struct {
	passphraseFlag
	File string `arg:"" help:"The backup."`
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
			return fmt.Errorf("%w; the variable TMPDIR names another folder", err)
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
	contents, err := store.Inspect(ctx, filepath.Join(dir, archive.Database), keys[archive.SecretKeyFile])
	if err != nil {
		return c.explain(ctx, err)
	}
	state := "there are none: without secret.key, kept elsewhere, the secrets cannot be opened"
	switch {
	case keys != nil:
		state = "the passphrase opens them, and they open the secrets"
	case a.HasKeys():
		state = "sealed, and not looked into: --passphrase-file FILE opens them"
	}
	_, err = fmt.Fprintf(std.Out, "%s is whole: %s, %d bytes.\nMade      %s by service %s\nDatabase  schema %d: %s\nKeys      %s\n",
		terminal.Escape(c.File), webhook.Count(len(a.Files), "file"), a.Bytes, webhook.FormatTime(a.CreatedAt), terminal.Line(a.Version), contents.Schema, counts(&contents), state)
	return err
}

func (c *backupVerifyCmd) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return fmt.Errorf("%s: %w", c.File, err)
}

// openBackup opens a file to be read from its beginning to its end.
func openBackup(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder, and no backup", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// counts says what a database holds.
func counts(c *store.Contents) string {
	events := webhook.Count(c.Events, "event")
	if !c.Newest.IsZero() {
		events += " (the newest of " + webhook.FormatTime(c.Newest) + ")"
	}
	return strings.Join([]string{
		webhook.Count(c.Programs, "program"), webhook.Count(c.Subscriptions, "subscription"), events,
		webhook.Count(c.Deliveries, "delivery"), fmt.Sprintf("%d of them not ended", c.Unended),
	}, ", ")
}
