package client

import (
	"bytes"
	"errors"
	"slices"
)

// header limits the memory that a response header takes while it is read. It passes on the
// status line and whole header lines, and drops the rest beyond the limits: an oversized
// header must not affect the status. A value is never cut in two, since the beginning of a
// secret could not be found in it.
type header struct {
	reading    bool   // the header is being read
	statusLine bool   // its first line is being read
	bytes      int    // passed on, of this header
	total      int    // received, of this header and those of the 1xx responses before it
	lines      int    // received, of this header and those of the 1xx responses before it
	framing    int    // lines passed on beyond the limits
	cut        bool   // a line was dropped
	dropped    bool   // the last line was
	held       []byte // a line that is not complete
	overflow   bool   // held lacks the end of what was received
	err        error  // the header is too long to wait for its end; permanent
}

var errLongHeader = errors.New("response header too long")

// start begins a header.
func (h *header) start() {
	h.reading, h.statusLine, h.bytes, h.dropped = true, true, 0, false
}

// filter takes bytes that were received, and returns the bytes to parse, which can be more
// if a line was held. It overwrites p, and the result may be part of it.
func (h *header) filter(p []byte) []byte {
	kept := p[:0]
	if len(h.held) > 0 || h.overflow {
		kept = nil // its writes could overtake the reads of p
	}
	for h.reading && len(p) > 0 {
		n := bytes.IndexByte(p, '\n') + 1
		ended := n > 0
		if !ended {
			n = len(p)
		}
		if h.total += n; h.total > maxHeaderRead {
			h.err = errLongHeader
			return nil
		}
		part := p[:n]
		p = p[n:]
		switch {
		case h.statusLine:
			kept = append(kept, h.status(part, ended)...)
		case !ended:
			h.hold(part)
		case len(h.held) > 0 || h.overflow:
			h.hold(part)
			if h.keeps(h.held, h.overflow) {
				kept = append(kept, h.held...)
			}
			h.held, h.overflow = h.held[:0], false
		case h.keeps(part, false):
			kept = append(kept, part...)
		}
	}
	if !h.reading {
		h.held = nil
	}
	return append(kept, p...)
}

// status returns the part of the status line to pass on: all bytes up to the limit. It is
// not held back, so that the start of the response is known.
func (h *header) status(part []byte, ended bool) []byte {
	if room := max(maxResponseHeader-h.bytes-1, 0); len(part) > room {
		h.cut = true
		if ended {
			part = append(part[:room], '\n')
		} else {
			part = part[:room]
		}
	}
	h.bytes += len(part)
	if ended {
		h.statusLine = false
		h.lines++
	}
	return part
}

// hold appends a part of a line to held, as far as the line may be needed.
func (h *header) hold(part []byte) {
	room := maxFramingLine
	if !h.cut {
		room = max(room, maxResponseHeader-h.bytes)
	}
	if room = max(room-len(h.held), 0); len(part) > room {
		part, h.overflow = part[:room], true
	}
	h.held = append(h.held, part...)
}

// keeps reports whether a complete line is passed on. A blank line ends the header.
func (h *header) keeps(line []byte, overflow bool) bool {
	h.lines++
	if len(bytes.TrimRight(line, "\r\n")) == 0 && !overflow {
		h.reading = false
		return true
	}
	keep := !h.cut && !overflow && h.lines <= maxResponseLines && h.bytes+len(line) <= maxResponseHeader
	switch {
	case line[0] == ' ' || line[0] == '\t': // continues the line before
		keep = keep && !h.dropped
	case !keep && !overflow && len(line) <= maxFramingLine && h.framing < maxFramingLines && isFraming(line):
		keep = true
		h.framing++
	}
	if h.dropped = !keep; keep {
		h.bytes += len(line)
	} else {
		h.cut = true
	}
	return keep
}

// isFraming reports whether the client needs a header line to find the end of the body,
// to treat the connection, or to wait.
func isFraming(line []byte) bool {
	name, _, _ := bytes.Cut(line, []byte(":"))
	return slices.ContainsFunc(framing, func(f string) bool { return bytes.EqualFold(name, []byte(f)) })
}

var framing = []string{"Content-Length", "Transfer-Encoding", "Connection", "Retry-After"}
