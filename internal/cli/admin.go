package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"golang.org/x/term"

	"service/api"
	"service/webhook"
)

type adminCmd struct {
	Create        adminCreateCmd        `cmd:"" help:"Create an admin, who can sign in to the admin UI. No mail is sent."`
	SetupLink     adminSetupLinkCmd     `cmd:"" help:"Print a one-time link that creates the first admin. Needs a running server."`
	ResetPassword adminResetPasswordCmd `cmd:"" help:"Set a new password and end the admin's sessions."`
	List          adminListCmd          `cmd:"" help:"List the admins."`
	Remove        adminRemoveCmd        `cmd:"" help:"Remove an admin and end the admin's sessions."`
	LogoutAll     adminLogoutAllCmd     `cmd:"" help:"End the sessions of all admins, or of one."`
}

// emailFlag names an admin.
type emailFlag struct {
	Email string `placeholder:"E" help:"Email address of the admin (required)."`
}

func (c emailFlag) read() (string, error) {
	email := webhook.NormalizeEmail(c.Email)
	var f configErrors
	for _, v := range webhook.CheckEmail("email", email) {
		f.add(v.Parameter, "%s", v.Detail)
	}
	return email, f.err()
}

// passwordFlag says where to read a new password.
type passwordFlag struct {
	PasswordFile string `env:"SERVICE_ADMIN_PASSWORD_FILE" placeholder:"FILE" help:"File with the new password. Default: a prompt on a terminal, otherwise stdin."`
}

// read returns the hash of the password. The password itself is not kept.
func (c passwordFlag) read(ctx context.Context, std Streams) (webhook.PasswordHash, error) {
	password, err := readPassword(ctx, std, "password", "New password: ", c.PasswordFile, true)
	if err != nil {
		return "", err
	}
	return webhook.HashPassword(password), nil
}

// readPassword reads a password, or a passphrase if that is the noun, from the file of the flag
// --NOUN-file or, without a file, from a terminal or stdin. A fresh one is prompted for twice and
// must satisfy the rules of passwords.
func readPassword(ctx context.Context, std Streams, noun, prompt, file string, fresh bool) (string, error) {
	password, err := secret(noun, "", file)
	if file == "" {
		password, err = askForPassword(ctx, std, noun, prompt, fresh)
	}
	if err != nil {
		return "", err
	}
	if wrong := webhook.CheckPassword(noun, password); fresh && wrong != nil {
		return "", fmt.Errorf("the %s %s", noun, wrong[0].Detail)
	}
	return password, nil
}

// askForPassword prompts on a terminal, without echo. If stdin is not a terminal, it reads one line.
func askForPassword(ctx context.Context, std Streams, noun, prompt string, fresh bool) (string, error) {
	tty, ok := std.In.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		return passwordLine(std.In, noun)
	}
	first, err := typedPassword(ctx, tty, std.Err, prompt)
	if err != nil || !fresh || webhook.CheckPassword(noun, first) != nil {
		return first, err // the caller refuses an invalid one; do not ask for it twice
	}
	second, err := typedPassword(ctx, tty, std.Err, "Repeat: ")
	if err == nil && first != second {
		err = fmt.Errorf("the two %ss differ", noun)
	}
	return first, err
}

// passwordLine reads a password on a line of its own.
func passwordLine(r io.Reader, noun string) (string, error) {
	if r == nil {
		r = strings.NewReader("")
	}
	b, err := io.ReadAll(io.LimitReader(r, maxSecretFile))
	if err != nil {
		return "", fmt.Errorf("read the %s from stdin: %w", noun, err)
	}
	line := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if line == "" {
		return "", fmt.Errorf("no %s on stdin; pipe it in, run this in a terminal, or use --%[1]s-file", noun)
	}
	return line, nil
}

// typedPassword reads a line from the terminal without echo. If ctx ends first, it turns
// the echo on again.
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
	// A read of a terminal cannot be cancelled. After an interrupt this goroutine lives until the
	// process ends.
	go func() {
		text, err := term.ReadPassword(fd)
		typed <- line{text, err}
	}()
	select {
	case l := <-typed:
		fmt.Fprintln(prompts)
		if errors.Is(l.err, io.EOF) {
			l.err = errors.New("no password was entered")
		}
		return string(l.text), l.err
	case <-ctx.Done():
		fmt.Fprintln(prompts)
		return "", errors.Join(errors.New("interrupted: nothing was changed"), term.Restore(fd, before))
	}
}

// credentialFlags are the flags of a command that sets the password of an admin.
type credentialFlags struct {
	storeFlags
	emailFlag
	passwordFlag
}

// read reads the email address and the password.
func (c *credentialFlags) read(ctx context.Context, std Streams) (email string, hash webhook.PasswordHash, err error) {
	if email, err = c.emailFlag.read(); err != nil {
		return "", "", err
	}
	hash, err = c.passwordFlag.read(ctx, std)
	return email, hash, err
}

type adminCreateCmd struct {
	credentialFlags
	Role string `default:"owner" placeholder:"ROLE" help:"What the admin may do: viewer, operator or owner. The first admin must be an owner."`
}

func (c *adminCreateCmd) Run(ctx context.Context, std Streams) error {
	var f configErrors
	for _, v := range webhook.CheckRole("role", webhook.Role(c.Role)) {
		f.add(v.Parameter, "%s", v.Detail)
	}
	if err := f.err(); err != nil {
		return err
	}
	email, hash, err := c.read(ctx, std)
	if err != nil {
		return err
	}
	var admin webhook.Admin
	request := api.AdminRequest{Email: email, Role: webhook.Role(c.Role), Hash: hash}
	if err := c.call(ctx, std, http.MethodPost, "/v2/owner/admins", request, &admin); err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "Created admin %s with the role %s, who can now sign in to the admin UI.\n", admin.Email, admin.Role)
	return err
}

type adminSetupLinkCmd struct{ dataFlag }

func (c *adminSetupLinkCmd) Run(ctx context.Context, std Streams) error {
	var link string
	const advice = "; start it with service serve, which prints a link while there is no admin"
	if err := c.post(ctx, advice, "/v2/owner/setup_link", nil, &link); err != nil {
		return err
	}
	_, err := fmt.Fprintln(std.Out, link)
	return err
}

type adminResetPasswordCmd struct {
	credentialFlags
	RemovePasskeys bool `help:"Also remove the admin's passkeys. Use it when somebody else may have had access to the account."`
}

func (c *adminResetPasswordCmd) Run(ctx context.Context, std Streams) error {
	email, hash, err := c.read(ctx, std)
	if err != nil {
		return err
	}
	var did api.PasswordReset
	request := api.AdminRequest{Email: email, Hash: hash, RemovePasskeys: c.RemovePasskeys}
	if err := c.call(ctx, std, http.MethodPost, "/v2/owner/admins/reset_password", request, &did); err != nil {
		return err
	}
	also := ""
	if c.RemovePasskeys {
		also = "; removed " + webhook.Count(did.RemovedPasskeys, "passkey")
	}
	_, err = fmt.Fprintf(std.Out, "Set a new password for %s; ended %s%s.\n", email, webhook.Count(did.Sessions, "session"), also)
	if err == nil && did.Passkeys > 0 {
		_, err = fmt.Fprintf(std.Err, "%s can still sign in with %s. To remove them, run the command again with --remove-passkeys.\n",
			email, webhook.Count(did.Passkeys, "passkey"))
	}
	return err
}

type adminListCmd struct {
	storeFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *adminListCmd) Run(ctx context.Context, std Streams) error {
	var all []webhook.Admin
	if err := c.call(ctx, std, http.MethodGet, "/v2/owner/admins", nil, &all); err != nil {
		return err
	}
	none := "No admins yet. Create the first with the link that service admin setup-link prints."
	return printList(std.Out, c.JSON, all, none, "EMAIL\tROLE\tCREATED\tSIGNED IN\tSESSIONS", func(a *webhook.Admin) string {
		signedIn := "never"
		if !a.SignedInAt.IsZero() {
			signedIn = a.SignedInAt.UTC().Format("2006-01-02 15:04 UTC")
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%d", a.Email, a.Role, day(a.CreatedAt), signedIn, a.Sessions)
	})
}

type adminRemoveCmd struct {
	storeFlags
	emailFlag
}

func (c *adminRemoveCmd) Run(ctx context.Context, std Streams) error {
	email, err := c.emailFlag.read()
	if err != nil {
		return err
	}
	if err := c.call(ctx, std, http.MethodPost, "/v2/owner/admins/remove", api.AdminRequest{Email: email}, new(any)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "Removed admin %s and ended all sessions.\n", email)
	return err
}

type adminLogoutAllCmd struct {
	storeFlags
	Email string `placeholder:"E" help:"Only the sessions of this admin."`
}

func (c *adminLogoutAllCmd) Run(ctx context.Context, std Streams) error {
	email := ""
	if c.Email != "" {
		var err error
		if email, err = (emailFlag{c.Email}).read(); err != nil {
			return err
		}
	}
	var ended int
	if err := c.call(ctx, std, http.MethodPost, "/v2/owner/admins/logout", api.AdminRequest{Email: email}, &ended); err != nil {
		return err
	}
	_, err := fmt.Fprintf(std.Out, "Ended %s.\n", webhook.Count(ended, "session"))
	return err
}
