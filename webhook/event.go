package webhook

import "time"

// The limits of publishing.
const (
	MaxEventBytes    = 256 << 10 // one event
	MaxPublishEvents = 1000      // events in one request that is stored all or not at all
)

// Event is something that happened, as published. It is immutable.
type Event struct {
	ProgramID  string
	Seq        int64 // its place in its program's log: dense, from 1, in accept order
	ID         string
	Name       string
	Version    string
	Timestamp  string // ISO 8601 UTC, as published
	ReceivedAt time.Time
	JSON       []byte // the whole object exactly as delivered, compact

	// TimestampGiven tells a publisher's own timestamp from one that was
	// filled in, which differs each time the same event is published.
	// It is not stored.
	TimestampGiven bool
}
