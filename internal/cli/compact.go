package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/internal/control"
	"service/internal/terminal"
	"service/store"
	"service/webhook"
)

type compactCmd struct {
	dataFlag
	DryRun bool `help:"Only say what it needs."`
}

// compactRate is how many bytes a second a slow disk takes at least.
const compactRate = 50 << 20

// Run writes the database anew without its free pages. It needs the data directory
// for itself.
func (c *compactCmd) Run(ctx context.Context, std Streams) (err error) {
	if err := c.mine(); err != nil {
		return err
	}
	if running, err := control.Dial(ctx, c.Data); err == nil {
		return errors.Join(fmt.Errorf("a server runs on %s: stop it first; it gives free pages back by itself once its database was compacted", c.Data), running.Close())
	}
	y, err := store.OpenCompaction(ctx, c.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.Close()) }()
	room := "the file system does not say how much is free"
	if y.Room >= 0 {
		room = webhook.ByteSize(y.Room) + " are free"
	}
	fmt.Fprintf(std.Out, "The database has %s, %s of them free. The new file takes at most %s beside it (%s), and about %s on a slow disk.\n",
		webhook.ByteSize(y.Bytes), webhook.ByteSize(y.Free), webhook.ByteSize(y.Needs), room, (time.Duration(y.Bytes/compactRate)*time.Second + time.Second).String())
	if c.DryRun {
		return nil
	}
	progress := terminal.NewProgress(std.Err)
	began := time.Now()
	after, err := y.Run(ctx, func(written int64) {
		progress.Show("%s of at most %s written", webhook.ByteSize(written), webhook.ByteSize(y.Needs))
	})
	progress.End()
	switch {
	case err != nil && ctx.Err() != nil:
		return errors.New("interrupted: the database is as it was")
	case err != nil:
		return err
	}
	fmt.Fprintf(std.Out, "It has %s now (%s). From now on the service gives free pages back by itself.\nA replica is begun anew at the next start, with a copy of the whole database.\n",
		webhook.ByteSize(after), time.Since(began).Round(100*time.Millisecond))
	return nil
}
