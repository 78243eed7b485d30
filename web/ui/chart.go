package ui

import (
	"math"
	"strconv"
	"strings"
	"time"

	"service/webhook"
)

// Chart is one or more series over a common axis, usually time.
type Chart struct {
	ID       string // unique on the page
	Name     string // title: Deliveries per minute
	StepName string // heading of the table's first column, one row per step: Minute
	Labels   []string
	Series   []Series
	Max      float64              // top of the axis if it is known; 0 is the greatest number
	Log      bool                 // lines use a logarithmic axis if their values differ by more than a factor of logFrom
	Format   func(float64) string // formats a number; nil groups thousands, without decimals
	Links    []string             // link of each label: nil for none
	Marks    []Mark               // drawn over the bars or lines
	Pick     string               // property whose time range the visitor can select in the chart; "" for none
}

// MaxBars is how many labels a chart of bars may have: a bar is then at least 4 pixels wide in a
// chart of 320 pixels.
const MaxBars = 64

// Mark marks a label of a chart, such as the hour in which an incident opened.
type Mark struct {
	At   int    // index of the label
	Text string // Incident: Partner X
}

// MarkAt adds a mark at a time, if the time is within the labels, which begin at from in equal
// steps.
func (c *Chart) MarkAt(t, from time.Time, step time.Duration, text string) {
	if at := int(t.Sub(from) / step); !t.Before(from) && at < len(c.Labels) {
		c.Marks = append(c.Marks, Mark{at, text})
	}
}

// marksOf returns the texts of a label's marks.
func (c *Chart) marksOf(i int) (texts []string) {
	for _, m := range c.Marks {
		if m.At == i {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// Series is one series of a chart: a value for each label. NaN means no value.
type Series struct {
	Name   string
	State  string // success, failed, retryable or pending, which sets the color; "" is the accent color
	Values []float64
}

// Dimensions in the chart's own units. The style sheet stretches it to the available width.
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

// logFrom is the ratio of the greatest to the smallest value above which an axis is logarithmic.
const logFrom = 20

// axis is the vertical axis of a chart, from low to top.
type axis struct {
	low, top float64
	log      bool
}

// axis returns an axis that fits the highest bar or line, at least 1, unless Max is set.
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

// at returns the position of a value on the axis, from 0 to 1.
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

// ticks are the labels at the top, middle and bottom of the axis. A count has no label in the
// middle unless that is a whole number.
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

// at returns a number for drawing; a missing value is 0.
func (s *Series) at(i int) float64 {
	if i >= len(s.Values) || math.IsNaN(s.Values[i]) || math.IsInf(s.Values[i], 0) || s.Values[i] < 0 {
		return 0
	}
	return s.Values[i]
}

// roundUp returns the next round number: 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten.
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

// markPath is a vertical line in the middle of each marked bar, or at each marked point of lines.
func (c *Chart) markPath(kind string) string {
	var b strings.Builder
	for _, m := range c.Marks {
		x := (float64(m.At) + 0.5) * chartWidth / float64(max(1, len(c.Labels)))
		if kind == "lines" {
			x = float64(m.At) * chartWidth / float64(max(1, len(c.Labels)-1))
		}
		b.WriteString("M" + SVGLength(x) + " 0v" + strconv.Itoa(chartHeight))
	}
	return b.String()
}

// path is the line of a series; steps without a value are gaps.
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
			// Draw a single value as a line of its step's width, so that it is visible.
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

// SVGLength formats a length in the units of a drawing, rounded to a tenth.
func SVGLength(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Dimensions of the bars of StatBars.
const (
	statWidth  = 4
	statHeight = 20
)

// statPath draws all bars of one result.
type statPath struct{ class, d string }

// statPaths draws stats as stacked bars, successes at the bottom. A list contains a hundred of
// these charts, so each consists of three elements instead of one per bar.
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

// times returns up to four labels of the time axis, evenly spread, from the first to the last.
func (c *Chart) times() (labels []string) {
	const most = 4
	if len(c.Labels) <= most {
		return c.Labels
	}
	for i := range most {
		labels = append(labels, c.Labels[i*(len(c.Labels)-1)/(most-1)])
	}
	return labels
}
