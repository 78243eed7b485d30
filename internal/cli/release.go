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
		return errors.New("no server runs on " + c.Data + ": nothing is held; deliveries are held only while one runs")
	} else if err != nil {
		return err
	}
	defer running.Close()
	if err := running.Release(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.Out, "The deliveries that were held are sent.")
	return err
}

// describeRepeats says how many deliveries may be sent again.
func describeRepeats(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event") + " may have been sent already"
}
