package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/alecthomas/kong"

	"service/internal/control"
	"service/internal/server"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type standbyCmd struct {
	serveFlags
	Force bool `help:"Also where there is a database already: it is put aside when the standby takes over."`
}

// Run follows the replica of a primary, and is its successor once it is told to
// be or the primary's lease has ended.
func (c *standbyCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	s, err := c.settings(std.Err)
	if err != nil {
		return err
	}
	if s.Replica == nil {
		f := configErrors{{"litestream", "is required: the configuration of the replica that the primary keeps"}}
		return f.err()
	}
	prepare(s, conf.shown(line))
	b, err := server.OpenStandby(ctx, s, c.Force)
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return fmt.Errorf("%w; --force puts that aside when the standby takes over", err)
	case err != nil:
		return startError(ctx, err)
	}
	fmt.Fprintf(std.Out, "Standby   follows %s\n", terminal.Escape(s.Replica.Target()))
	when := "when it is told to"
	if s.Lease != 0 {
		when = "when the primary's lease has ended, or is told to"
	}
	fmt.Fprintf(std.Out, "          and takes over %s: %s promote --data %s\n", when, s.Program, shellQuote(s.Dir))
	svc, err := b.Run(ctx)
	if err != nil || svc == nil {
		return startError(ctx, c.keyFlag.explain(err))
	}
	return announceAndRun(ctx, svc, s, std)
}

type promoteCmd struct {
	dataFlag
	Force bool `help:"Take the lease even from a primary that renews it. What it accepted after the last upload is lost, and until it notices it also serves."`
}

func (c *promoteCmd) Run(ctx context.Context, std Streams) error {
	running, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no standby runs on " + c.Data)
	} else if err != nil {
		return err
	}
	defer running.Close()
	state, err := running.Promote(ctx, c.Force, func(text string) { fmt.Fprintln(std.Err, terminal.Escape(text)) })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(std.Out, "The standby is the primary now, with what was uploaded until %s.\n", webhook.FormatTime(state))
	return err
}
