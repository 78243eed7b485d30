package web

import (
	"time"

	"service/store"
	"service/store/replica"
	"service/web/ui"
	"service/webhook"
)

// replicaTime is when a replica was last known to hold all changes.
func replicaTime(r *replica.Status) string {
	if r.LastSuccess.IsZero() {
		return "never"
	}
	return webhook.FormatTime(r.LastSuccess)
}

// replicaLag is how far a replica is behind, in words.
func replicaLag(r *replica.Status) string {
	if r.Lag < time.Second {
		return "up to date"
	}
	return ui.Uptime(r.Lag) + " behind"
}

// hold returns the hold after a restore, nil for none.
func (w *Web) hold() *store.Hold {
	if h, held := w.cfg.Store.Held(); held {
		return &h
	}
	return nil
}

// repeatsText says how many deliveries may be sent again.
func repeatsText(r *store.Repeats) string {
	more := ""
	if r.More {
		more = "at least "
	}
	return more + webhook.Count(r.Deliveries, "delivery") + " and " + webhook.Count(r.Events, "waiting event")
}

// releaseHeld sends what is held after a restore.
func (w *Web) releaseHeld(r *request) (answer, error) {
	err := w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		if err := sw.Release(); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionRestoreRelease, "", "", ""))
	})
	if err != nil {
		return answer{}, mistake(err)
	}
	return answer{location: "/system", note: &ui.Note{Kind: ui.NoteSuccess, Text: "The deliveries that were held are being sent."}}, nil
}
