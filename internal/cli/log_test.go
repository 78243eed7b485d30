package cli

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"unicode/utf8"

	"service/test/harness"
)

// TestLogInjection checks that hostile text adds no lines or fields to a record.
func TestLogInjection(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var log bytes.Buffer
		logger := newLogger(&log, format, slog.LevelDebug)
		for _, text := range harness.HostileTexts {
			logger.Error(text, "error", fmt.Errorf("it failed: %s", text), "text", text, slog.Group("of", "it", text))
		}
		lines := harness.ParseLog(t, format, log.Bytes())
		if len(lines) != len(harness.HostileTexts) {
			t.Fatalf("%s: got %d lines, want %d:\n%s", format, len(lines), len(harness.HostileTexts), &log)
		}
		for i, fields := range lines {
			want := []string{"error", "level", "msg", "text", "time"}
			got := []string{}
			for name := range fields {
				if name != "of" && name != "of.it" {
					got = append(got, name)
				}
			}
			if slices.Sort(got); !slices.Equal(got, want) || fields["level"] != "ERROR" {
				t.Errorf("%s: %q: got the fields %v, want %v", format, harness.HostileTexts[i], fields, want)
			}
			if want := harness.HostileTexts[i]; utf8.ValidString(want) && format == "json" && (fields["text"] != want || fields["msg"] != want) {
				t.Errorf("got %q, want %q", fields["text"], want)
			}
		}
	}
}
