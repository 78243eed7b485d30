package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"service/api"
	"service/internal/terminal"
	"service/store"
)

type programMoveCmd struct {
	dataFlag
	To        string `required:"" placeholder:"URL" help:"Base URL of the installation that the program moves to. http is for loopback addresses."`
	TokenFile string `required:"" placeholder:"FILE" help:"File with a platform token of that installation."`
	CAFile    string `name:"ca-file" placeholder:"FILE" help:"Certificates in PEM that verify that installation. Default: those of the system."`
	ID        string `arg:"" help:"Program to move."`
}

// Help returns the rest of the help.
func (programMoveCmd) Help() string {
	return `The server of this data directory must be running; it moves the program itself. Interrupting this
command does not stop the move, and running it again shows its progress.`
}

func (c *programMoveCmd) Run(ctx context.Context, std Streams) error {
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return err
	}
	to := store.MoveTarget{URL: c.To, Token: strings.TrimSpace(string(token))}
	if to.Token == "" {
		return fmt.Errorf("%s has no token", c.TokenFile)
	}
	if c.CAFile != "" {
		ca, err := os.ReadFile(c.CAFile)
		if err != nil {
			return err
		}
		to.CA = string(ca)
	}
	running, err := dialServer(ctx, c.Data, ": start it, since it moves the program itself")
	if err != nil {
		return err
	}
	defer running.Close()
	request := api.MoveRequest{ProgramID: c.ID, To: to}
	err = lines(ctx, running, http.MethodPost, "/v2/owner/programs/move", request, func(p *api.Progress) error {
		_, err := fmt.Fprintln(std.Err, terminal.Escape(p.Text))
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the server continues the move; run the command again to follow it")
	case err != nil:
		return err
	}
	_, err = fmt.Fprintf(std.Out, "Moved program %s to %s.\n", terminal.Escape(c.ID), terminal.Escape(c.To))
	return err
}
