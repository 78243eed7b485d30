package ui

import (
	"math"
	"slices"
	"strings"
	"testing"

	"service/webhook"
)

func TestCharts(t *testing.T) {
	c := Chart{Labels: []string{"a", "b", "c"}, Series: []Series{{"x", "success", []float64{1, math.NaN(), 7}}, {"y", "failed", []float64{2, -4, math.Inf(1)}}}}
	if got := c.top(true); got != 10 {
		t.Errorf("the top is %v, want 10", got)
	}
	for _, b := range c.bars() {
		if strings.Contains(b.x+b.y+b.wide+b.high, "N") || strings.Contains(b.high, "-") {
			t.Errorf("a bar that cannot be drawn: %+v", b)
		}
	}
	if got, want := c.path(&c.Series[0], 10), "M0 108h120M480 36h120"; got != want {
		t.Errorf("the line is %s, want %s", got, want)
	}
	empty := Chart{Series: []Series{{"x", "", nil}}}
	if got := len(empty.bars()) + len(empty.path(&empty.Series[0], empty.top(false))); got != 0 {
		t.Errorf("of nothing %d things are drawn", got)
	}
	for v, want := range map[float64]float64{1: 1, 1.5: 2, 3: 5, 7: 10, 10: 10, 11: 20, 480: 500} {
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
