package record

import (
	"time"

	"service/store/sqlite"
)

const (
	// IsNewest is the condition of the rows u of undelivered that are left to resend: no newer delivery
	// of the event has failed.
	IsNewest = "NOT EXISTS (SELECT 1 FROM undelivered o WHERE o.subscription = u.subscription AND o.seq = u.seq AND o.delivery > u.delivery)"

	// isLeft is the condition of the failed deliveries d with events that are left to resend.
	isLeft = "(EXISTS (SELECT 1 FROM undelivered u WHERE u.delivery = d.num AND " + IsNewest + ") " +
		"AND NOT EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num))"

	selectLeft = `SELECT m.deliveries, m.events, m.failed, (SELECT e.received_at FROM events e WHERE e.program_id = ?2 AND e.seq = m.seq)
		FROM (SELECT count(DISTINCT l.delivery) AS deliveries, count(*) AS events, count(l.incident) > 0 AS failed, min(l.seq) AS seq
			FROM (SELECT u.delivery, u.seq, u.incident FROM undelivered u WHERE u.subscription = (SELECT num FROM subscriptions WHERE id = ?1)
				AND ` + IsNewest + ` AND u.delivery NOT IN (SELECT p.delivery FROM splits p) ORDER BY u.seq LIMIT ?3) l) m`
)

// Left contains the number of failed deliveries and events that are left to resend to a
// subscription: the deliveries that the filter recovered=false lists, and their undelivered events.
type Left struct {
	Deliveries, Events int
	More               bool      // the counts are lower bounds
	From               time.Time // when the oldest of the events was accepted; zero if there are none
	Failed             bool      // some of them failed during an incident; otherwise they were cancelled, for example
}

// maxLeft bounds the events that Left counts.
const maxLeft = 10_000

// left returns the deliveries and events that are left to resend to a subscription.
func (v *view) left(programID, subscriptionID string) (l Left, err error) {
	err = v.Scan(selectLeft, []any{subscriptionID, programID, maxLeft}, &l.Deliveries, &l.Events, &l.Failed, (*sqlite.Time)(&l.From))
	l.More = l.Events == maxLeft
	return l, err
}
