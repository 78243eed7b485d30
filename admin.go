package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"

	"service/store"
	"service/webhook"
)

type adminCmd struct {
	Create        adminCreateCmd        `cmd:"" help:"Make an admin, who can sign in to the admin UI."`
	SetupLink     adminSetupLinkCmd     `cmd:"" help:"Print a one-time link to the form that makes the first admin, while there is none. Asks the running server."`
	ResetPassword adminResetPasswordCmd `cmd:"" help:"Set a new password, and end all sessions of the admin."`
	List          adminListCmd          `cmd:"" help:"List the admins."`
	Remove        adminRemoveCmd        `cmd:"" help:"Remove an admin, and end all sessions of the admin."`
	LogoutAll     adminLogoutAllCmd     `cmd:"" help:"End all sessions of all admins, or of one."`
}

// emailFlag names an admin.
type emailFlag struct {
	Email string `placeholder:"E" help:"The email address that the admin signs in by (required). No mail is sent to it."`
}

func (c emailFlag) read() (string, error) {
	email := webhook.NormalizeEmail(c.Email)
	var f faults
	for _, v := range webhook.CheckEmail("email", email) {
		f.add(v.Parameter, "%s", v.Detail)
	}
	return email, f.err()
}

// passwordFlag says where a new password comes from.
type passwordFlag struct {
	PasswordFile string `env:"SERVICE_ADMIN_PASSWORD_FILE" placeholder:"FILE" help:"A file that holds the new password; without it the terminal is asked, or stdin read when it is none."`
}

// read returns the hash of the password: the password itself goes nowhere.
func (c passwordFlag) read(ctx context.Context, std streams) (webhook.PasswordHash, error) {
	password, err := secret("password", "", c.PasswordFile)
	if c.PasswordFile == "" {
		password, err = askForPassword(ctx, std)
	}
	if err != nil {
		return "", err
	}
	if wrong := webhook.CheckPassword("password", password); wrong != nil {
		return "", fmt.Errorf("the password %s", wrong[0].Detail)
	}
	return webhook.HashPassword(password), nil
}

// askForPassword asks twice on a terminal, without showing what is typed, and
// otherwise reads one line of stdin.
func askForPassword(ctx context.Context, std streams) (string, error) {
	tty, ok := std.in.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return passwordLine(std.in)
	}
	first, err := typedPassword(ctx, tty, std.err, "New password: ")
	if err != nil {
		return "", err
	}
	if wrong := webhook.CheckPassword("password", first); wrong != nil {
		return first, nil // there is no use in typing it again
	}
	second, err := typedPassword(ctx, tty, std.err, "Once more: ")
	if err == nil && first != second {
		err = errors.New("the two passwords are not the same")
	}
	return first, err
}

// passwordLine reads a password that is alone on its line.
func passwordLine(r io.Reader) (string, error) {
	if r == nil {
		r = strings.NewReader("")
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSecretFile))
	if err != nil {
		return "", fmt.Errorf("read the password from stdin: %w", err)
	}
	line := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if line == "" {
		return "", errors.New("stdin holds no password; give one there, in a terminal, or by --password-file")
	}
	return line, nil
}

// typedPassword reads a line of the terminal without showing it. When ctx ends
// first, the terminal shows what is typed again.
func typedPassword(ctx context.Context, tty *os.File, prompts io.Writer, prompt string) (string, error) {
	fd := int(tty.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	fmt.Fprint(prompts, prompt)
	type line struct {
		text []byte
		err  error
	}
	typed := make(chan line, 1)
	// A read of a terminal cannot be called off: when it is not waited for, this
	// goroutine ends with the process, which is about to.
	go func() {
		text, err := term.ReadPassword(fd)
		typed <- line{text, err}
	}()
	select {
	case l := <-typed:
		fmt.Fprintln(prompts)
		if errors.Is(l.err, io.EOF) {
			l.err = errors.New("no password was typed")
		}
		return string(l.text), l.err
	case <-ctx.Done():
		fmt.Fprintln(prompts)
		return "", errors.Join(errors.New("interrupted: nothing was changed"), term.Restore(fd, before))
	}
}

type adminCreateCmd struct {
	dataFlag
	keyFlag
	emailFlag
	passwordFlag
}

func (c *adminCreateCmd) Run(ctx context.Context, std streams) error {
	email, err := c.emailFlag.read()
	if err != nil {
		return err
	}
	hash, err := c.passwordFlag.read(ctx, std)
	if err != nil {
		return err
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, true)
	if err != nil {
		return err
	}
	defer d.Close()
	admin, err := d.CreateAdmin(ctx, email, hash)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s is an admin now, and can sign in to the admin UI.\n", admin.Email)
	return err
}

type adminSetupLinkCmd struct{ dataFlag }

func (c *adminSetupLinkCmd) Run(ctx context.Context, std streams) error {
	server, err := dialAdmin(ctx, c.Data)
	if errors.Is(err, errNoServer) {
		return fmt.Errorf("no server is running on %s: start it with service serve, which prints a link itself while there is no admin", c.Data)
	}
	if err != nil {
		return err
	}
	defer server.Close()
	link, err := server.setupLink(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.out, link)
	return err
}

type adminResetPasswordCmd struct {
	dataFlag
	keyFlag
	emailFlag
	passwordFlag
}

func (c *adminResetPasswordCmd) Run(ctx context.Context, std streams) error {
	email, err := c.emailFlag.read()
	if err != nil {
		return err
	}
	hash, err := c.passwordFlag.read(ctx, std)
	if err != nil {
		return err
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	ended, err := d.ResetPassword(ctx, email, hash)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s has a new password; %s ended.\n", email, webhook.Count(ended, "session"))
	return err
}

type adminListCmd struct {
	dataFlag
	keyFlag
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *adminListCmd) Run(ctx context.Context, std streams) error {
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	all, err := d.Admins(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		if all == nil {
			all = []webhook.Admin{}
		}
		e := json.NewEncoder(std.out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(std.out, spelled("There are no admins yet; service admin setup-link prints a link that makes the first.", ownName()))
		return err
	}
	t := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EMAIL\tCREATED\tSIGNED IN\tSESSIONS")
	for _, a := range all {
		signedIn := "never"
		if !a.SignedInAt.IsZero() {
			signedIn = a.SignedInAt.UTC().Format("2006-01-02 15:04 UTC")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", a.Email, day(a.CreatedAt), signedIn, a.Sessions)
	}
	return t.Flush()
}

type adminRemoveCmd struct {
	dataFlag
	keyFlag
	emailFlag
}

func (c *adminRemoveCmd) Run(ctx context.Context, std streams) error {
	email, err := c.emailFlag.read()
	if err != nil {
		return err
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.RemoveAdmin(ctx, email); err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s is no admin any more, and is signed out everywhere.\n", email)
	return err
}

type adminLogoutAllCmd struct {
	dataFlag
	keyFlag
	Email string `placeholder:"E" help:"Of one admin alone."`
}

func (c *adminLogoutAllCmd) Run(ctx context.Context, std streams) error {
	email := ""
	if c.Email != "" {
		var err error
		if email, err = (emailFlag{c.Email}).read(); err != nil {
			return err
		}
	}
	d, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer d.Close()
	ended, err := d.EndSessions(ctx, email)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.out, "%s ended.\n", webhook.Count(ended, "session"))
	return err
}

// auditedStore is the store as the small commands change it: all that they do is in
// the audit.
type auditedStore struct{ *store.Store }

// entry is what the audit is told.
func (auditedStore) entry(action webhook.Action, programID, subjectID, detail string) webhook.AuditEntry {
	return webhook.AuditEntry{Admin: webhook.Terminal, Action: action, ProgramID: programID, SubjectID: subjectID, Detail: detail}
}

// CreateToken is [store.Write.CreateToken].
func (t auditedStore) CreateToken(ctx context.Context, n webhook.NewToken) (token webhook.Token, secret string, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		if token, secret, err = w.CreateToken(n); err != nil {
			return err
		}
		detail := fmt.Sprintf("%s… for user %s: %s", token.Hint, token.UserID, strings.Join(scopeWords(token.Scopes), ", "))
		return w.Audit(t.entry(webhook.ActionTokenCreate, token.ProgramID, token.ID, detail))
	})
	return token, secret, err
}

// RevokeToken is [store.Write.RevokeToken].
func (t auditedStore) RevokeToken(ctx context.Context, id string) (token webhook.Token, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		if token, err = w.RevokeToken(id); err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionTokenRevoke, token.ProgramID, token.ID, token.Hint+"…"))
	})
	return token, err
}

// RotateKey is [store.Store.RotateKey].
func (t auditedStore) RotateKey(ctx context.Context) (store.KeyRotation, error) {
	r, err := t.Store.RotateKey(ctx)
	if err != nil {
		return r, err
	}
	return r, t.Write(ctx, func(w store.Write) error {
		return w.Audit(t.entry(webhook.ActionKeyRotate, "", "", sealed(r.Secrets())+" anew"))
	})
}

// CreateAdmin is [store.Write.CreateAdmin].
func (t auditedStore) CreateAdmin(ctx context.Context, email string, hash webhook.PasswordHash) (admin webhook.Admin, err error) {
	err = t.Write(ctx, func(w store.Write) (err error) {
		if admin, err = w.CreateAdmin(email, hash); err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminCreate, "", admin.ID, email))
	})
	return admin, err
}

// ResetPassword sets a new password, and returns how many sessions of the admin
// ended by it.
func (t auditedStore) ResetPassword(ctx context.Context, email string, hash webhook.PasswordHash) (ended int, err error) {
	err = t.Write(ctx, func(w store.Write) error {
		admin, err := w.Admin(email)
		if err != nil {
			return err
		}
		if ended, err = w.SetPassword(admin.ID, hash, ""); err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminPassword, "", admin.ID, email+"; "+webhook.Count(ended, "session")+" ended"))
	})
	return ended, err
}

// RemoveAdmin is [store.Write.RemoveAdmin].
func (t auditedStore) RemoveAdmin(ctx context.Context, email string) error {
	return t.Write(ctx, func(w store.Write) error {
		admin, err := w.RemoveAdmin(email)
		if err != nil {
			return err
		}
		return w.Audit(t.entry(webhook.ActionAdminRemove, "", admin.ID, email))
	})
}

// EndSessions ends the sessions of one admin, or with "" of all, and returns how
// many.
func (t auditedStore) EndSessions(ctx context.Context, email string) (ended int, err error) {
	all, err := t.Admins(ctx)
	if err != nil {
		return 0, err
	}
	found := email == ""
	err = t.Write(ctx, func(w store.Write) error {
		for _, admin := range all {
			if email != "" && admin.Email != email {
				continue
			}
			found = true
			n, err := w.EndSessions(admin.ID, "")
			if err != nil {
				return err
			}
			ended += n
			if n > 0 {
				if err := w.Audit(t.entry(webhook.ActionSessionEnd, "", admin.ID, "signed out by the terminal: "+webhook.Count(n, "session"))); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err == nil && !found {
		err = webhook.NotFound("admin")
	}
	return ended, err
}

func scopeWords(scopes []webhook.Scope) []string {
	words := make([]string, len(scopes))
	for i, s := range scopes {
		words[i] = string(s)
	}
	return words
}
