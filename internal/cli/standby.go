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
	Force bool `help:"Allow an existing database in the data directory. The takeover moves it to a subdirectory."`
}

// Run follows the replica of a primary. It takes over on promote, or after the primary's
// lease has expired.
func (c *standbyCmd) Run(ctx context.Context, std Streams, conf *configuration, line *kong.Context) error {
	s, err := c.settings(std.Err)
	if err != nil {
		return err
	}
	if s.Replica == nil {
		f := configErrors{{"litestream", "is required: the configuration of the primary's replica"}}
		return f.err()
	}
	prepare(s, conf.shown(line))
	b, err := server.OpenStandby(ctx, s, c.Force)
	switch {
	case errors.Is(err, store.ErrNotEmpty):
		return fmt.Errorf("%w; --force moves it aside at takeover", err)
	case err != nil:
		return startError(ctx, err)
	}
	fmt.Fprintf(std.Out, "Standby   following %s\n", terminal.Escape(s.Replica.Target()))
	automatic := ""
	if s.Lease != 0 {
		automatic = " when the primary's lease has expired, or"
	}
	fmt.Fprintf(std.Out, "          takes over%s on: %s promote --data %s\n", automatic, s.Program, shellQuote(s.Dir))
	svc, err := b.Run(ctx)
	if err != nil || svc == nil {
		return startError(ctx, c.keyFlag.explain(err))
	}
	return announceAndRun(ctx, svc, s, std)
}

type promoteCmd struct {
	dataFlag
	Force bool `help:"Take the lease from a running primary. Its writes since the last upload are lost, and both serve until it notices."`
}

func (c *promoteCmd) Run(ctx context.Context, std Streams) error {
	running, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no standby is running on " + c.Data)
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
