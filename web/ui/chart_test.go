package ui

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

func TestCharts(t *testing.T) {
	c := Chart{Labels: []string{"a", "b", "c"}, Series: []Series{{"x", "success", []float64{1, math.NaN(), 7}},
		{"y", "failed", []float64{2, -4, math.Inf(1)}}}}
	if got, want := c.axis(true), (axis{top: 8}); got != want {
		t.Errorf("the axis is %v, want %v", got, want)
	}
	for _, b := range c.bars() {
		if strings.Contains(b.x+b.y+b.wide+b.high, "N") || strings.Contains(b.high, "-") {
			t.Errorf("a bar that cannot be drawn: %+v", b)
		}
	}
	if got, want := c.path(&c.Series[0], axis{top: 10}), "M0 108h120M480 36h120"; got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	empty := Chart{Series: []Series{{"x", "", nil}}}
	if got := len(empty.bars()) + len(empty.path(&empty.Series[0], empty.axis(false))); got != 0 {
		t.Errorf("of nothing %d things are drawn", got)
	}
	for v, want := range map[float64]float64{1: 1, 1.2: 1.5, 1.7: 2, 3: 3, 7: 8, 9: 10, 10: 10, 11: 15, 480: 500, 510: 600} {
		if got := roundUp(v); got != want {
			t.Errorf("nice(%v): got %v, want %v", v, got, want)
		}
	}
}

func TestStatBars(t *testing.T) {
	got := statPaths([]webhook.Stat{{}, {Success: 3, Failed: 1}, {Success: 1, Retryable: 1}, {Failed: 1_000_000}})
	want := []statPath{
		{"series state-success", "M4 19h3v1h-3zM8 19h3v1h-3z"},
		{"series state-retryable", "M8 18h3v1h-3z"},
		{"series state-failed", "M4 18h3v1h-3zM12 0h3v20h-3z"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := statPaths(nil); got != nil {
		t.Errorf("without statistics: got %v, want nothing", got)
	}
}

// A timeout among fast attempts does not flatten the rest: the axis becomes logarithmic.
func TestLogAxis(t *testing.T) {
	c := Chart{Log: true, Labels: []string{"a", "b", "c"}, Series: []Series{{"p50", "", []float64{40, 45, math.NaN()}},
		{"p95", "", []float64{90, 10_000, math.NaN()}}}}
	a := c.axis(false)
	if want := (axis{low: 10, top: 10_000, log: true}); a != want {
		t.Fatalf("got %+v, want %+v", a, want)
	}
	for v, want := range map[float64]float64{10: 0, 5: 0, 100: 1. / 3, 10_000: 1} {
		if got := a.at(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v is at %v, want %v", v, got, want)
		}
	}
	c.Series[1].Values[1] = 95
	if a = c.axis(false); a.log || a.low != 0 || a.top != 100 {
		t.Errorf("of like values: got %+v", a)
	}
	counts := Chart{Labels: []string{"a"}, Series: []Series{{"x", "", []float64{3}}}}
	if got, want := counts.ticks(counts.axis(true)), [3]string{"3", "", "0"}; got != want {
		t.Errorf("ticks: got %q, want %q", got, want)
	}
}

// Marks are lines in the middle of their bars, and texts in the table. A time outside the chart
// gets no mark.
func TestMarks(t *testing.T) {
	c := Chart{ID: "c", Labels: []string{"04:00", "05:00"}, Series: []Series{{Name: "n", Values: []float64{1, 2}}}}
	from := now.Truncate(time.Hour).Add(-time.Hour)
	for _, at := range []time.Time{now, from.Add(-time.Second), from.Add(2 * time.Hour)} {
		c.MarkAt(at, from, time.Hour, "Incident: <b>")
	}
	if len(c.Marks) != 1 || c.Marks[0].At != 1 {
		t.Fatalf("got %v, want one mark at the second label", c.Marks)
	}
	text := rendered(t, StackedBars(&c))
	for _, want := range []string{`d="M450 0v120"`, "Incident: &lt;b&gt;", "Incident opened"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not there:\n%s", want, text)
		}
	}
	if got := c.markPath("lines"); got != "M600 0v120" {
		t.Errorf("of lines: %s", got)
	}
}
