package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"service/internal/control"
	"service/internal/terminal"
	"service/store/datadir"
	"service/webhook"
)

type compactCmd struct {
	dataFlag
	DryRun bool `help:"Print the space and time needed. Changes nothing."`
}

// compactRate is a conservative write speed of a slow disk, in bytes per second.
const compactRate = 50 << 20

// Run rewrites the database without its free pages. No other process may use the data
// directory.
func (c *compactCmd) Run(ctx context.Context, std Streams) (err error) {
	if err := c.checkOwner(); err != nil {
		return err
	}
	if running, err := control.Dial(ctx, c.Data); err == nil {
		return errors.Join(fmt.Errorf("a server is running on %s: stop it first", c.Data), running.Close())
	}
	y, err := datadir.OpenCompaction(ctx, c.Data)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.Close()) }()
	room := "the free space is unknown"
	if y.Room >= 0 {
		room = webhook.ByteSize(y.Room) + " available"
	}
	estimate := time.Duration(y.Bytes/compactRate)*time.Second + time.Second
	fmt.Fprintf(std.Out, "Database: %s, of which %s free. Compacting needs up to %s of disk space (%s) and about %s on a slow disk.\n",
		webhook.ByteSize(y.Bytes), webhook.ByteSize(y.Free), webhook.ByteSize(y.Needs), room, estimate)
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
		return errors.New("interrupted: the database is unchanged")
	case err != nil:
		return err
	}
	fmt.Fprintf(std.Out, "Compacted to %s in %s. From now on the service returns free pages to the file system itself.\n"+
		"At the next start, a replica gets a new copy of the whole database.\n",
		webhook.ByteSize(after), time.Since(began).Round(100*time.Millisecond))
	return nil
}
