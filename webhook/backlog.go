package webhook

import "time"

// Backlog counts the events that wait in the logs for active subscriptions. Events in a
// delivery are not counted.
type Backlog struct {
	Subscriptions int       // subscriptions with waiting events
	Events        int       // counted once per subscription
	More          bool      // there are more events than were counted
	Oldest        time.Time // acceptance of the oldest waiting event; zero for none
}
