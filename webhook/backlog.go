package webhook

import "time"

// Backlog is what waits in the logs for active subscriptions. Events in a delivery
// are not part of it.
type Backlog struct {
	Subscriptions int       // subscriptions with waiting events
	Events        int       // counted once per subscription
	More          bool      // there are more events than were counted
	Oldest        time.Time // acceptance of the oldest waiting event; zero for none
}
