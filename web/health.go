package web

import (
	"context"
	"time"

	"service/store"
	"service/webhook"
)

const (
	// healthRows is how many subscriptions that lost events the section shows.
	healthRows = 20
	// healthAlerts is how many of the last alerts it shows.
	healthAlerts = 5
	// healthRecent is for how long what is over and done with stays in view;
	// after that it is folded away.
	healthRecent = 7 * 24 * time.Hour
)

// health is what needs an admin's attention, or the lack of it.
type health struct {
	losses     []store.Loss
	lossTotals store.LossTotals

	alerts  []store.Alert
	disk    store.Disk
	replica store.ReplicaStatus
	hold    *store.Hold // nil for none
}

// readHealth asks the store how everything is: one read for each part.
func (h *overviewPages) readHealth(ctx context.Context) (all health, err error) {
	s := h.store
	if all.losses, all.lossTotals, err = s.Subscriptions().Losses(ctx, healthRows); err != nil {
		return all, err
	}
	if all.alerts, err = s.Alerts().Last(ctx, healthAlerts); err != nil {
		return all, err
	}
	all.replica, all.hold = s.Replica(), h.hold()
	all.disk, err = s.Disk()
	return all, err
}

// lostLately says whether an event was lost within the last days.
func (h *health) lostLately(now time.Time) bool {
	return len(h.losses) > 0 && now.Sub(h.losses[0].LastAt) < healthRecent
}

// alertUnheard says whether one of the last alerts could not be sent, of late.
func (h *health) alertUnheard(now time.Time) bool {
	for _, a := range h.alerts {
		if a.Status == webhook.StatusFailed && now.Sub(a.CreatedAt) < healthRecent {
			return true
		}
	}
	return false
}

// empty says whether there is nothing to tell of yet.
func (h *health) empty() bool {
	return len(h.losses) == 0 && len(h.alerts) == 0
}
