package cli

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// configErrors collects the errors of a configuration, so that a command reports all of them at
// once before it does anything. Flags are therefore strings for kong, and the methods of
// configErrors parse them.
type configErrors []configError

// configError is an error of one flag.
type configError struct {
	flag string // its name; empty if the text names the setting
	text string
}

func (f configError) String() string {
	if f.flag == "" {
		return f.text
	}
	return "--" + f.flag + ": " + f.text
}

func (f *configErrors) add(flag, format string, args ...any) {
	*f = append(*f, configError{flag, fmt.Sprintf(format, args...)})
}

// Error lists all errors, missing flags first.
func (f configErrors) Error() string {
	var missing, wrong []string
	reason := ""
	for _, one := range f {
		rest, required := strings.CutPrefix(one.text, isRequired)
		if !required || one.flag == "" || rest != "" && rest[0] != ':' {
			wrong = append(wrong, one.String())
			continue
		}
		missing, reason = append(missing, "--"+one.flag), rest
	}
	text := strings.Join(wrong, "; ")
	if len(wrong) > 1 {
		text = fmt.Sprintf("%d settings are wrong: %s", len(wrong), text)
	}
	switch len(missing) {
	case 0:
		return text
	case 1:
		text = "missing flag " + missing[0] + reason + "; " + text
	default:
		text = "missing flags: " + strings.Join(missing, ", ") + "; " + text
	}
	return strings.TrimSuffix(text, "; ")
}

// isRequired begins the error for a missing flag. A reason may follow a colon.
const isRequired = "is required"

// err returns the errors as one usage error that wraps f, or nil.
func (f configErrors) err() error {
	if len(f) == 0 {
		return nil
	}
	return usageError{f}
}

// integer parses a whole number between least and most, inclusive.
func (f *configErrors) integer(flag, s string, least, most int) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		f.add(flag, "must be a whole number from %d to %d, not %q", least, most, s)
	}
	return n
}

// share parses a number from 0 to 1.
func (f *configErrors) share(flag, s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(x) || x < 0 || x > 1 {
		f.add(flag, "must be a number from 0 to 1, not %q", s)
	}
	return x
}

// duration parses a duration between least and most, inclusive.
func (f *configErrors) duration(flag, s string, least, most time.Duration) time.Duration {
	d, err := parseDuration(s)
	switch {
	case err != nil:
		f.add(flag, "%v", err)
	case d < least || d > most:
		f.add(flag, "must be from %s to %s, not %q", formatDuration(least), formatDuration(most), s)
	}
	return d
}

// size parses a number of bytes such as 256MB or 1GiB. It returns -1 for auto.
func (f *configErrors) size(flag, s string) int64 {
	if s == "auto" {
		return -1
	}
	digits := strings.TrimRight(s, "KMGTiB")
	n, err := strconv.ParseInt(digits, 10, 64)
	unit, ok := sizeUnits[s[len(digits):]]
	if err != nil || !ok || n < 0 || n > math.MaxInt64/unit {
		f.add(flag, "must be auto, 0 or a size such as 256MB or 1GiB, not %q", s)
		return 0
	}
	return n * unit
}

var sizeUnits = map[string]int64{
	"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// choice checks that s is one of the words.
func (f *configErrors) choice(flag, s string, words ...string) string {
	for _, w := range words {
		if s == w {
			return s
		}
	}
	f.add(flag, "must be %s, not %q", strings.Join(words, " or "), s)
	return s
}

// address checks that s is HOST:PORT and returns the host.
func (f *configErrors) address(flag, s string) (host string) {
	host, port, err := net.SplitHostPort(s)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		f.add(flag, "must be an address such as 127.0.0.1:8443, not %q", s)
		return ""
	}
	return host
}

// onLoopback reports whether the host of a listen address is reachable only from this
// host. Names other than localhost do not count: DNS can change.
func onLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// parseDuration parses a duration in Go's syntax, with d for days of 24 hours in addition:
// 90d, 1d12h, 30m, 250ms. Negative durations are errors.
func parseDuration(s string) (time.Duration, error) {
	errInvalid := fmt.Errorf("must be a duration such as 90d, 12h, 30m or 10s, not %q", s)
	rest := s
	var days time.Duration
	if before, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/(24*time.Hour)) {
			return 0, errInvalid
		}
		days, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") || d > math.MaxInt64-days {
		return 0, errInvalid
	}
	return days + d, nil
}

// formatDuration formats a duration for parseDuration, in the largest unit that divides
// it: 2d, 90m, 10s.
func formatDuration(d time.Duration) string {
	switch {
	case d >= 24*time.Hour && d%(24*time.Hour) == 0:
		return strconv.FormatInt(int64(d/(24*time.Hour)), 10) + "d"
	case d >= time.Hour && d%time.Hour == 0:
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	case d >= time.Minute && d%time.Minute == 0:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	}
	return d.String()
}

// maxSecretFile bounds the file that a secret is read from, in bytes.
const maxSecretFile = 64 << 10

// secret returns the secret from a pair of flags: the value itself, or the only line of a file. It
// returns "" if neither is set. Its errors never contain the secret.
func secret(flag, value, file string) (string, error) {
	switch {
	case value != "" && file != "":
		return "", usagef("--%s and --%s-file are mutually exclusive; set one", flag, flag)
	case file == "":
		return value, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("--%s-file: %w", flag, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	if err != nil {
		return "", fmt.Errorf("--%s-file: %w", flag, err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" || len(b) > maxSecretFile || strings.ContainsAny(s, "\r\n") {
		return "", fmt.Errorf("--%s-file: %s must have exactly one line, the secret", flag, file)
	}
	return s, nil
}
