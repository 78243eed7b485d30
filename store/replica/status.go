package replica

import "time"

// State is the state of a replication.
type State string

// The states of a replication.
const (
	StateOpening State = "opening" // the replica has not been reached since the start
	StateRunning State = "running" // the replica follows the database
	StateFailing State = "failing" // the replica does not follow the database; it is retried
)

// Status is the status of a replication.
type Status struct {
	State  State
	Target string // location of the replica without secrets; "" without replication
	// Lag is the maximum age of the oldest change that is not in the replica, or 0 if it
	// contains all changes. Changes are detected every monitor-interval.
	Lag         time.Duration
	LastSuccess time.Time // when the replica was last known to contain every detected change; zero for never
	Err         string    // why it fails; for admins
	Cause       Cause     // the same in one word, "" for damaged content
	// Term is the number of the term to which the replication writes, or 0 before it has
	// one. TermPath is its path relative to the target. TermComplete means that the newest
	// state can be restored from there alone, even with Litestream's own command.
	Term         int64
	TermPath     string
	TermComplete bool
	// AcknowledgeTimeout is the timeout of [Replication.Acknowledge], or 0.
	AcknowledgeTimeout time.Duration
	// VerifyInterval is the time between two comparisons of the content with the
	// database, or 0. Verified is the last result.
	VerifyInterval time.Duration
	Verified       Verification
}
