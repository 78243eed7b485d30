package cli

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"

	"service/internal/terminal"
)

// newLogger returns a logger that writes one line per record, as text or JSON. Outside text
// cannot forge lines or fields because slog quotes it, and cannot control a terminal because
// plainLines escapes it.
func newLogger(w io.Writer, format string, minLevel slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: minLevel, ReplaceAttr: spelledLog}
	w = plainLines{w}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// plainLines escapes terminal control characters and invalid UTF-8 in log lines. Each line must be
// written by one Write, as slog does. The escapes are valid in JSON and Go strings, and outside
// text occurs only inside quotes.
type plainLines struct{ w io.Writer }

func (p plainLines) Write(line []byte) (int, error) {
	if _, err := p.w.Write(plain(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}

// plain returns line with escapes, or line itself if it needs none.
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
