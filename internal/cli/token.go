package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Create a token and print it. It cannot be shown again. Creates the program if it is new."`
	List   tokenListCmd   `cmd:"" help:"List the tokens, newest first."`
	Revoke tokenRevokeCmd `cmd:"" help:"Revoke a token immediately. This cannot be undone."`
}

type tokenCreateCmd struct {
	storeFlags
	Program string   `placeholder:"ID" help:"Program (tenant) that the token gives access to (required, except with --scope platform, or with metrics.read alone for all programs)."`
	User    string   `placeholder:"ID" help:"User that the token acts for (required)."`
	Scope   []string `placeholder:"S" help:"Permissions (required): ${scopes}; or platform, which manages all programs and acts in any."`
	Name    string   `placeholder:"N" help:"Label for the list of tokens."`
	Expires string   `placeholder:"D" help:"Lifetime, such as 90d. Default: until it is revoked."`

	TokenPrefix string `default:"svc_" placeholder:"PREFIX" help:"First characters of the token, such as svc_2_. A running server uses its own --token-prefix instead."`
}

func (c *tokenCreateCmd) Run(ctx context.Context, std Streams) error {
	now := time.Now()
	request := webhook.NewToken{ProgramID: c.Program, UserID: c.User, Name: c.Name}
	for _, s := range c.Scope {
		request.Scopes = append(request.Scopes, webhook.Scope(strings.TrimSpace(s)))
	}
	var f configErrors
	if c.Expires != "" {
		if after := f.duration("expires", c.Expires, time.Minute, 100*365*24*time.Hour); f == nil {
			request.ExpiresAt = now.Add(after).Truncate(time.Millisecond)
		}
	}
	if wrong := webhook.CheckTokenPrefix(c.TokenPrefix); wrong != "" {
		f.add("token-prefix", "%s", wrong)
	}
	// Validate before opening the data: an invalid flag is a usage error.
	if invalid := request.Check(now); invalid != nil {
		for _, v := range invalid.Validations {
			f.add(v.Parameter, "%s", v.Detail)
		}
	}
	if err := f.err(); err != nil {
		return err
	}
	t, err := c.openWith(ctx, store.Config{TokenPrefix: c.TokenPrefix}, std)
	if err != nil {
		return err
	}
	defer t.Close()
	secret, err := t.CreateToken(ctx, request)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.Out, secret)
	return err
}

type tokenListCmd struct {
	storeFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *tokenListCmd) Run(ctx context.Context, std Streams) error {
	var all []webhook.Token
	if err := c.call(ctx, std, http.MethodGet, "/v2/owner/tokens", nil, &all); err != nil {
		return err
	}
	now, header := time.Now(), "ID\tTOKEN\tPROGRAM\tUSER\tSCOPES\tCREATED\tSTATE\tNAME"
	return printList(std.Out, c.JSON, all, "No tokens yet. Create one with service token create.", header, func(k *webhook.Token) string {
		return fmt.Sprintf("%s\t%s…\t%s\t%s\t%s\t%s\t%s\t%s", k.ID, k.Hint, cmp.Or(k.ProgramID, "-"), k.UserID,
			webhook.JoinScopes(k.Scopes, ","), day(k.CreatedAt), tokenState(k, now), terminal.Escape(k.Name))
	})
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
	storeFlags
	confirmFlag
	ID string `arg:"" help:"ID of the token, from token list."`
}

func (c *tokenRevokeCmd) Run(ctx context.Context, std Streams) error {
	if err := c.confirm(ctx, std, "revokes token "+c.ID, "yes"); err != nil {
		return err
	}
	var revoked webhook.Token
	if err := c.call(ctx, std, http.MethodDelete, "/v2/owner/tokens/"+url.PathEscape(c.ID), nil, &revoked); err != nil {
		return err
	}
	whose := "of program " + revoked.ProgramID
	switch {
	case revoked.Platform():
		whose = "of the platform"
	case revoked.ProgramID == "":
		whose = "of the installation"
	}
	_, err := fmt.Fprintf(std.Out, "Revoked token %s (%s…) %s.\n", revoked.ID, revoked.Hint, whose)
	return err
}
