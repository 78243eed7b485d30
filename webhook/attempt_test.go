package webhook

import (
	"strings"
	"testing"
)

// TestClassify checks every status without an error, and every error.
func TestClassify(t *testing.T) {
	for status := -1; status <= 1000; status++ {
		want := ResultFailed
		switch {
		case status >= 200 && status <= 299:
			want = ResultSuccess
		case status >= 500 && status <= 599:
			want = ResultRetryable
		}
		if got := Classify(status, ErrorNone); got != want {
			t.Errorf("Classify(%d) = %s, want %s", status, got, want)
		}
	}
	want := map[ErrorCode]Result{
		ErrorTimeout: ResultRetryable, ErrorDNS: ResultRetryable, ErrorConnect: ResultRetryable,
		ErrorTLS: ResultRetryable, ErrorProtocol: ResultRetryable, ErrorInterrupted: ResultRetryable,
		ErrorBlocked: ResultFailed,
	}
	for _, code := range ErrorCodes() {
		// No status can make a success of an error.
		for _, status := range []int{0, 101, 200, 404, 500} {
			if got := Classify(status, code); got != want[code] {
				t.Errorf("Classify(%d, %s) = %s, want %s", status, code, got, want[code])
			}
		}
	}
	if len(want) != len(ErrorCodes()) {
		t.Errorf("got %d tested error codes, want %d", len(want), len(ErrorCodes()))
	}
}

// Every error code has its own sentence.
func TestErrorDetail(t *testing.T) {
	seen := map[string]ErrorCode{}
	for _, code := range ErrorCodes() {
		d := code.Detail()
		if !strings.HasSuffix(d, ".") || strings.ContainsAny(d, "%\n") {
			t.Errorf("%s: got detail %q, want a sentence", code, d)
		}
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same detail", code, other)
		}
		seen[d] = code
	}
	if got := ErrorNone.Detail(); got != "" {
		t.Errorf("got detail %q without an error, want none", got)
	}
}
