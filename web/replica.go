package web

import (
	"fmt"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// replicaTime is when a replica was last known to hold all changes.
func replicaTime(r *store.ReplicaStatus) string { return timeOrNever(r.LastSuccess) }

// timeOrNever is a time in text, of which a zero one never was.
func timeOrNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return webhook.FormatTime(t)
}

// replicaLag is how far a replica is behind, in words.
func replicaLag(r *store.ReplicaStatus) string {
	if r.Lag < time.Second {
		return "up to date"
	}
	return ui.Uptime(r.Lag) + " behind"
}

// replicaVerified says what the last comparison of the replica with the database
// took.
func replicaVerified(r *store.ReplicaStatus) string {
	return fmt.Sprintf("(%s in %s; every %s)", ui.ByteSize(r.Verified.Bytes), ui.Latency(r.Verified.Took), ui.Duration(r.VerifyInterval))
}

// repeatsText says how many deliveries may be sent again.
func repeatsText(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event")
}
