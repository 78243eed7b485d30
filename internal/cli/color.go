package cli

import (
	"io"
	"os"

	"service/internal/terminal"
)

// A color is the parameter of the terminal's sequence that begins it.
type color string

const (
	bold   color = "1"
	faint  color = "2"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
)

// colors says whether what a command prints is coloured.
type colors bool

// painter returns the colors for w: a terminal has them, unless NO_COLOR is set
// (no-color.org) or the terminal has none.
func painter(w io.Writer) colors {
	none, _ := os.LookupEnv("NO_COLOR")
	return colors(none == "" && moves(w))
}

// moves reports whether w is a terminal that obeys sequences.
func moves(w io.Writer) bool {
	kind, _ := os.LookupEnv("TERM")
	return terminal.Is(w) && kind != "dumb"
}

// paint returns s in a color.
func (c colors) paint(in color, s string) string {
	if !c || s == "" {
		return s
	}
	return "\x1b[" + string(in) + "m" + s + "\x1b[0m"
}
