package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Progress reports how far a long command is: on a terminal by one line that it overwrites,
// elsewhere only by notes. It is safe for concurrent use.
type Progress struct {
	w        io.Writer
	terminal bool

	mu    sync.Mutex
	shown bool      // whether there is a line to overwrite
	last  time.Time // when it was written
}

// NewProgress returns a Progress that writes to w.
func NewProgress(w io.Writer) *Progress {
	return &Progress{w: w, terminal: Is(w)}
}

// Is reports whether w is a terminal.
func Is(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Show overwrites the progress line, at most ten times per second. It does nothing unless the
// output is a terminal.
func (p *Progress) Show(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.terminal && now.Sub(p.last) > 100*time.Millisecond {
		p.last, p.shown = now, true
		fmt.Fprintf(p.w, "\r\x1b[K%s …", Line(fmt.Sprintf(format, args...)))
	}
}

// Note removes the progress line and writes a permanent line.
func (p *Progress) Note(format string, args ...any) {
	p.End()
	fmt.Fprintf(p.w, "service: %s\n", Line(fmt.Sprintf(format, args...)))
}

// End removes the progress line.
func (p *Progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		p.shown = false
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
