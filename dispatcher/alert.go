package dispatcher

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"service/dispatcher/client"
	"service/webhook"
)

// AlertTarget is where the operator wants to hear of what goes wrong.
type AlertTarget struct {
	URL    string // the egress guard holds for it as for any other
	Secret webhook.SigningSecret
}

// sendAlerts sends alerts, one after the other, until ctx ends; each like a
// delivery with one event, signed, and tried again by the same schedule. What
// comes of an alert is logged and never an alert itself.
func (d *Dispatcher) sendAlerts(ctx, sending context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.alerts:
		}
		// Longer than any attempt: what is not recorded by then was cut off.
		c, next, err := d.store.Alerts().Claim(d.cfg.AttemptTimeout + time.Minute)
		switch {
		case err != nil:
			d.logger.Error("alerts are held until the store answers again", "error", err)
			next = time.Now().Add(storeRetryWait)
		case c != nil:
			a := d.guard(c.ID, c.Number, func() webhook.Attempt {
				return d.client.Send(d.leased(sending), &client.Request{
					DeliveryID: c.ID, SubscriptionID: c.SubscriptionID, ProgramID: c.ProgramID,
					To: client.NewTarget(d.cfg.Alerts.URL), Secrets: []webhook.SigningSecret{d.cfg.Alerts.Secret}, Number: c.Number,
					Body: webhook.AppendBody(nil, c.ID, c.SubscriptionID, c.ProgramID, [][]byte{c.JSON}),
				})
			})
			d.metrics.byAlert[a.Result].Inc()
			step := d.cfg.RetryPolicy.After(&a, time.Now(), rand.Float64())
			if err := d.store.Alerts().Record(c, step); err != nil {
				d.logger.Error("what came of an alert could not be stored; it will be sent again", "alert", c.ID, "error", err)
			} else if a.Result != webhook.ResultSuccess {
				d.logger.LogAttrs(ctx, slog.LevelWarn, "an alert could not be sent", append(outcome(&a),
					slog.String("alert", c.ID), slog.Int("number", c.Number), slog.String("status", string(step.Status)))...)
			}
			next = time.Now() // there may be more
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}
