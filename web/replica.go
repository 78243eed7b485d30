package web

import (
	"fmt"
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// timeOrNever formats a time, or "never" for the zero time.
func timeOrNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return webhook.FormatTime(t)
}

// replicaLag describes how far a replica is behind.
func replicaLag(r *store.ReplicaStatus) string {
	if r.Lag < time.Second {
		return "up to date"
	}
	return ui.Uptime(r.Lag) + " behind"
}

// replicaTrouble describes a replica with a problem, "" if it has none or there is no replica.
func replicaTrouble(r *store.ReplicaStatus) string {
	switch r.State {
	case store.ReplicaOpening:
		return "Connecting"
	case store.ReplicaFailing:
		return "Failing"
	}
	return ""
}

// replicaVerified describes the last comparison of the replica with the database.
func replicaVerified(r *store.ReplicaStatus) string {
	return fmt.Sprintf("(%s in %s; every %s)", ui.ByteSize(r.Verified.Bytes), ui.Latency(r.Verified.Took), ui.Duration(r.VerifyInterval))
}

// repeatsText describes how many deliveries may be sent again.
func repeatsText(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event")
}
