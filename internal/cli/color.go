package cli

import (
	"io"
	"os"

	"service/internal/terminal"
)

// color is the parameter of an ANSI escape sequence (SGR).
type color string

const (
	bold   color = "1"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
)

// colors reports whether a command colors its output.
type colors bool

// painter returns the colors for w: on for a capable terminal unless NO_COLOR is set
// (no-color.org).
func painter(w io.Writer) colors {
	none, _ := os.LookupEnv("NO_COLOR")
	return colors(none == "" && supportsEscapes(w))
}

// supportsEscapes reports whether w is a terminal that understands escape sequences.
func supportsEscapes(w io.Writer) bool {
	kind, _ := os.LookupEnv("TERM")
	return terminal.Is(w) && kind != "dumb"
}

// paint returns s in the given color.
func (c colors) paint(in color, s string) string {
	if !c || s == "" {
		return s
	}
	return "\x1b[" + string(in) + "m" + s + "\x1b[0m"
}
