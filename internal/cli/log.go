package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"

	"service/internal/terminal"
)

// newLogger returns a logger that writes a line for each record, as text or JSON,
// of which nothing can be forged: text from outside is quoted by its handler, so
// that it ends no line and begins no field, and what a terminal would obey is
// escaped.
func newLogger(w io.Writer, format string, least slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: least}
	w = plainLines{w}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// plainLines lets lines through of which each comes in one Write, as slog's do.
// Characters that steer a terminal, which JSON may hold as they are, and bytes
// that are no UTF-8 are written as JSON and Go escape them. They stand within
// quotes: nothing else of a record is anybody's choice.
type plainLines struct{ w io.Writer }

func (p plainLines) Write(line []byte) (int, error) {
	if _, err := p.w.Write(plain(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// plain returns the line itself when nothing in it is to be escaped, which is
// nearly always.
func plain(line []byte) []byte {
	end := len(line)
	if end > 0 && line[end-1] == '\n' {
		end--
	}
	ascii := true
	for _, c := range line[:end] {
		if c < ' ' || c >= 0x7f {
			ascii = false
			break
		}
	}
	if ascii {
		return line
	}
	var b bytes.Buffer
	for rest := line[:end]; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			b.WriteString(`\ufffd`)
		case terminal.Unsafe(r) && r != utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.Write(rest[:size])
		}
		rest = rest[size:]
	}
	b.Write(line[end:])
	return b.Bytes()
}
