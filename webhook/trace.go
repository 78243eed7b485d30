package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Trace is the distributed trace that an event was published in: a traceparent of
// W3C Trace Context, version 00, or "" for none.
type Trace string

// TraceHeader is the header of a trace.
const TraceHeader = "Traceparent"

// The parts of a traceparent: version, trace-id, parent-id and flags, in
// hexadecimal, separated by dashes.
const (
	traceIDStart  = len("00-")
	traceIDEnd    = traceIDStart + 32
	parentIDStart = traceIDEnd + 1
	parentIDEnd   = parentIDStart + 16
	flagsStart    = parentIDEnd + 1
	traceLength   = flagsStart + 2
)

// ParseTrace parses the values of a [TraceHeader]. An invalid one is ignored, as
// the recommendation says. Of a later version, only the fields of version 00 are
// used.
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
	// Of the flags of a later version, only the last is known: sampled.
	sampled := "00"
	if n, _ := strconv.ParseUint(flags, 16, 8); n&1 == 1 {
		sampled = "01"
	}
	return Trace("00-" + traceID + "-" + parentID + "-" + sampled)
}

// isID reports whether s is lower-case hexadecimal and, unless zero, not all zeros.
func isID(s string, zero bool) bool {
	return strings.Trim(s, "0123456789abcdef") == "" && (zero || strings.Trim(s, "0") != "")
}

// ID returns the trace-id, "" without a trace.
func (t Trace) ID() string {
	if t == "" {
		return ""
	}
	return string(t[traceIDStart:traceIDEnd])
}

// Attempt returns the traceparent that an attempt sends, "" without a trace: the
// same trace with a span derived from the delivery's ID and the attempt's number,
// so that it can be computed again.
func (t Trace) Attempt(deliveryID string, number int) string {
	if t == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("span " + deliveryID + " " + strconv.Itoa(number)))
	sum[0] |= 1 // never all zeros
	return string(t[:parentIDStart]) + hex.EncodeToString(sum[:8]) + string(t[parentIDEnd:])
}
