package webhook

import (
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	d := make(Durations)
	if _, ok := d.Quantile(0.5); ok {
		t.Error("got a quantile without durations")
	}
	for i := range 1000 {
		d.Count(time.Duration(i+1) * 10 * time.Millisecond) // 10 ms to 10 s, evenly
	}
	for q, want := range map[float64]time.Duration{0: 10 * time.Millisecond, 0.5: 5 * time.Second, 0.95: 9500 * time.Millisecond,
		1: 10 * time.Second} {
		got, ok := d.Quantile(q)
		if off := float64(got)/float64(want) - 1; !ok || off > 0.13 || off < -0.13 {
			t.Errorf("quantile %v: got %s, want %s ± an eighth", q, got, want)
		}
	}
	short := make(Durations)
	short.Count(0)
	short.Count(time.Millisecond)
	if got, ok := short.Quantile(0.99); !ok || got > time.Millisecond || got <= 0 {
		t.Errorf("durations up to a millisecond: got %s, %t", got, ok)
	}
}

func TestStat(t *testing.T) {
	var s, sum Stat
	if _, ok := s.SuccessRate(); ok {
		t.Error("got a success rate without attempts")
	}
	for _, a := range []Attempt{
		{Result: ResultSuccess, ResponseStatus: 204}, {Result: ResultSuccess, ResponseStatus: 204}, {Result: ResultFailed, ResponseStatus: 404},
		{Result: ResultRetryable, Error: ErrorTimeout}, {Result: ResultFailed, Error: ErrorBlocked},
	} {
		s.Count(&a)
	}
	sum.Add(&s)
	sum.Add(&s)
	if rate, ok := sum.SuccessRate(); !ok || rate != 0.4 || sum.Total() != 10 || sum.Failed != 4 || sum.Retryable != 2 {
		t.Errorf("got sum %+v, rate %v", sum, rate)
	}
	if sum.Answers["204"] != 4 || sum.Answers["404"] != 2 || sum.Answers["timeout"] != 2 || sum.Answers["blocked"] != 2 {
		t.Errorf("got answers %v", sum.Answers)
	}
}
