package webhook

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestRequestHeader(t *testing.T) {
	head := RequestHead{DeliveryID: "d", SubscriptionID: "s", ProgramID: "p", At: time.UnixMilli(1773476688644)}
	plain := [][2]string{
		{"Content-Type", "application/json"}, {"X-Service-Delivery", "d"}, {"X-Service-Subscription", "s"}, {"X-Service-Program", "p"},
		{"User-Agent", "Service-Webhooks/1.0"}, {"webhook-id", "d"}, {"webhook-timestamp", "1773476688"},
	}
	if diff := cmp.Diff(plain, head.AppendHeader(nil)); diff != "" {
		t.Errorf("without secrets (-want +got):\n%s", diff)
	}
	head.Authorization, head.Signature = "Basic eA==", "v1,x v1,y"
	head.Trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	full := append(append(plain[:5:5], [2]string{"Authorization", "Basic eA=="}), plain[5:]...)
	full = append(full, [2]string{"webhook-signature", "v1,x v1,y"}, [2]string{"traceparent", head.Trace})
	got := head.AppendHeader(nil)
	if diff := cmp.Diff(full, got); diff != "" {
		t.Errorf("with secrets (-want +got):\n%s", diff)
	}
	if len(got) > MaxRequestHeader {
		t.Errorf("got %d lines, want at most MaxRequestHeader", len(got))
	}
}
