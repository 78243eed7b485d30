package webhook

import (
	"strconv"
	"time"
)

// Status is the state of a delivery. docs/architecture.md contains the state diagram,
// the schema checks the states, and delivery_test.go tests every transition.
type Status string

const (
	StatusPending   Status = "pending"   // waiting for its first attempt, or an attempt is in flight
	StatusRetryable Status = "retryable" // waiting for a retry
	StatusSuccess   Status = "success"   // final
	StatusFailed    Status = "failed"    // final
)

// Final reports whether the delivery is completed: nothing more will be sent.
func (s Status) Final() bool { return s == StatusSuccess || s == StatusFailed }

// FailureReason is why a delivery failed permanently.
type FailureReason string

const (
	FailureNone                FailureReason = ""
	FailureAttemptsExhausted   FailureReason = "attempts_exhausted"
	FailureRejected            FailureReason = "rejected"
	FailureBlocked             FailureReason = "blocked"
	FailureSubscriptionDeleted FailureReason = "subscription_deleted"
	FailureUnsubscribed        FailureReason = "unsubscribed" // one of its event types was removed from the subscription (spec, section 6.1.4)
	FailureExpired             FailureReason = "expired"      // it waited longer than the retention
	FailureCancelled           FailureReason = "cancelled"    // an admin or an API request cancelled it
)

// FailureReasons returns every failure reason but FailureNone.
func FailureReasons() []FailureReason {
	return []FailureReason{FailureAttemptsExhausted, FailureRejected, FailureBlocked, FailureSubscriptionDeleted,
		FailureUnsubscribed, FailureExpired, FailureCancelled}
}

// EventRef refers to one event of a delivery.
type EventRef struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Delivery is one HTTP POST due to one subscription (spec, section 2.2). Its ID, its events
// and therefore its bytes never change.
type Delivery struct {
	ID             string
	SubscriptionID string
	ProgramID      string
	Status         Status
	FailureReason  FailureReason
	AttemptsMade   int       // each is counted durably before it is sent
	NextAttemptAt  time.Time // zero if none is due
	Events         []EventRef
	RedeliveryOf   string // the delivery that it repeats, or ""
	SplitOf        string // the failed delivery that its events were sent with before, or ""
	CreatedAt      time.Time
	CompletedAt    time.Time // zero until Status is final
	RecoveredAt    time.Time // when the last event of a failed delivery was delivered by another; zero while one is undelivered
	Splitting      bool      // it failed, and its events are being sent again in deliveries of their own

	Attempts []Attempt // only if the delivery was read by its ID
}

// MaxDeliveryBytes is the maximum size of the events of one delivery together. A
// larger event is sent alone. Web frameworks reject larger bodies by default: Express
// and NestJS those above 100 KB.
const MaxDeliveryBytes = 64 << 10

// BatchSize returns the maximum number of events per delivery to a subscription. maxEvents
// is the subscription's own maximum, 0 for none; batchSize is the operator's.
func BatchSize(batchSize, maxEvents int) int {
	if maxEvents == 0 {
		return batchSize
	}
	return min(batchSize, maxEvents)
}

// MaxOpenRedeliveries is the maximum number of redeliveries per subscription that are not
// completed.
const MaxOpenRedeliveries = 1000

// AppendBody appends the body of a delivery (spec, section 2.2) to dst. It is a pure
// function of the delivery's row and the stored JSON of its events, so every attempt sends
// the same bytes and they need not be stored. The IDs need no escaping: they are UUIDs and
// program IDs with a safe alphabet.
func AppendBody(dst []byte, id, subscriptionID, programID string, events [][]byte) []byte {
	dst = append(dst, `{"delivery_id":"`...)
	dst = append(dst, id...)
	dst = append(dst, `","subscription_id":"`...)
	dst = append(dst, subscriptionID...)
	dst = append(dst, `","program_id":"`...)
	dst = append(dst, programID...)
	dst = append(dst, `","events":[`...)
	for i, e := range events {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e...)
	}
	return append(dst, "]}"...)
}

// EventPing is the event of a ping. It can be subscribed to but not published.
const EventPing = "ping"

// EventVersion is the version of all event payloads (spec, section 9).
const EventVersion = "1"

// PingEvent returns the JSON of the event in a ping.
func PingEvent(id string, now time.Time) []byte {
	return []byte(`{"id":` + strconv.Quote(id) + `,"timestamp":"` + FormatTime(now) +
		`","name":"` + EventPing + `","version":"` + EventVersion + `"}`)
}
