package cli

import (
	"context"
	"fmt"

	"service/store"
	"service/webhook"
)

type releaseCmd struct{ dataFlag }

func (c *releaseCmd) Run(ctx context.Context, std Streams) error {
	if err := c.post(ctx, ", so no deliveries are paused", "/v2/owner/release", nil, new(any)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(std.Out, "Started the paused deliveries.")
	return err
}

// describeRepeats says how many deliveries may be sent again.
func describeRepeats(r *store.Repeats) string {
	atLeast := ""
	if r.More {
		atLeast = "at least "
	}
	return atLeast + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "pending event") +
		" may have been sent already"
}
