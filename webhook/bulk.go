package webhook

// BulkSkip says why a bulk action leaves a delivery as it is.
type BulkSkip string

const (
	SkipPing                BulkSkip = "ping"      // a ping is not resent: send a new one
	SkipNotEnded            BulkSkip = "not_ended" // it is or will be sent anyway
	SkipSubscriptionDeleted BulkSkip = "subscription_deleted"
	SkipSubscriptionPaused  BulkSkip = "subscription_paused"
	SkipRedelivered         BulkSkip = "redelivered" // there is a newer delivery of the same events
	SkipEnded               BulkSkip = "ended"       // nothing of it waits
	SkipInFlight            BulkSkip = "in_flight"   // it is being sent just now
	SkipGone                BulkSkip = "gone"        // retention has removed it since
)

// BulkSkips returns every reason, in the order that they are told.
func BulkSkips() []BulkSkip {
	return []BulkSkip{SkipNotEnded, SkipInFlight, SkipEnded, SkipRedelivered, SkipSubscriptionPaused, SkipSubscriptionDeleted, SkipPing, SkipGone}
}

// Text says a reason in a few words.
func (s BulkSkip) Text() string {
	switch s {
	case SkipPing:
		return "a ping, which is sent anew rather than again"
	case SkipNotEnded:
		return "not at its end: it is sent or tried again by itself"
	case SkipSubscriptionDeleted:
		return "its subscription was deleted"
	case SkipSubscriptionPaused:
		return "its subscription is paused or disabled"
	case SkipRedelivered:
		return "redelivered already: there is a newer delivery of its events"
	case SkipEnded:
		return "at its end: nothing of it waits"
	case SkipInFlight:
		return "being sent just now"
	case SkipGone:
		return "removed by the retention meanwhile"
	}
	return string(s)
}
