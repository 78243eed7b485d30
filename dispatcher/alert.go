package dispatcher

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"service/dispatcher/client"
	"service/dispatcher/mail"
	"service/store"
	"service/webhook"
)

// AlertTarget is the operator's --alert-url and its signing secret.
type AlertTarget struct {
	URL    string // must lead to Config.Destinations, as the URL of a subscription must
	Secret webhook.SigningSecret
}

// SMTP is the configuration of the operator's mail server.
type SMTP = mail.Config

// SMTPPort is the default port of the mail server.
const SMTPPort = mail.SubmissionPort

// sendAlerts sends alerts one after the other until ctx ends, and retries them on the
// same schedule as deliveries. An attempt in progress ends with sendCtx at the latest. A
// failed alert is logged and never causes another alert.
func (d *Dispatcher) sendAlerts(ctx, sendCtx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var o outage
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.alerts:
		}
		// An alert stays claimed for longer than any attempt: an attempt not recorded
		// by then was interrupted.
		c, next, err := d.store.Alerts().Claim(ctx, d.cfg.AttemptTimeout+time.Minute)
		if err == nil {
			o.end(d.logger, "storage recovered: sending alerts again")
		}
		switch {
		case err != nil:
			o.failed(d.logger, "failed to read or record alerts: pausing them until storage recovers", err)
			next = time.Now().Add(storeRetryWait)
		case c != nil:
			a := d.withRecover(c.ID, c.Number, func() webhook.Attempt { return d.sendAlert(d.attemptContext(sendCtx), c) })
			d.metrics.byAlert[a.Result].Inc()
			step := d.cfg.RetryPolicy.After(&a, time.Now(), rand.Float64())
			if err := d.store.Alerts().Record(c, &a, step); err != nil {
				d.logger.Error("failed to record an alert attempt, will resend the alert", "alert", c.ID, "error", err)
			} else if a.Result != webhook.ResultSuccess {
				d.logger.LogAttrs(ctx, slog.LevelWarn, "alert attempt failed", append(attemptAttrs(&a),
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

// sendAlert makes one attempt to send an alert: to a webhook as a signed delivery
// with one event, to Slack and by email as text.
func (d *Dispatcher) sendAlert(ctx context.Context, c *store.AlertClaim) webhook.Attempt {
	request := client.Request{DeliveryID: c.ID, SubscriptionID: c.SubscriptionID, ProgramID: c.ProgramID, Number: c.Number}
	event := func() []byte { return webhook.AppendBody(nil, c.ID, c.SubscriptionID, c.ProgramID, [][]byte{c.JSON}) }
	to := c.Channel
	switch {
	case to == nil: // the --alert-url
		request.To, request.Secrets, request.Body = client.NewTarget(d.cfg.Alerts.URL), []webhook.SigningSecret{d.cfg.Alerts.Secret}, event()
		return d.client.Send(ctx, &request)
	case to.Kind == webhook.ChannelWebhook:
		request.To, request.Secrets, request.Body = client.NewTarget(to.URL), []webhook.SigningSecret{to.Secret}, event()
		return d.client.Send(ctx, &request)
	}
	text, err := webhook.ParseAlertText(c.JSON, d.cfg.BaseURL)
	if err == nil && to.Kind == webhook.ChannelSlack {
		request.To = client.NewTarget(to.URL)
		request.Body, err = text.SlackBody()
	}
	if err != nil {
		d.logger.Error("failed to render an alert", "alert", c.ID, "error", err)
		return webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Result: webhook.ResultFailed, Error: webhook.ErrorProtocol}
	}
	if to.Kind == webhook.ChannelSlack {
		return d.client.Send(ctx, &request)
	}
	a := d.cfg.SMTP.Send(ctx, d.cfg.AttemptTimeout, &mail.Message{ID: c.ID, To: to.To, Subject: text.Subject, Body: text.Body()})
	a.Number = c.Number
	return a
}
