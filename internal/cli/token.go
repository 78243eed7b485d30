package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"service/internal/terminal"
	"service/webhook"
)

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Print a new token, alone, on stdout. It is shown this once. Creates the program if it is new."`
	List   tokenListCmd   `cmd:"" help:"List the tokens, newest first."`
	Revoke tokenRevokeCmd `cmd:"" help:"End a token at once."`
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

func (c *tokenCreateCmd) Run(ctx context.Context, std Streams) error {
	now := time.Now()
	asked := webhook.NewToken{ProgramID: c.Program, UserID: c.User, Name: c.Name}
	for _, s := range c.Scope {
		asked.Scopes = append(asked.Scopes, webhook.Scope(strings.TrimSpace(s)))
	}
	var f configErrors
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
	_, err = fmt.Fprintln(std.Out, secret)
	return err
}

type tokenListCmd struct {
	dataFlag
	keyFlag
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *tokenListCmd) Run(ctx context.Context, std Streams) error {
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
		return printTokens(std.Out, all, time.Now())
	}
	if all == nil {
		all = []webhook.Token{}
	}
	e := json.NewEncoder(std.Out)
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

func (c *tokenRevokeCmd) Run(ctx context.Context, std Streams) error {
	t, err := openData(ctx, c.dataFlag, c.keyFlag, std, false)
	if err != nil {
		return err
	}
	defer t.Close()
	revoked, err := t.RevokeToken(ctx, c.ID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "Token %s (%s…) of program %s is revoked.\n", revoked.ID, revoked.Hint, revoked.ProgramID)
	return err
}
