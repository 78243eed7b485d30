package web

import (
	"testing"
	"time"

	"service/web/ui"
	"service/webhook"
)

func TestHistogramRange(t *testing.T) {
	now := time.Date(2026, 3, 14, 8, 24, 48, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, tt := range []struct {
		name     string
		r        webhook.TimeRange
		bars     int
		step     time.Duration
		from, to string
	}{
		{"the last day", webhook.TimeRange{}, 49, 30 * time.Minute, "2026-03-13T08:00:00.000Z", "2026-03-14T08:30:00.000Z"},
		{"an hour", webhook.TimeRange{From: ago(time.Hour)}, 31, 2 * time.Minute, "2026-03-14T07:24:00.000Z", "2026-03-14T08:26:00.000Z"},
		{"a week", webhook.TimeRange{From: ago(7 * 24 * time.Hour)}, 29, 6 * time.Hour, "2026-03-07T06:00:00.000Z", "2026-03-14T12:00:00.000Z"},
		{"an hour long ago", webhook.TimeRange{From: ago(100 * time.Hour), To: ago(99 * time.Hour)}, 2, time.Hour, "2026-03-10T04:00:00.000Z",
			"2026-03-10T06:00:00.000Z"},
		{"until after now", webhook.TimeRange{From: ago(time.Minute), To: ago(-time.Hour)}, 2, time.Minute, "2026-03-14T08:23:00.000Z",
			"2026-03-14T08:25:00.000Z"},
	} {
		from, to, step := histogramRange(tt.r, now)
		if step != tt.step || webhook.FormatTime(from) != tt.from || webhook.FormatTime(to) != tt.to {
			t.Errorf("%s: got %s to %s by %v, want %s to %s by %v", tt.name, webhook.FormatTime(from), webhook.FormatTime(to), step, tt.from, tt.to,
				tt.step)
		}
		if got := len(steps(nil, from, to, step)); got != tt.bars || got > ui.MaxBars {
			t.Errorf("%s: got %d bars, want %d", tt.name, got, tt.bars)
		}
	}
}
