package webhook

import (
	"encoding/json"
	"testing"
	"time"
)

func TestAppendBody(t *testing.T) {
	one := []byte(`{"id":"e1","timestamp":"2026-01-02T12:00:00.000Z","name":"content_deleted","version":"1","content_id":7}`)
	two := []byte(`{"id":"e2","text":"\u00fc <ü> & \"q\"\n"}`)
	for _, tt := range []struct {
		name   string
		dst    string
		events [][]byte
		want   string
	}{
		{"one event", "", [][]byte{one}, `{"delivery_id":"d","subscription_id":"s","program_id":"p.1_x-Y","events":[` + string(one) + `]}`},
		{"two events, byte for byte", "", [][]byte{one, two}, `{"delivery_id":"d","subscription_id":"s","program_id":"p.1_x-Y","events":[` +
			string(one) + `,` + string(two) + `]}`},
		{"appended", "before", [][]byte{[]byte("{}")}, `before{"delivery_id":"d","subscription_id":"s","program_id":"p.1_x-Y","events":[{}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := string(AppendBody([]byte(tt.dst), "d", "s", "p.1_x-Y", tt.events))
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if tt.dst == "" && !json.Valid([]byte(got)) {
				t.Errorf("got invalid JSON: %s", got)
			}
		})
	}
}

func TestPingEvent(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 34, 56, 789_999_999, time.FixedZone("", 2*60*60))
	const id = "019a0000-0000-7000-8000-000000000000"
	const want = `{"id":"019a0000-0000-7000-8000-000000000000","timestamp":"2026-01-02T10:34:56.789Z","name":"ping","version":"1"}`
	if got := string(PingEvent(id, at)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestTransitions checks the state after every outcome of every attempt in flight.
func TestTransitions(t *testing.T) {
	type way struct {
		result Result
		code   ErrorCode
	}
	ways := []way{{ResultSuccess, ErrorNone}, {ResultFailed, ErrorNone}, {ResultRetryable, ErrorNone}}
	for _, code := range ErrorCodes() {
		ways = append(ways, way{Classify(0, code), code})
	}
	reached := map[Status]bool{}
	for _, w := range ways {
		for number := 1; number <= MaxAttempts; number++ {
			step := DefaultRetryPolicy().After(&Attempt{Number: number, Result: w.result, Error: w.code}, noon, 0.5)
			reached[step.Status] = true
			want := StatusRetryable
			switch {
			case w.result == ResultSuccess:
				want = StatusSuccess
			case w.result == ResultFailed, number == MaxAttempts:
				want = StatusFailed
			}
			if step.Status != want {
				t.Errorf("%v, attempt %d: got %s, want %s", w, number, step.Status, want)
			}
			// What the schema checks.
			if final := step.Status.Final(); final == (step.Status == StatusRetryable) {
				t.Errorf("%v, attempt %d: got %s.Final() = %t", w, number, step.Status, final)
			}
			if (step.FailureReason != FailureNone) != (step.Status == StatusFailed) {
				t.Errorf("%v, attempt %d: got %s with failure reason %q", w, number, step.Status, step.FailureReason)
			}
			if step.NextAttemptAt.IsZero() != step.Status.Final() {
				t.Errorf("%v, attempt %d: got %s with next attempt at %v", w, number, step.Status, step.NextAttemptAt)
			}
		}
	}
	if len(reached) != 3 || reached[StatusPending] {
		t.Errorf("got statuses %v, want all but pending", reached)
	}
	if StatusPending.Final() {
		t.Error("got pending.Final() = true, want false")
	}
}
