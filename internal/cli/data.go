package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"service/internal/archive"
	"service/internal/control"
	"service/store"
	"service/webhook"
)

// dataFlag is the flag of every command that needs the data directory.
type dataFlag struct {
	Config string `placeholder:"FILE" help:"A YAML file with settings of serve, by the names of its flags; service config example prints one. Flags and the environment beat it."`
	Data   string `default:"./data" placeholder:"DIR" help:"Everything the service remembers: service.db, certificates, keys."`
}

// mine refuses to have root make files in a data directory that is another
// user's: a service that runs as that user could not open them.
func (d dataFlag) mine() error {
	info, err := os.Stat(d.Data)
	if err != nil || os.Geteuid() != 0 {
		return nil // opening it fails with what is wrong
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known || owner.Uid == 0 {
		return nil
	}
	name := "#" + strconv.Itoa(int(owner.Uid))
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to user %s, who could not open what root makes in it: call this as that user, such as by sudo -u %s", d.Data, name, shellQuote(name))
}

// dataAccess is what the small commands work on: the store itself, or the running
// server that has it open.
type dataAccess interface {
	CreateToken(context.Context, webhook.NewToken) (webhook.Token, string, error)
	Tokens(context.Context) ([]webhook.Token, error)
	RevokeToken(ctx context.Context, id string) (webhook.Token, error)
	RotateKey(context.Context) (store.KeyRotation, error)
	Release(context.Context) error
	Admins(context.Context) ([]webhook.Admin, error)
	CreateAdmin(ctx context.Context, email string, hash webhook.PasswordHash) (webhook.Admin, error)
	ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash) (ended int, err error)
	RemoveAdmin(ctx context.Context, email string) error
	EndSessions(ctx context.Context, email string) (ended int, err error)
	// Backup calls use with what [archive.Write] reads. What use returns is returned.
	Backup(ctx context.Context, r archive.Request, use func(io.Reader) error) error
	Close() error
}

// openData asks the server that runs on the data directory, and when none does
// opens the store. Only with create is a new data directory made.
func openData(ctx context.Context, d dataFlag, k keyFlag, std Streams, create bool) (dataAccess, error) {
	running, err := control.Dial(ctx, d.Data)
	if err == nil {
		return running, nil
	}
	if !errors.Is(err, control.ErrNoServer) {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(d.Data, "service.db")); errors.Is(err, fs.ErrNotExist) {
		if !create {
			return nil, fmt.Errorf("there is no data in %s; --data names the data directory", d.Data)
		}
		if err := d.mine(); err != nil {
			return nil, err
		}
	}
	logger := newLogger(std.Err, "text", slog.LevelWarn)
	st, err := store.Open(ctx, store.Config{Dir: d.Data, SecretKeyFile: k.SecretKeyFile, Logger: logger})
	if err != nil {
		return nil, k.explain(err)
	}
	return control.AuditedStore{Store: st, Version: version()}, nil
}

// keyFlag is the flag of every command that opens the data itself.
type keyFlag struct {
	SecretKeyFile string `placeholder:"FILE" help:"The key that secrets are sealed with, in a file outside of the data directory; without it secret.key there."`
}

// explain says by which flag the key's file was given, or could be.
func (f keyFlag) explain(err error) error {
	switch {
	case !errors.Is(err, store.ErrKey):
		return err
	case f.SecretKeyFile == "":
		return fmt.Errorf("%w (--secret-key-file FILE is for a key that lies elsewhere)", err)
	}
	return fmt.Errorf("--secret-key-file: %w", err)
}
