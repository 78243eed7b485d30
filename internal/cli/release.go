package cli

import (
	"context"
	"errors"
	"fmt"

	"service/internal/control"
	"service/store"
	"service/webhook"
)

type releaseCmd struct{ dataFlag }

func (c *releaseCmd) Run(ctx context.Context, std Streams) error {
	running, err := control.Dial(ctx, c.Data)
	if errors.Is(err, control.ErrNoServer) {
		return errors.New("no server is running on " + c.Data + ", so no deliveries are paused")
	} else if err != nil {
		return err
	}
	defer running.Close()
	if err := running.Release(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.Out, "Started the paused deliveries.")
	return err
}

// describeRepeats says how many deliveries may be sent a second time.
func describeRepeats(r *store.Repeats) string {
	atLeast := ""
	if r.More {
		atLeast = "at least "
	}
	return atLeast + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "pending event") +
		" may have been sent already"
}
