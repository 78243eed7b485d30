package webhook

import (
	"math"
	"strconv"
	"time"
)

// Stat counts the attempts that ended in one time span, excluding pings.
type Stat struct {
	At        time.Time // start of the span
	Span      time.Duration
	Success   int64
	Failed    int64
	Retryable int64
	Answers   map[string]int64 // by status, such as "503", or by error code, such as "timeout"
	Durations Durations
}

// Total returns the number of attempts.
func (s *Stat) Total() int64 { return s.Success + s.Failed + s.Retryable }

// FailedAttempts returns the number of failed attempts, including those that are
// retried.
func (s *Stat) FailedAttempts() int64 { return s.Failed + s.Retryable }

// SuccessRate returns the fraction of successful attempts; ok is false if there
// were no attempts.
func (s *Stat) SuccessRate() (rate float64, ok bool) {
	if n := s.Total(); n > 0 {
		return float64(s.Success) / float64(n), true
	}
	return 0, false
}

// Count adds an attempt.
func (s *Stat) Count(a *Attempt) {
	switch a.Result {
	case ResultSuccess:
		s.Success++
	case ResultFailed:
		s.Failed++
	default:
		s.Retryable++
	}
	if s.Answers == nil {
		s.Answers, s.Durations = make(map[string]int64), make(Durations)
	}
	answer := string(a.Error)
	if a.Error == ErrorNone {
		answer = strconv.Itoa(a.ResponseStatus)
	}
	s.Answers[answer]++
	s.Durations.Count(a.Duration)
}

// Add adds the counts of another span.
func (s *Stat) Add(o *Stat) {
	s.Success += o.Success
	s.Failed += o.Failed
	s.Retryable += o.Retryable
	if s.Answers == nil {
		s.Answers, s.Durations = make(map[string]int64), make(Durations)
	}
	for answer, n := range o.Answers {
		s.Answers[answer] += n
	}
	for class, n := range o.Durations {
		s.Durations[class] += n
	}
}

// Durations is a histogram of durations. Each class is a quarter wider than the one
// before, so a quantile is off by at most an eighth. Class 0 is up to one
// millisecond.
type Durations map[int]int64

const durationStep = 1.25

// Count adds a duration.
func (d Durations) Count(t time.Duration) {
	class := 0
	if ms := float64(t) / float64(time.Millisecond); ms > 1 {
		class = int(math.Ceil(math.Log(ms) / math.Log(durationStep)))
	}
	d[class]++
}

// Quantile returns the q-quantile, approximately; ok is false if there are no
// durations.
func (d Durations) Quantile(q float64) (t time.Duration, ok bool) {
	var all int64
	last := 0
	for class, n := range d {
		all += n
		last = max(last, class)
	}
	if all == 0 {
		return 0, false
	}
	rank, seen := int64(math.Ceil(q*float64(all))), int64(0)
	for class := range last {
		if seen += d[class]; seen >= max(rank, 1) {
			last = class
			break
		}
	}
	upper := math.Pow(durationStep, float64(last))
	middle := upper * (1 + 1/durationStep) / 2
	if last == 0 {
		middle = 0.5
	}
	return time.Duration(middle * float64(time.Millisecond)).Round(100 * time.Microsecond), true
}
