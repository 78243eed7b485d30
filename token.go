package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"service/internal/archive"
	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Print a new token, alone, on stdout. It is shown this once. Creates the program if it is new."`
	List   tokenListCmd   `cmd:"" help:"List the tokens, newest first."`
	Revoke tokenRevokeCmd `cmd:"" help:"End a token at once."`
}

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
		return nil // what is wrong is told by whoever opens it
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

type tokenCreateCmd struct {
	dataFlag
	keyFlag
	Program string   `placeholder:"ID" help:"The program the token is for (required)."`
	User    string   `placeholder:"ID" help:"The user the token stands for (required)."`
	Scope   []string `placeholder:"S" help:"What it may do: ${scopes} (required, repeated or with commas)."`
	Name    string   `placeholder:"N" help:"A name to recognise it by."`
	Expires string   `placeholder:"D" help:"How long it is valid, such as 90d; without it, until it is revoked."`
}

func (c *tokenCreateCmd) Run(ctx context.Context, std streams) error {
	now := time.Now()
	asked := webhook.NewToken{ProgramID: c.Program, UserID: c.User, Name: c.Name}
	for _, s := range c.Scope {
		asked.Scopes = append(asked.Scopes, webhook.Scope(strings.TrimSpace(s)))
	}
	var f faults
	if c.Expires != "" {
		if after := f.duration("expires", c.Expires, time.Minute, 100*365*24*time.Hour); f == nil {
			asked.ExpiresAt = now.Add(after).Truncate(time.Millisecond)
		}
	}
	// What the flags say is checked here, so that a mistake is one of usage and
	// makes no data directory.
	if wrong := asked.Check(now); wrong != nil {
		for _, v := range wrong.Validations {
			f.add(v.Parameter, "%s", v.Detail)
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	t, err := openData(ctx, c.dataFlag, c.keyFlag, std, true)
	if err != nil {
		return err
	}
	defer t.Close()
	_, secret, err := t.CreateToken(ctx, asked)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, secret)
	return err
}

type tokenListCmd struct {
	dataFlag
	keyFlag
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *tokenListCmd) Run(ctx context.Context, std streams) error {
	t, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer t.Close()
	all, err := t.Tokens(ctx)
	if err != nil {
		return err
	}
	if !c.JSON {
		return printTokens(std.out, all, time.Now())
	}
	if all == nil {
		all = []webhook.Token{}
	}
	e := json.NewEncoder(std.out)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

// printTokens prints a table for people.
func printTokens(w io.Writer, all []webhook.Token, now time.Time) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, spelled("There are no tokens yet; service token create makes one.", ownName()))
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tTOKEN\tPROGRAM\tUSER\tSCOPES\tCREATED\tSTATE\tNAME")
	for _, k := range all {
		fmt.Fprintf(t, "%s\t%s…\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Hint, k.ProgramID, k.UserID,
			webhook.JoinScopes(k.Scopes, ","), day(k.CreatedAt), tokenState(&k, now), terminal.Escape(k.Name))
	}
	return t.Flush()
}

func tokenState(t *webhook.Token, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked " + day(t.RevokedAt)
	case t.ExpiresAt.IsZero():
		return "valid"
	case !t.Valid(now):
		return "expired " + day(t.ExpiresAt)
	}
	return "valid until " + day(t.ExpiresAt)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

type tokenRevokeCmd struct {
	dataFlag
	keyFlag
	ID string `arg:"" help:"The token's id, as token list shows it."`
}

func (c *tokenRevokeCmd) Run(ctx context.Context, std streams) error {
	t, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer t.Close()
	revoked, err := t.RevokeToken(ctx, c.ID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "Token %s (%s…) of program %s is revoked.\n", revoked.ID, revoked.Hint, revoked.ProgramID)
	return err
}

// data is what the small commands work on: the store itself, or the running
// server that has it open.
type data interface {
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
func openData(ctx context.Context, d dataFlag, k keyFlag, std streams, create bool) (data, error) {
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
	logger := newLogger(std.err, "text", slog.LevelWarn)
	st, err := store.Open(ctx, store.Config{Dir: d.Data, SecretKeyFile: k.SecretKeyFile, Logger: logger})
	if err != nil {
		return nil, k.explain(err)
	}
	return control.AuditedStore{Store: st, Version: version()}, nil
}
