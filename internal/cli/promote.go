package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"service/api"
	"service/internal/terminal"
	"service/webhook"
)

type promoteCmd struct {
	dataFlag
	Force bool `help:"Take the lease from a running primary. Its writes since the last upload are lost, and both serve until it notices."`
}

func (c *promoteCmd) Run(ctx context.Context, std Streams) error {
	running, err := dialServer(ctx, c.Data, ": start it with service serve --lease")
	if err != nil {
		return err
	}
	defer running.Close()
	var state time.Time
	err = lines(ctx, running, http.MethodPost, "/v2/owner/promote", api.Promotion{Force: c.Force}, func(p *api.Progress) error {
		if state = p.State; !state.IsZero() {
			return nil
		}
		_, err := fmt.Fprintln(std.Err, terminal.Escape(p.Text))
		return err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "The standby is now the primary, with all changes uploaded by %s.\n", webhook.FormatTime(state))
	return err
}
