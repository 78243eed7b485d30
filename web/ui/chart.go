package ui

import (
	"math"
	"strconv"
	"strings"

	"service/webhook"
)

// Chart is one or more series over a common axis, usually time.
type Chart struct {
	ID       string // which the page has once
	Name     string // what it shows: Deliveries per minute
	StepName string // what a step is, as the heading of the table's first column: Minute
	Labels   []string
	Series   []Series
	Max      float64              // the height of the drawing, when it is known; 0 is that of the greatest number
	Log      bool                 // lines whose values differ by more than logFrom times have a logarithmic axis
	Format   func(float64) string // of a number; nil is grouped, without decimals
	Links    []string             // what each label leads to: nil for none
	Pick     string               // the property whose time the links narrow, when a span of them can be picked; "" when not
}

// Series is one series of a chart: a value for each label. NaN is no value.
type Series struct {
	Name   string
	State  string // success, failed, retryable or pending, whose colour it has; "" is the accent's
	Values []float64
}

// The drawing's own units. The style sheet stretches it to the width there is.
const (
	chartWidth  = 600
	chartHeight = 120
)

func (c *Chart) formatValue(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case c.Format != nil:
		return c.Format(v)
	default:
		return Number(int64(math.Round(v)))
	}
}

// logFrom is how many times the least value the greatest must be for a logarithmic axis.
const logFrom = 20

// axis is the vertical axis of a chart, from low to top.
type axis struct {
	low, top float64
	log      bool
}

// axis fits the greatest of the bars, or of the lines, at least 1, unless it is known.
func (c *Chart) axis(stacked bool) axis {
	if c.Max > 0 {
		return axis{top: c.Max}
	}
	top, least := 1.0, math.Inf(1)
	for i := range c.Labels {
		sum := 0.0
		for _, s := range c.Series {
			v := s.at(i)
			if v > 0 {
				least = min(least, v)
			}
			if stacked {
				sum += v
			} else {
				sum = max(sum, v)
			}
		}
		top = max(top, sum)
	}
	a := axis{top: roundUp(top)}
	if c.Log && !stacked && top > least*logFrom {
		a.log, a.low = true, math.Pow(10, math.Floor(math.Log10(least)))
	}
	return a
}

// at is where a value is on the axis, from 0 to 1.
func (a axis) at(v float64) float64 {
	if !a.log {
		return v / a.top
	}
	if v <= a.low {
		return 0
	}
	return math.Log(v/a.low) / math.Log(a.top/a.low)
}

// middle is the value in the middle of the axis.
func (a axis) middle() float64 {
	if a.log {
		return math.Sqrt(a.low * a.top)
	}
	return a.top / 2
}

// ticks are what the axis says at its top, its middle and its bottom. The middle is left
// out where the values are counts and it is none.
func (c *Chart) ticks(a axis) [3]string {
	t := [3]string{c.formatValue(a.top), c.formatValue(a.middle()), c.formatValue(a.low)}
	if a.low == 0 {
		t[2] = "0"
	}
	if c.Format == nil && a.middle() != math.Trunc(a.middle()) {
		t[1] = ""
	}
	return t
}

// at is a number for drawing: nothing is drawn as 0.
func (s *Series) at(i int) float64 {
	if i >= len(s.Values) || math.IsNaN(s.Values[i]) || math.IsInf(s.Values[i], 0) || s.Values[i] < 0 {
		return 0
	}
	return s.Values[i]
}

// roundUp is the next round number: 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten.
func roundUp(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8, 10} {
		if v <= m*p {
			return m * p
		}
	}
	return v
}

// bar is a rectangle of a stacked chart.
type bar struct {
	state            string
	x, y, wide, high string
}

func (c *Chart) bars() []bar {
	axis := c.axis(true)
	step := chartWidth / float64(max(1, len(c.Labels)))
	var all []bar
	for i := range c.Labels {
		y := float64(chartHeight)
		for _, s := range c.Series {
			h := axis.at(s.at(i)) * chartHeight
			if h == 0 {
				continue
			}
			y -= h
			all = append(all, bar{s.State, SVGLength(float64(i)*step + step*0.1), SVGLength(y), SVGLength(step * 0.8), SVGLength(h)})
		}
	}
	return all
}

// path is the line of a series; steps without a number are gaps.
func (c *Chart) path(s *Series, axis axis) string {
	var b strings.Builder
	move := true
	step := chartWidth / float64(max(1, len(c.Labels)-1))
	for i := range c.Labels {
		if i >= len(s.Values) || math.IsNaN(s.Values[i]) {
			move = true
			continue
		}
		x, y := float64(i)*step, SVGLength(chartHeight-axis.at(s.at(i))*chartHeight)
		if next := i + 1; move && (next >= len(s.Values) || math.IsNaN(s.Values[next])) {
			// A number alone is a line of its step's width, so that it can be seen.
			from, to := max(0, x-step*0.4), min(chartWidth, x+step*0.4)
			b.WriteString("M" + SVGLength(from) + " " + y + "h" + SVGLength(to-from))
			continue
		}
		b.WriteString(map[bool]string{true: "M", false: "L"}[move])
		b.WriteString(SVGLength(x) + " " + y)
		move = false
	}
	return b.String()
}

// SVGLength formats a length in a drawing's units, rounded to a tenth.
func SVGLength(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// sparkWidth and sparkHeight are of a line among words.
const (
	sparkWidth  = 80
	sparkHeight = 20
)

// sparkPath is the line of a sparkline whose numbers go from 0 to top.
func sparkPath(values []float64, top float64) string {
	var b strings.Builder
	s := Series{Values: values}
	step := float64(sparkWidth-2) / float64(max(1, len(values)-1))
	move := true
	for i, v := range values {
		if math.IsNaN(v) {
			move = true
			continue
		}
		b.WriteString(map[bool]string{true: "M", false: "L"}[move])
		b.WriteString(SVGLength(1+float64(i)*step) + " " + SVGLength(sparkHeight-2-s.at(i)/max(top, 1e-9)*(sparkHeight-4)))
		move = false
	}
	return b.String()
}

// The bars of StatBars.
const (
	statWidth  = 4
	statHeight = 20
)

// statPath draws all bars of one result.
type statPath struct{ class, d string }

// statPaths draws stats as stacked bars, successes at the bottom. A list has a hundred
// of these charts: each is three elements instead of one per bar.
func statPaths(stats []webhook.Stat) []statPath {
	var top int64 = 1
	for i := range stats {
		top = max(top, stats[i].Total())
	}
	states := [...]string{"success", "retryable", "failed"}
	var paths [len(states)][]byte
	for i := range stats {
		s := &stats[i]
		y := float64(statHeight)
		for k, n := range [...]int64{s.Success, s.Retryable, s.Failed} {
			if n == 0 {
				continue
			}
			high := max(float64(n)/float64(top)*statHeight, 1) // at least visible
			y = max(y-high, 0)
			d := append(paths[k], 'M')
			d = strconv.AppendInt(d, int64(i*statWidth), 10)
			d = append(append(d, ' '), SVGLength(y)...)
			d = strconv.AppendInt(append(d, 'h'), statWidth-1, 10)
			d = append(append(d, 'v'), SVGLength(high)...)
			d = strconv.AppendInt(append(d, 'h'), 1-statWidth, 10)
			paths[k] = append(d, 'z')
		}
	}
	var all []statPath
	for k, d := range paths {
		if d != nil {
			all = append(all, statPath{"series " + SeriesClass(states[k]), string(d)})
		}
	}
	return all
}
