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

// Whatever a text holds, a record is one line, and has the fields that it was
// given.
func TestLogIsNotForged(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var log bytes.Buffer
		logger := newLogger(&log, format, slog.LevelDebug)
		for _, text := range harness.HostileTexts {
			logger.Error(text, "error", fmt.Errorf("it failed: %s", text), "text", text, slog.Group("of", "it", text))
		}
		lines := harness.ParseLog(t, format, log.Bytes())
		if len(lines) != len(harness.HostileTexts) {
			t.Fatalf("%s: %d lines of %d records:\n%s", format, len(lines), len(harness.HostileTexts), &log)
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
				t.Errorf("%s: %q has the fields %v", format, harness.HostileTexts[i], fields)
			}
			if utf8.ValidString(harness.HostileTexts[i]) && format == "json" && (fields["text"] != harness.HostileTexts[i] || fields["msg"] != harness.HostileTexts[i]) {
				t.Errorf("%q reads as %q", harness.HostileTexts[i], fields["text"])
			}
		}
	}
}
