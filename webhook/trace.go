package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// Trace is the place in a distributed trace that an event was published from:
// a traceparent of W3C Trace Context, version 00, or "" for none.
type Trace string

// TraceHeader is the header that a trace travels in.
const TraceHeader = "Traceparent"

// The parts of a traceparent: version, trace-id, parent-id and flags, in
// hexadecimal digits with dashes between.
const (
	traceIDStart  = len("00-")
	traceIDEnd    = traceIDStart + 32
	parentIDStart = traceIDEnd + 1
	parentIDEnd   = parentIDStart + 16
	flagsStart    = parentIDEnd + 1
	traceLength   = flagsStart + 2
)

// ParseTrace reads the values of a [TraceHeader]. One that is not as W3C Trace
// Context wants it is no trace, and no error: the recommendation says to go on
// without. Of a later version as much is read as version 00 has.
func ParseTrace(values []string) Trace {
	if len(values) != 1 {
		return ""
	}
	s := values[0]
	if len(s) < traceLength || s[traceIDStart-1] != '-' || s[traceIDEnd] != '-' || s[parentIDEnd] != '-' {
		return ""
	}
	version, traceID, parentID, flags := s[:2], s[traceIDStart:traceIDEnd], s[parentIDStart:parentIDEnd], s[flagsStart:traceLength]
	if !isID(version, true) || version == "ff" || !isID(traceID, false) || !isID(parentID, false) || !isID(flags, true) {
		return ""
	}
	switch rest := s[traceLength:]; {
	case rest == "" && version == "00":
		return Trace(s)
	case version == "00", rest != "" && rest[0] != '-':
		return ""
	}
	// Of a later version's flags the last alone is known: sampled.
	sampled := "00"
	if n, _ := strconv.ParseUint(flags, 16, 8); n&1 == 1 {
		sampled = "01"
	}
	return Trace("00-" + traceID + "-" + parentID + "-" + sampled)
}

// isID says whether s is lower-case hexadecimal, and not all zeros unless they
// mean something.
func isID(s string, zero bool) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '1' && c <= '9' || c >= 'a' && c <= 'f':
			zero = true
		case c != '0':
			return false
		}
	}
	return zero
}

// ID is what all spans of the trace share, "" without a trace.
func (t Trace) ID() string {
	if t == "" {
		return ""
	}
	return string(t[traceIDStart:traceIDEnd])
}

// Attempt is the traceparent that an attempt sends on, "" without a trace: the
// same trace, and a span of its own, which is made of the delivery's id and
// the attempt's number, so that it can be told again later.
func (t Trace) Attempt(deliveryID string, number int) string {
	if t == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("span " + deliveryID + " " + strconv.Itoa(number)))
	sum[0] |= 1 // never all zeros
	return string(t[:parentIDStart]) + hex.EncodeToString(sum[:8]) + string(t[parentIDEnd:])
}
