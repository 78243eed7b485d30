package webhook

import (
	"strconv"
	"time"
)

// Status says where a delivery stands. docs/architecture.md draws the states,
// the schema checks them, and delivery_test.go walks every transition.
type Status string

const (
	StatusPending   Status = "pending"   // waits for its first attempt, or an attempt is under way
	StatusRetryable Status = "retryable" // will be tried again
	StatusSuccess   Status = "success"   // final
	StatusFailed    Status = "failed"    // final
)

// Final says whether nothing more will be sent.
func (s Status) Final() bool { return s == StatusSuccess || s == StatusFailed }

// FailureReason says why a delivery failed for good.
type FailureReason string

const (
	FailureNone                FailureReason = ""
	FailureAttemptsExhausted   FailureReason = "attempts_exhausted"
	FailureRejected            FailureReason = "rejected"
	FailureBlocked             FailureReason = "blocked"
	FailureSubscriptionDeleted FailureReason = "subscription_deleted"
	FailureExpired             FailureReason = "expired"   // it waited until it was older than the retention
	FailureCancelled           FailureReason = "cancelled" // an admin called it off
)

// FailureReasons returns every failure reason but FailureNone.
func FailureReasons() []FailureReason {
	return []FailureReason{FailureAttemptsExhausted, FailureRejected, FailureBlocked, FailureSubscriptionDeleted, FailureExpired, FailureCancelled}
}

// EventRef is what a delivery's record says of one of its events.
type EventRef struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Delivery is one HTTP POST owed to one subscription (spec, section 2.2). Its
// id, its events and so its bytes never change.
type Delivery struct {
	ID             string
	SubscriptionID string
	ProgramID      string
	Status         Status
	FailureReason  FailureReason
	AttemptsMade   int       // counted, durably, before each is sent
	NextAttemptAt  time.Time // zero when none is due
	Events         []EventRef
	RedeliveryOf   string // the delivery whose events these are, or ""
	CreatedAt      time.Time
	CompletedAt    time.Time // zero until the status is final

	Attempts []Attempt // only when read singly
}

// MaxDeliveryBytes bounds the events that are put into one delivery together.
// A single larger event still travels, alone.
const MaxDeliveryBytes = 512 << 10

// MaxOpenRedeliveries is how many redeliveries of one subscription may be open:
// that have neither succeeded nor finally failed.
const MaxOpenRedeliveries = 1000

// AppendBody appends the body of a delivery (spec, section 2.2) to dst: a pure
// function of the delivery's row and the stored JSON of its events, so that
// every attempt sends the same bytes though they are not stored twice. The ids
// need no escaping: they are UUIDs, and program ids of a safe alphabet.
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

// EventPing is the name of the event that a ping carries. It can be subscribed
// to, but not published.
const EventPing = "ping"

// EventVersion is the version of every event's payload (spec, section 9).
const EventVersion = "1"

// PingEvent returns the JSON of the one event of a ping.
func PingEvent(id string, now time.Time) []byte {
	return []byte(`{"id":` + strconv.Quote(id) + `,"timestamp":"` + FormatTime(now) +
		`","name":"` + EventPing + `","version":"` + EventVersion + `"}`)
}
