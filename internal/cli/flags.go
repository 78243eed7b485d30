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

// configErrors collects what is wrong with a configuration: a command reports all of
// it at once, before it touches anything. Flags are therefore strings on the
// command line, and are parsed by the methods of configErrors.
type configErrors []configError

// configError is an error of one flag.
type configError struct {
	flag string // its name; "" when the text says what it is about
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

// Error tells all the faults.
func (f configErrors) Error() string {
	var all []string
	for _, one := range f {
		all = append(all, one.String())
	}
	if len(all) == 1 {
		return all[0]
	}
	return fmt.Sprintf("%d settings are wrong: %s", len(all), strings.Join(all, "; "))
}

// err returns all the faults as one usage error, which wraps them, or nil.
func (f configErrors) err() error {
	if len(f) == 0 {
		return nil
	}
	return usageError{f}
}

// integer reads a whole number between least and most.
func (f *configErrors) integer(flag, s string, least, most int) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		f.add(flag, "must be a whole number from %d to %d, not %q", least, most, s)
	}
	return n
}

// share reads a number between 0 and 1.
func (f *configErrors) share(flag, s string) float64 {
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(x) || x < 0 || x > 1 {
		f.add(flag, "must be a number from 0 to 1, not %q", s)
	}
	return x
}

// duration reads a duration between least and most.
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

// size reads a number of bytes such as 256MB or 1GiB, or auto, which is -1.
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

// choice reads one of the words.
func (f *configErrors) choice(flag, s string, words ...string) string {
	for _, w := range words {
		if s == w {
			return s
		}
	}
	f.add(flag, "must be %s, not %q", strings.Join(words, " or "), s)
	return s
}

// address reads HOST:PORT, and returns the host.
func (f *configErrors) address(flag, s string) (host string) {
	host, port, err := net.SplitHostPort(s)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		f.add(flag, "must be an address such as 127.0.0.1:8443, not %q", s)
		return ""
	}
	return host
}

// onLoopback says whether a host of a listen address can be reached from this
// machine alone. A name other than localhost could come to mean anything.
func onLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// parseDuration reads a duration as Go writes it, with d for days of 24 hours
// as well: 90d, 1d12h, 30m, 250ms. It is never negative.
func parseDuration(s string) (time.Duration, error) {
	wrong := fmt.Errorf("must be a duration such as 90d, 12h, 30m or 10s, not %q", s)
	rest := s
	var days time.Duration
	if before, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(before, 10, 32)
		if err != nil || n > uint64(math.MaxInt64/(24*time.Hour)) {
			return 0, wrong
		}
		days, rest = time.Duration(n)*24*time.Hour, after
		if rest == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "+") || d > math.MaxInt64-days {
		return 0, wrong
	}
	return days + d, nil
}

// formatDuration renders a duration as parseDuration reads it, in the largest
// unit that fits: 2d, 90m, 10s.
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

// secret returns the secret that a pair of flags gives: the value itself, or
// the first and only line of a file. It returns "" when neither was given. No
// error holds the secret.
func secret(flag, value, file string) (string, error) {
	switch {
	case value != "" && file != "":
		return "", usagef("--%s and --%s-file are both given; give one", flag, flag)
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
		return "", fmt.Errorf("--%s-file: %s must hold one line, the secret", flag, file)
	}
	return s, nil
}
