package webhook

import (
	"fmt"
	"time"
)

// Status returns active, erasing, importing, or the status of the program's move.
func (p *Program) Status() string {
	switch {
	case !p.ErasingSince.IsZero():
		return "erasing"
	case p.Move != nil:
		return p.Move.Status
	case !p.ImportingSince.IsZero():
		return "importing"
	}
	return "active"
}

// Erasure is the erasure of a program, which began with the request and continues in the
// background.
type Erasure struct {
	ProgramID string    `json:"program_id"`
	Began     time.Time `json:"began"`
	// Replica is the longest time that the replica keeps the program after the erasure has
	// finished; 0 without a replica.
	Replica  time.Duration `json:"replica"`
	Finished bool          `json:"finished"` // the database contains nothing of the program
}

// Notice says in sentences which copies keep the program, and for how long.
func (e *Erasure) Notice() string {
	replica := "There is no replica."
	if e.Replica > 0 {
		replica = fmt.Sprintf("The replica keeps it for at most %s after the erasure has finished, while the service replicates.",
			days(e.Replica))
	}
	return replica + " Backups, and copies of the database from before an upgrade or a restore, keep it until you delete them."
}

// days formats a duration in days if it is a whole number of them.
func days(d time.Duration) string {
	if d >= 24*time.Hour && d%(24*time.Hour) == 0 {
		return Count(int(d/(24*time.Hour)), "day")
	}
	return d.String()
}
