package cli

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	tests := []struct {
		in   string
		want time.Duration
		ok   bool
	}{
		{"90d", 90 * day, true},
		{"0d", 0, true},
		{"1d12h", 36 * time.Hour, true},
		{"30m", 30 * time.Minute, true},
		{"250ms", 250 * time.Millisecond, true},
		{"0s", 0, true},
		{"0", 0, true},
		{"106751d", 106751 * day, true},
		{"", 0, false},
		{"d", 0, false},
		{"90", 0, false},
		{"-1h", 0, false},
		{"-1d", 0, false},
		{"+1d", 0, false},
		{"+1h", 0, false},
		{"1d-1h", 0, false},
		{"1d1d", 0, false},
		{"1.5d", 0, false},
		{"106752d", 0, false}, // overflows time.Duration
		{"106751d24h", 0, false},
		{"99999999999d", 0, false},
		{"1h d", 0, false},
	}
	for _, test := range tests {
		got, err := parseDuration(test.in)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("parseDuration(%q) = %v, %v; want %v, ok %t", test.in, got, err, test.want, test.ok)
		}
		if err != nil {
			continue
		}
		if again, err := parseDuration(formatDuration(got)); err != nil || again != got {
			t.Errorf("formatDuration(%v) = %q, which reads as %v, %v", got, formatDuration(got), again, err)
		}
	}
	if _, err := parseDuration(formatDuration(math.MaxInt64)); err != nil {
		t.Errorf("the longest duration: %v", err)
	}
}

func TestSize(t *testing.T) {
	for in, want := range map[string]int64{
		"auto": -1, "0": 0, "7": 7, "512B": 512, "256MB": 256e6, "1GiB": 1 << 30, "3TiB": 3 << 40,
		"": 0, "-1": 0, "MB": 0, "1.5GB": 0, "1 GB": 0, "1gb": 0, "1GBB": 0, "9000000TiB": 0, "auto ": 0, "0x10": 0,
	} {
		var f configErrors
		got, wrong := f.size("min-free-disk", in), want == 0 && in != "0"
		if got != want || (f.err() != nil) != wrong {
			t.Errorf("size(%q) = %d, %v; want %d, an error: %v", in, got, f.err(), want, wrong)
		}
	}
}

func TestOnLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.1.2.3": true, "::1": true, "localhost": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "example.com": false, "localhost.example.com": false,
		"127.0.0.1.example.com": false, "0177.0.0.1": false,
	} {
		if got := onLoopback(host); got != want {
			t.Errorf("onLoopback(%q) = %t, want %t", host, got, want)
		}
	}
}

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string { return writeFile(t, filepath.Join(dir, name), content) }
	tests := []struct {
		name, value, file string
		want              string
		err               string // "" is none
	}{
		{name: "neither"},
		{name: "the value", value: "hush", want: "hush"},
		{name: "the file", file: file("one", "hush\n"), want: "hush"},
		{name: "both", value: "hush", file: file("both", "hush"), err: "--token and --token-file are mutually exclusive; set one"},
		{name: "empty", file: file("empty", "\n"), err: "must have exactly one line"},
		{name: "two lines", file: file("two", "hush\nhush"), err: "must have exactly one line"},
		{name: "too long", file: file("long", strings.Repeat("x", maxSecretFile+1)), err: "must have exactly one line"},
		{name: "missing", file: filepath.Join(dir, "missing"), err: "no such file"},
	}
	for _, test := range tests {
		got, err := secret("token", test.value, test.file)
		if got != test.want || !matches(err, test.err) {
			t.Errorf("%s: got %q, %v; want %q, %q", test.name, got, err, test.want, test.err)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error contains the secret: %v", test.name, err)
		}
	}
}

// matches reports whether err contains text, or is nil if text is empty.
func matches(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}
