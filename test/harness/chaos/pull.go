package chaos

import (
	"slices"

	"service/test/harness"
)

// Pull attaches pullers: of each program's log, of a subscription with some of its events, and of an
// inactive one with a filter. Call it before Run.
func (c *Chaos) Pull() *harness.Pullers {
	c.tb.Helper()
	pullers := harness.PullInstance(c.Instance)
	for _, p := range c.Programs {
		pullers.Follow(
			harness.PulledLog{Name: p.ID, Token: p.Token},
			harness.PulledLog{Name: p.ID + ", " + Flaky, Token: p.Token, Path: "/v2/webhooks/subscriptions/" + p.Subscriptions[Flaky] + "/events",
				Wants: func(e *harness.LogEvent) bool { return slices.Contains(wantedBy[Flaky], e.Name) }},
			harness.FilteredLog(c.Instance, p.Token, c.base+"/"+p.ID+"/pulled", "content_published", "content_updated"),
		)
	}
	return pullers
}

// Published reports whether an event was published, whether it was acknowledged or not.
func (c *Chaos) Published(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[id] != nil
}
