package webhook

import "time"

// Statuses of a program that is on its way between two installations.
const (
	ProgramMoving   = "moving"   // frozen here while it is copied to the other installation
	ProgramMoved    = "moved"    // complete in the other installation
	ProgramArriving = "arriving" // complete here, but not active yet
)

// ProgramMove is the move of a program to or from another installation.
type ProgramMove struct {
	ID     string // a UUID, the same in both installations
	Status string // ProgramMoving, ProgramMoved or ProgramArriving
	// URL is the base URL of the other installation, "" while the program arrives here for the
	// first time.
	URL     string
	CA      string // certificates in PEM that verify it; "" for the system's
	BeganAt time.Time
	// Forwards reports that the other installation is active, so that requests of the program
	// are forwarded to URL. Without it they get 503 until the move ends.
	Forwards bool
}

// MoveNone is the status of a program in an installation where it does not exist.
const MoveNone = "none"

// MoveState is what an installation knows about a program that may move there.
type MoveState struct {
	Status   string `json:"status"`   // MoveNone, or that of the program
	MoveID   string `json:"move_id"`  // of a moved or arriving program, or ""
	Forwards bool   `json:"forwards"` // its requests are forwarded to another installation
	Format   int    `json:"format"`   // of exports
	Schema   int    `json:"schema"`   // of the database
	Version  string `json:"service_version"`
}

// Unavailable returns the error for requests of a program that cannot be used during a move.
func (m *ProgramMove) Unavailable(programID string) *Error {
	text := "The program " + programID + " is being moved to another installation."
	switch {
	case m.Status == ProgramArriving:
		text = "The program " + programID + " is being moved to this installation."
	case m.Forwards:
		text = "The program " + programID + " has moved to " + m.URL + ", which cannot be reached now."
	}
	return NewError(CodeUnavailable, text+" Retry the request in a few seconds.")
}
