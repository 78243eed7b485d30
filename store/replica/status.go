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

// Status says how well a replica follows the database.
type Status struct {
	State  State
	Target string // location of the replica without secrets; "" when it is off
	// Lag is the largest possible age of the oldest change that is not in the
	// replica; 0 when it has all changes. Changes are noticed every
	// monitor-interval.
	Lag         time.Duration
	LastSuccess time.Time // when the replica was last known to have every noticed change; zero for never
	Err         string    // why it fails; for admins
	// Term is the number of the term that the replication writes to, 0 for none yet,
	// and TermPath its path below the target. TermComplete is set when the newest
	// state can be restored from there alone, also by Litestream's own command.
	Term         int64
	TermPath     string
	TermComplete bool
	// AcknowledgeTimeout is that of [Replication.Acknowledge]; 0 for none.
	AcknowledgeTimeout time.Duration
	// VerifyInterval is the time between two comparisons of the content with the
	// database, 0 for none, and Verified the result of the last.
	VerifyInterval time.Duration
	Verified       Verification
}
