package ui

import (
	"testing"
	"time"
)

func TestTimes(t *testing.T) {
	const day = 24 * time.Hour
	for _, tt := range []struct {
		d            time.Duration
		span, uptime string
	}{
		{-time.Hour, "0 s", "0 s"}, // the clock was set back
		{0, "0 s", "0 s"},
		{999 * time.Millisecond, "0 s", "0 s"},
		{59*time.Second + 999*time.Millisecond, "59 s", "59 s"},
		{time.Minute, "1 min", "1 min"},
		{time.Hour - 1, "59 min", "59 min"},
		{time.Hour, "1 h", "1 h 0 min"},
		{3*time.Hour + 20*time.Minute, "3 h", "3 h 20 min"},
		{2*day - 1, "47 h", "1 d 23 h"},
		{2 * day, "2 d", "2 d 0 h"},
		{400*day + 5*time.Hour, "400 d", "400 d 5 h"},
	} {
		if got := Duration(tt.d); got != tt.span {
			t.Errorf("span(%v): got %q, want %q", tt.d, got, tt.span)
		}
		if got := Uptime(tt.d); got != tt.uptime {
			t.Errorf("uptime(%v): got %q, want %q", tt.d, got, tt.uptime)
		}
	}
	now := time.Unix(1e9, 0)
	for d, want := range map[time.Duration]string{-time.Hour: "now", 0: "now", 90 * time.Second: "in 1 min"} {
		if got := Until(now.Add(d), now); got != want {
			t.Errorf("until(%v): got %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "< 1 ms", 999 * time.Millisecond: "999 ms", 10 * time.Second: "10.0 s"} {
		if got := Latency(d); got != want {
			t.Errorf("latency(%v): got %q, want %q", d, got, want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000",
		1<<63 - 1: "9,223,372,036,854,775,807"} {
		if got := Number(n); got != want {
			t.Errorf("grouped(%d): got %q, want %q", n, got, want)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 256 << 20: "256 MiB", 256<<20 - 1: "255 MiB", 1<<30 - 1: "1023 MiB", 3 << 29: "1.5 GiB",
		2<<30 - 1: "1.9 GiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := ByteSize(n); got != want {
			t.Errorf("size(%d): got %q, want %q", n, got, want)
		}
	}
}

func TestSplitID(t *testing.T) {
	for id, want := range map[string][2]string{
		"0195f2c0-1111-7222-8333-0123456789ab": {"0195f2c0-1111-7222-8333-0123", "456789ab"},
		"short":                                {"", "short"},
		"northwind-production":                 {"", "northwind-production"},
		"":                                     {"", ""},
	} {
		if head, tail := splitID(id); head != want[0] || tail != want[1] {
			t.Errorf("splitID(%q): got %q, %q", id, head, tail)
		}
	}
}
