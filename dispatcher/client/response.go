package client

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// headerText formats the headers of a response, one line per value, sorted by name. It
// returns valid UTF-8 of at most maxResponseHeader bytes.
func headerText(resp *http.Response) string {
	var scratch [16]string
	names := scratch[:0]
	size := 0
	for name, values := range resp.Header {
		names = append(names, name)
		for _, v := range values {
			size += len(name) + len(v) + len(": \n")
		}
	}
	slices.Sort(names)
	var b strings.Builder
	b.Grow(size)
	for _, name := range names {
		for _, v := range resp.Header[name] {
			b.WriteString(name)
			b.WriteString(": ")
			b.WriteString(v)
			b.WriteByte('\n')
		}
	}
	text := strings.ToValidUTF8(b.String(), "\uFFFD")
	if len(text) > maxResponseHeader {
		text = strings.ToValidUTF8(text[:maxResponseHeader], "")
	}
	return text
}

// retryAfter parses a Retry-After header into the wait from now on, 0 for none, at
// most webhook.MaxRetryAfter.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(webhook.MaxRetryAfter/time.Second) {
			return webhook.MaxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), webhook.MaxRetryAfter)
}
