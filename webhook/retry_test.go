package webhook

import (
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// TestRetryPolicyAfter checks every result and error for every attempt.
func TestRetryPolicyAfter(t *testing.T) {
	waits := []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour}
	p := DefaultRetryPolicy()
	tested := make(map[ErrorCode]bool)
	for number := 1; number <= MaxAttempts; number++ {
		again := func(wait time.Duration) Step {
			if number == MaxAttempts {
				return Step{Status: StatusFailed, FailureReason: FailureAttemptsExhausted}
			}
			return Step{Status: StatusRetryable, NextAttemptAt: noon.Add(wait)}
		}
		var wait time.Duration
		if number < MaxAttempts {
			wait = waits[number-1]
		}
		for _, tt := range []struct {
			name    string
			attempt Attempt
			want    Step
		}{
			{"200", Attempt{Result: ResultSuccess, ResponseStatus: 200}, Step{Status: StatusSuccess}},
			{"404", Attempt{Result: ResultFailed, ResponseStatus: 404}, Step{Status: StatusFailed, FailureReason: FailureRejected}},
			{"429", Attempt{Result: ResultFailed, ResponseStatus: 429, RetryAfter: time.Hour},
				Step{Status: StatusFailed, FailureReason: FailureRejected}},
			{"500", Attempt{Result: ResultRetryable, ResponseStatus: 500}, again(wait)},
			{"timeout", Attempt{Result: ResultRetryable, Error: ErrorTimeout}, again(wait)},
			{"dns", Attempt{Result: ResultRetryable, Error: ErrorDNS}, again(wait)},
			{"connect", Attempt{Result: ResultRetryable, Error: ErrorConnect}, again(wait)},
			{"tls", Attempt{Result: ResultRetryable, Error: ErrorTLS}, again(wait)},
			{"protocol", Attempt{Result: ResultRetryable, Error: ErrorProtocol}, again(wait)},
			{"blocked", Attempt{Result: ResultFailed, Error: ErrorBlocked}, Step{Status: StatusFailed, FailureReason: FailureBlocked}},
			{"interrupted", Attempt{Result: ResultRetryable, Error: ErrorInterrupted}, again(0)},
		} {
			tt.attempt.Number = number
			tested[tt.attempt.Error] = true
			if got := p.After(&tt.attempt, noon, 0.5); got != tt.want {
				t.Errorf("attempt %d, %s: got %+v, want %+v", number, tt.name, got, tt.want)
			}
			if tt.attempt.Error == ErrorInterrupted {
				tt.want = again(wait)
			}
			for earlier := 1; earlier < number; earlier++ {
				if got := p.AfterInterruptions(&tt.attempt, earlier, noon, 0.5); got != tt.want {
					t.Errorf("attempt %d, %s, after %d interruptions: got %+v, want %+v", number, tt.name, earlier, got, tt.want)
				}
			}
		}
	}
	if got, want := len(tested)-1, len(ErrorCodes()); got != want { // in addition to ErrorNone
		t.Errorf("got %d error codes in the table, want all %d", got, want)
	}
}

func TestRetryPolicyJitter(t *testing.T) {
	for _, tt := range []struct {
		jitter, roll float64
		want         time.Duration // of a wait of 100 s
	}{
		{0, 0, 100 * time.Second},
		{0, 0.999999, 100 * time.Second},
		{0.2, 0, 80 * time.Second},
		{0.2, 0.25, 90 * time.Second},
		{0.2, 0.5, 100 * time.Second},
		{0.2, 0.75, 110 * time.Second},
		{1, 0, 0},
		{1, 0.5, 100 * time.Second},
	} {
		p := RetryPolicy{Waits: [...]time.Duration{100 * time.Second, 0, 0, 0}, Jitter: tt.jitter}
		a := &Attempt{Number: 1, Result: ResultRetryable, ResponseStatus: 500}
		if got := p.After(a, noon, tt.roll).NextAttemptAt.Sub(noon); got.Round(time.Microsecond) != tt.want {
			t.Errorf("jitter %v, roll %v: got %v, want %v", tt.jitter, tt.roll, got, tt.want)
		}
	}
	// Never outside the bounds, and never in the past.
	p := DefaultRetryPolicy()
	for number := 1; number < MaxAttempts; number++ {
		w := p.Waits[number-1]
		for i := range 1000 {
			got := p.After(&Attempt{Number: number, Result: ResultRetryable}, noon, float64(i)/1000).NextAttemptAt.Sub(noon)
			if got < w*8/10-time.Microsecond || got >= w*12/10 {
				t.Fatalf("attempt %d, roll %d/1000: got wait %v, want %v ±20%%", number, i, got, w)
			}
		}
	}
}

func TestRetryPolicyRetryAfter(t *testing.T) {
	p := RetryPolicy{Waits: [...]time.Duration{time.Minute, 48 * time.Hour, 0, 0}, Jitter: 0.2}
	for _, tt := range []struct {
		number     int
		retryAfter time.Duration
		roll       float64
		want       time.Duration
	}{
		{1, 0, 0.5, time.Minute},
		{1, time.Second, 0.5, time.Minute}, // it cannot shorten a wait
		{1, time.Minute, 0, time.Minute},   // not even by the jitter
		{1, time.Hour, 0.5, time.Hour},
		{1, time.Hour, 0, time.Hour}, // a requested wait is not jittered
		{1, 24 * time.Hour, 0.5, 24 * time.Hour},
		{1, 24*time.Hour + 1, 0.5, 24 * time.Hour},
		{1, 1 << 62, 0.5, 24 * time.Hour},
		{2, 1 << 62, 0.5, 48 * time.Hour}, // an operator's longer wait stays
		{3, 10 * time.Second, 0.5, 10 * time.Second},
		{1, -time.Hour, 0.5, time.Minute},
	} {
		a := &Attempt{Number: tt.number, Result: ResultRetryable, ResponseStatus: 503, RetryAfter: tt.retryAfter}
		if got := p.After(a, noon, tt.roll).NextAttemptAt.Sub(noon); got != tt.want {
			t.Errorf("attempt %d, Retry-After %v, roll %v: got %v, want %v", tt.number, tt.retryAfter, tt.roll, got, tt.want)
		}
	}
	last := &Attempt{Number: MaxAttempts, Result: ResultRetryable, ResponseStatus: 503, RetryAfter: time.Hour}
	if got := p.After(last, noon, 0); got.Status != StatusFailed || !got.NextAttemptAt.IsZero() {
		t.Errorf("last attempt with Retry-After: got %+v, want failed", got)
	}
}
