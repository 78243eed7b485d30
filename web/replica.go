package web

import (
	"time"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// replicaTime is when a replica was last known to hold all changes.
func replicaTime(r *store.ReplicaStatus) string {
	if r.LastSuccess.IsZero() {
		return "never"
	}
	return webhook.FormatTime(r.LastSuccess)
}

// replicaLag is how far a replica is behind, in words.
func replicaLag(r *store.ReplicaStatus) string {
	if r.Lag < time.Second {
		return "up to date"
	}
	return ui.Uptime(r.Lag) + " behind"
}

// repeatsText says how many deliveries may be sent again.
func repeatsText(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event")
}
