package web

import (
	"math"
	"strconv"
	"strings"
)

// chart is numbers over steps, which are points in time as a rule.
type chart struct {
	id     string // which the page has once
	name   string // what it shows: Deliveries per minute
	steps  string // what a step is, as the heading of the table's first column: Minute
	labels []string
	series []series
	full   float64              // the height of the drawing, when it is known; 0 is that of the greatest number
	format func(float64) string // of a number; nil is grouped, without decimals
}

// series is the numbers of one kind, one a step. NaN is a step without one.
type series struct {
	name   string
	state  string // success, failed, retryable or pending, whose colour it has; "" is the accent's
	values []float64
}

// The drawing's own units. The style sheet stretches it to the width there is.
const (
	chartWidth  = 600
	chartHeight = 120
)

func (c *chart) say(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case c.format != nil:
		return c.format(v)
	default:
		return grouped(int64(math.Round(v)))
	}
}

// top is the greatest height of the bars, or of the lines, at least 1, unless it
// is known.
func (c *chart) top(stacked bool) float64 {
	if c.full > 0 {
		return c.full
	}
	top := 1.0
	for i := range c.labels {
		sum := 0.0
		for _, s := range c.series {
			v := s.at(i)
			if stacked {
				sum += v
			} else {
				sum = max(sum, v)
			}
		}
		top = max(top, sum)
	}
	return nice(top)
}

// at is a number for drawing: nothing is drawn as 0.
func (s *series) at(i int) float64 {
	if i >= len(s.values) || math.IsNaN(s.values[i]) || math.IsInf(s.values[i], 0) || s.values[i] < 0 {
		return 0
	}
	return s.values[i]
}

// nice is the next round number: 1, 2 or 5 times a power of ten.
func nice(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5, 10} {
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

func (c *chart) bars() []bar {
	top := c.top(true)
	step := chartWidth / float64(max(1, len(c.labels)))
	var all []bar
	for i := range c.labels {
		y := float64(chartHeight)
		for _, s := range c.series {
			h := s.at(i) / top * chartHeight
			if h == 0 {
				continue
			}
			y -= h
			all = append(all, bar{s.state, num(float64(i)*step + step*0.1), num(y), num(step * 0.8), num(h)})
		}
	}
	return all
}

// path is the line of a series; steps without a number are gaps.
func (c *chart) path(s *series, top float64) string {
	var b strings.Builder
	move := true
	step := chartWidth / float64(max(1, len(c.labels)-1))
	for i := range c.labels {
		if i >= len(s.values) || math.IsNaN(s.values[i]) {
			move = true
			continue
		}
		x, y := float64(i)*step, num(chartHeight-s.at(i)/top*chartHeight)
		if next := i + 1; move && (next >= len(s.values) || math.IsNaN(s.values[next])) {
			// A number alone is a line of its step's width, so that it can be seen.
			from, to := max(0, x-step*0.4), min(chartWidth, x+step*0.4)
			b.WriteString("M" + num(from) + " " + y + "h" + num(to-from))
			continue
		}
		b.WriteString(map[bool]string{true: "M", false: "L"}[move])
		b.WriteString(num(x) + " " + y)
		move = false
	}
	return b.String()
}

// num renders a length of the drawing, to a tenth.
func num(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// sparkWidth and sparkHeight are of a line among words.
const (
	sparkWidth  = 80
	sparkHeight = 20
)

// sparkPath is the line of a sparkline whose numbers go from 0 to top.
func sparkPath(values []float64, top float64) string {
	var b strings.Builder
	s := series{values: values}
	step := float64(sparkWidth-2) / float64(max(1, len(values)-1))
	move := true
	for i, v := range values {
		if math.IsNaN(v) {
			move = true
			continue
		}
		b.WriteString(map[bool]string{true: "M", false: "L"}[move])
		b.WriteString(num(1+float64(i)*step) + " " + num(sparkHeight-2-s.at(i)/max(top, 1e-9)*(sparkHeight-4)))
		move = false
	}
	return b.String()
}
