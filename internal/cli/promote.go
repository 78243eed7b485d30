package cli

import (
	"context"
	"errors"
	"fmt"

	"service/internal/control"
	"service/internal/terminal"
	"service/webhook"
)

type promoteCmd struct {
	dataFlag
	Force bool `help:"Take the lease from a running primary. Its writes since the last upload are lost, and both serve until it notices."`
}

func (c *promoteCmd) Run(ctx context.Context, std Streams) error {
	running, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no server is running on " + c.Data + ": start it with service serve --lease")
	} else if err != nil {
		return err
	}
	defer running.Close()
	state, err := running.Promote(ctx, c.Force, func(text string) { fmt.Fprintln(std.Err, terminal.Escape(text)) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "The standby is now the primary, with all changes uploaded by %s.\n", webhook.FormatTime(state))
	return err
}
