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

func TestStatusFinal(t *testing.T) {
	for status, want := range map[Status]bool{StatusPending: false, StatusRetryable: false, StatusSuccess: true, StatusFailed: true} {
		if got := status.Final(); got != want {
			t.Errorf("%s: got final %t, want %t", status, got, want)
		}
	}
}
