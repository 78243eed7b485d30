package store

import (
	"fmt"
	"testing"

	"service/webhook"
)

// BenchmarkAudit compares changes of a subscription without and with an entry of the audit log,
// one at a time and from many writers.
func BenchmarkAudit(b *testing.B) {
	for _, writers := range []int{1, 64} {
		for _, audited := range []bool{false, true} {
			b.Run(fmt.Sprintf("writers=%d/audited=%v", writers, audited), func(b *testing.B) {
				s := openDir(b, b.TempDir())
				program(b, s, "p")
				sub := subscribe(b, s, "p", "content_updated")
				b.SetParallelism(writers)
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for n := 0; pb.Next(); n++ {
						text := fmt.Sprint(n)
						err := s.Write(b.Context(), func(w Write) error {
							_, err := w.Subscriptions().Update("p", sub.ID, &webhook.SubscriptionFields{Description: &text})
							if err == nil && audited {
								err = w.Audit(webhook.AuditEntry{Admin: "token:t", Address: "192.0.2.1", RequestID: webhook.NewID(),
									Action: webhook.ActionSubscriptionUpdate, ProgramID: "p", SubjectID: sub.ID, Detail: "set description"})
							}
							return err
						})
						if err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}
