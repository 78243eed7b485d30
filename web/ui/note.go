package ui

// Note is the result of a POST, which the next page shows once. It must not contain a secret: a
// cookie carries it through the browser.
type Note struct {
	Kind NoteKind `json:"k"`
	Text string   `json:"t"`
}

// NoteKind is the state that sets a note's color and symbol.
type NoteKind string

const (
	NoteSuccess NoteKind = "success"
	NoteFailed  NoteKind = "failed"
	NoteWarning NoteKind = "retryable" // needs attention
	NotePending NoteKind = "pending"   // an action is in progress
)
