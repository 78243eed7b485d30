package webhook

import (
	"strconv"
	"strings"
)

// ByteSize formats a number of bytes in units of 1,024.
func ByteSize(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v >= 100 {
		return strconv.FormatInt(int64(v), 10) + " " + units[i]
	}
	// Truncate instead of rounding, so a size just below a limit does not look like
	// it.
	return strconv.FormatFloat(float64(int64(v*10))/10, 'f', 1, 64) + " " + units[i]
}

// OrNull returns a pointer to v for a field of a record, nil for the zero value: null in JSON.
func OrNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// Shorten returns a text, or its first bytes up to a limit and an ellipsis if it is longer.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "") + "…"
}
