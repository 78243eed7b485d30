package record

import (
	"fmt"
	"strings"
)

// DeliveryStatus is the state of an event for one subscription: the status of its newest delivery, or
// success if any delivery of it succeeded, or one of the constants below.
type DeliveryStatus string

const (
	DeliveryNone    DeliveryStatus = "none"    // no delivery of it is stored or due, or it was erased before one succeeded
	DeliveryWaiting DeliveryStatus = "waiting" // the subscription has not reached it yet
)

// DeliveryState is a status with its reason: for failed a [webhook.FailureReason], for none one of the
// constants below, otherwise "".
type DeliveryState struct {
	Status DeliveryStatus
	Reason string
}

// The reasons of [DeliveryNone], besides that the subscription is deleted.
const (
	NotSentNew    = "created_later" // it was accepted before the subscription was created
	NotSentPaused = "not_requested" // the subscription was paused, or did not select it, when it was accepted
	NotSentGone   = "not_stored"    // it was sent, but its delivery is no longer stored
	NotSentErased = "erased"        // it was erased before a delivery of it succeeded
)

// Scan reads deliveryState.
func (d *DeliveryState) Scan(value any) error {
	text, ok := value.(string)
	if !ok {
		return fmt.Errorf("a delivery state is %T, not text", value)
	}
	status, reason, _ := strings.Cut(text, " ")
	d.Status, d.Reason = DeliveryStatus(status), reason
	return nil
}

const (
	// deliveryState is the state of an event e for a subscription s: a status, or a status and its reason.
	// d is the deciding delivery. A scheduled delivery of a deleted subscription has failed, see
	// scanDelivery.
	deliveryState = `CASE
		WHEN e.erased_at IS NOT NULL AND (d.status = 'failed' OR d.next_attempt_at IS NOT NULL) THEN 'none erased'
		WHEN d.status = 'failed' AND EXISTS (SELECT 1 FROM splits p WHERE p.delivery = d.num) THEN 'retryable'
		WHEN d.next_attempt_at IS NOT NULL AND s.deleted_at IS NOT NULL THEN 'failed subscription_deleted'
		WHEN d.status = 'failed' THEN 'failed ' || d.failure_reason
		WHEN d.num IS NOT NULL THEN d.status
		WHEN coalesce((SELECT r.last_seq FROM delivered r WHERE r.subscription_id = s.id AND r.name = e.name AND r.first_seq <= e.seq
			ORDER BY r.first_seq DESC LIMIT 1), 0) >= e.seq THEN 'success'
		WHEN e.erased_at IS NOT NULL THEN 'none erased'
		WHEN EXISTS (SELECT 1 FROM interests i WHERE i.subscription_id = s.id AND i.name = e.name AND i.after_seq < e.seq
			AND (i.until_seq IS NULL OR e.seq <= i.until_seq) AND ` + PassesFilter + `)
			THEN iif(e.seq > (SELECT c.seq FROM cursors c WHERE c.subscription_id = s.id), 'waiting', 'none not_stored')
		WHEN s.deleted_at IS NOT NULL THEN 'none subscription_deleted'
		WHEN e.received_at < s.created_at THEN 'none created_later'
		ELSE 'none not_requested' END`

	// joinDeciding joins the deciding delivery d: of those of an event e to a subscription s the newest one
	// that succeeded, or else the newest one. Either may have many deliveries, so walk goes down both, each
	// to the next that the other may have: at is a delivery of the event, own the subscription's newest one
	// up to it.
	joinDeciding = ` LEFT JOIN deliveries d ON d.num = (WITH RECURSIVE walk (at, own) AS (
			SELECT x.delivery, (` + ownUpTo + `) FROM (SELECT max(y.delivery) AS delivery FROM delivery_events y
				WHERE y.program_id = e.program_id AND y.seq = e.seq) x
			UNION ALL
			SELECT x.delivery, (` + ownUpTo + `) FROM walk CROSS JOIN delivery_events x ON x.program_id = e.program_id AND x.seq = e.seq
				AND x.delivery = (SELECT max(y.delivery) FROM delivery_events y WHERE y.program_id = e.program_id AND y.seq = e.seq
					AND y.delivery <= iif(own = at, at - 1, own)))
		SELECT at FROM walk CROSS JOIN deliveries o ON o.num = at WHERE at = own ORDER BY o.status = 'success' DESC, at DESC LIMIT 1)`
	ownUpTo = "SELECT max(o.num) FROM deliveries o INDEXED BY deliveries_of_subscription WHERE o.subscription = s.num AND o.num <= x.delivery"
)
