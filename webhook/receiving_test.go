package webhook

import (
	"strings"
	"testing"
	"time"
)

// TestReceivingGuide checks that the guide contains the numbers of an installation, and every failure
// reason and error code.
func TestReceivingGuide(t *testing.T) {
	r := Receiving{
		BaseURL: "https://hooks.example.com", Timeout: 45 * time.Second, Retry: DefaultRetryPolicy(), BatchSize: 50,
		Retention: 30 * 24 * time.Hour,
		Health:    HealthPolicy{FailingAfter: 10, RejectingAfter: 5}, Egress: "Deliveries come from 203.0.113.7.",
	}
	guide := r.Guide()
	want := []string{
		"https://hooks.example.com", "within 45 s", "5 attempts, after waits of 5 s, 5 min, 30 min and 2 h", "at most 50 with together 64 KiB",
		"30 days",
		"after 10 attempts", "after 5 other responses", "Deliveries come from 203.0.113.7.",
	}
	for _, reason := range FailureReasons() {
		want = append(want, "\n| `"+string(reason)+"` |")
	}
	_, codes, _ := strings.Cut(guide, "`error.code`")
	for _, code := range ErrorCodes() {
		if !strings.Contains(codes, "\n| `"+string(code)+"` |") {
			t.Errorf("the guide lacks the error code %s", code)
		}
	}
	for _, text := range want {
		if !strings.Contains(guide, text) {
			t.Errorf("the guide lacks %q", text)
		}
	}
	if strings.Contains(guide, "<no value>") {
		t.Error("the guide has a value that does not exist")
	}
	if all := r.Checklist(); len(all) < 5 || !strings.Contains(all[1], "within 45 s") {
		t.Errorf("got the checklist %q", all)
	}
	r.Egress, r.Window = "", time.Minute
	for _, text := range []string{"Ask the operator", "waits for others for 1 min"} {
		if guide := r.Guide(); !strings.Contains(guide, text) {
			t.Errorf("the guide lacks %q", text)
		}
	}
}
