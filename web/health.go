package web

import (
	"context"
	"time"

	"service/store"
	"service/store/doctor"
	"service/store/record"
	"service/webhook"
)

const (
	// healthRows is how many subscriptions that lost events are shown.
	healthRows = 20
	// healthAlerts is how many of the last alerts are checked.
	healthAlerts = 5
	// healthRecent is how long the overview reports a loss or an alert that could not be sent.
	healthRecent = 7 * 24 * time.Hour
)

// health contains everything that needs an admin's attention.
type health struct {
	losses     []record.Loss
	lossTotals record.LossTotals

	alerts  []record.Alert
	disk    doctor.Disk
	replica store.ReplicaStatus
	hold    *store.Hold // nil for none
}

// readHealth reads each part of the health from the store once.
func (h *overviewPages) readHealth(ctx context.Context) (all health, err error) {
	s := h.store
	if all.losses, all.lossTotals, err = s.Subscriptions().Losses(ctx, healthRows); err != nil {
		return all, err
	}
	if all.alerts, err = s.Alerts().Last(ctx, healthAlerts); err != nil {
		return all, err
	}
	all.replica, all.hold = s.Replica().Status(), h.hold()
	all.disk, err = s.Figures().Disk()
	return all, err
}

// lostLately reports whether an event was lost within healthRecent.
func (h *health) lostLately(now time.Time) bool {
	return len(h.losses) > 0 && now.Sub(h.losses[0].LastAt) < healthRecent
}

// alertUnheard reports whether one of the recent alerts could not be sent.
func (h *health) alertUnheard(now time.Time) bool {
	for _, a := range h.alerts {
		if a.Status == webhook.StatusFailed && now.Sub(a.CreatedAt) < healthRecent {
			return true
		}
	}
	return false
}
