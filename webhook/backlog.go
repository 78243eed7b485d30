package webhook

import "time"

// Backlog is what waits in the logs for active subscriptions. What is in a delivery
// does not wait there.
type Backlog struct {
	Subscriptions int       // that events wait for
	Events        int       // counted for each of them
	More          bool      // there are more events than were counted
	Oldest        time.Time // when the oldest of them was accepted; zero for none
}
