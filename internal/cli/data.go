package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/user"
	"strconv"
	"syscall"

	"service/internal/archive"
	"service/internal/control"
	"service/internal/server"
	"service/store"
	"service/webhook"
)

// dataFlag has the flags of every command that needs the data directory.
type dataFlag struct {
	Config string `placeholder:"FILE" help:"YAML file with the settings of service serve, or off. Default: config.yml in ${config}, if it exists. Flags and environment variables override it. service config example prints one."`
	Data   string `default:"${data}" placeholder:"DIR" help:"Data directory: database, certificates and keys."`
}

// checkOwner returns an error if root is about to create files in another user's data
// directory. A service that runs as that user could not open them.
func (d dataFlag) checkOwner() error {
	info, err := os.Stat(d.Data)
	if err != nil || os.Geteuid() != 0 {
		return nil // opening the directory reports the error
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known || owner.Uid == 0 {
		return nil
	}
	name := "#" + strconv.Itoa(int(owner.Uid))
	if u, err := user.LookupId(name[1:]); err == nil {
		name = u.Username
	}
	return fmt.Errorf("%s belongs to user %s, who could not read files created by root: run this as that user (sudo -u %s)",
		d.Data, name, shellQuote(name))
}

// dataAccess is the data that a command works on: through the running server, or in the
// store, opened by the command itself.
type dataAccess interface {
	CreateToken(context.Context, webhook.NewToken) (webhook.Token, string, error)
	Tokens(context.Context) ([]webhook.Token, error)
	RevokeToken(ctx context.Context, id string) (webhook.Token, error)
	Programs(context.Context) ([]control.Program, error)
	RotateKey(context.Context) (store.KeyRotation, error)
	Release(context.Context) error
	Admins(context.Context) ([]webhook.Admin, error)
	CreateAdmin(ctx context.Context, email string, role webhook.Role, hash webhook.PasswordHash) (webhook.Admin, error)
	ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash, removePasskeys bool) (control.PasswordReset, error)
	RemoveAdmin(ctx context.Context, email string) error
	EndSessions(ctx context.Context, email string) (ended int, err error)
	// DeleteProgram begins to erase a program; without a server it erases all of it.
	DeleteProgram(ctx context.Context, id string) (webhook.Erasure, error)
	// ProgramSpace returns how much space an export needs, with more copies on the same disk.
	ProgramSpace(ctx context.Context, copies int) (control.ProgramSpace, error)
	// ExportProgram calls use with the input of [archive.WriteProgram] and returns its error.
	ExportProgram(ctx context.Context, r archive.ProgramRequest, use func(io.Reader) error) error
	// ImportProgram imports a program from the output of [archive.ProgramSource.Send].
	ImportProgram(ctx context.Context, from io.Reader) (store.Imported, error)
	// AuditPage returns a page of the audit log. The query is one of [webhook.AuditList].
	AuditPage(context.Context, url.Values) (control.AuditPage, error)
	// EachAudit calls fn with every entry of the audit log, oldest first, and records an export.
	EachAudit(ctx context.Context, export bool, fn func(*webhook.AuditRecord) error) error
	// Backup calls use with the input of [archive.Write] and returns its error.
	Backup(ctx context.Context, r archive.Request, use func(io.Reader) error) error
	Close() error
}

// openData connects to the server that runs on the data directory. If none runs, it opens
// the store. It never creates a database: only serve and restore do.
func openData(ctx context.Context, d dataFlag, k keyFlag, std Streams) (dataAccess, error) {
	return openDataWith(ctx, d, store.Config{SecretKeyFile: k.SecretKeyFile}, std)
}

// openDataWith is openData with a configuration for the store, if no server runs. It sets
// its directory, logger and catalog.
func openDataWith(ctx context.Context, d dataFlag, cfg store.Config, std Streams) (dataAccess, error) {
	running, err := control.Dial(ctx, d.Data)
	if err == nil {
		return running, nil
	}
	if !errors.Is(err, control.ErrNoServer) {
		return nil, err
	}
	if err := store.CheckData(d.Data); err != nil {
		return nil, explainNoData(err)
	}
	cfg.Dir, cfg.Logger = d.Data, newLogger(std.Err, "text", slog.LevelWarn)
	// Most commands need no event types, so a file that is wrong does not matter to them.
	types, typesErr := server.LoadCatalog(d.Data)
	cfg.Catalog = types
	st, err := store.Open(ctx, cfg)
	if err != nil {
		return nil, keyFlag{cfg.SecretKeyFile}.explain(err)
	}
	catalog := func() (*webhook.Catalog, error) { return types, typesErr }
	return control.AuditedStore{Store: st, Version: version(), Catalog: catalog}, nil
}

// explainNoData adds what the operator can do to an error of a command that needs a database.
func explainNoData(err error) error {
	var none *store.NoDataError
	switch {
	case !errors.As(err, &none):
		return err
	case none.Standby:
		return fmt.Errorf("%w; run this on the primary", err)
	}
	return fmt.Errorf("%w: start the server, which creates it, or name the data directory with --data", err)
}

// keyFlag is the flag of every command that opens the database itself.
type keyFlag struct {
	SecretKeyFile string `placeholder:"FILE" help:"File with the key that encrypts secrets. Default: secret.key in the data directory; a file named here must be outside it."`
}

// explain adds the name of the flag to an error about the key's file.
func (f keyFlag) explain(err error) error {
	switch {
	case !errors.Is(err, store.ErrKey):
		return err
	case f.SecretKeyFile == "":
		return fmt.Errorf("%w (for a key in another place, use --secret-key-file FILE)", err)
	}
	return fmt.Errorf("--secret-key-file: %w", err)
}
