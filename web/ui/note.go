package ui

// Note is the result of a POST, which the next page shows once. It must hold no
// secret: it travels through the browser in a cookie.
type Note struct {
	Kind NoteKind `json:"k"`
	Text string   `json:"t"`
}

// NoteKind is the state whose color and symbol a note has.
type NoteKind string

const (
	NoteSuccess NoteKind = "success"
	NoteFailed  NoteKind = "failed"
	NoteWarning NoteKind = "retryable" // needs attention
	NotePending NoteKind = "pending"   // happens without action
)
