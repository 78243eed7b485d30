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

// maxAlerts is the maximum number of alerts in flight per channel. While the channel's last
// attempt has timed out, the maximum is one.
const maxAlerts = 4

// alertQueue is the state of a channel, or of --alert-url.
type alertQueue struct {
	inFlight int
	timedOut bool   // the last attempt
	program  string // of the last alert that was claimed
}

func (q *alertQueue) full() bool { return q.inFlight >= maxAlerts || q.timedOut && q.inFlight > 0 }

// endedAlert is the result of an attempt to send an alert.
type endedAlert struct {
	queue    *alertQueue
	timedOut bool
}

// sendAlerts sends alerts until ctx ends, each channel independently, and retries them on
// the same schedule as deliveries. An attempt in progress ends with sendCtx at the latest. A failed
// alert is logged and never causes another alert.
func (d *Dispatcher) sendAlerts(ctx, sendCtx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	queues, ended := make(map[string]*alertQueue), make(chan endedAlert)
	var o outage
	for {
		next, err := d.startAlerts(ctx, sendCtx, queues, ended)
		if err == nil {
			o.end(d.logger, "storage recovered: sending alerts again")
		} else {
			o.failed(d.logger, "failed to read or record alerts: pausing them until storage recovers", err)
			next = time.Now().Add(storeRetryWait)
		}
		if next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-d.alerts:
		case e := <-ended:
			e.queue.inFlight--
			e.queue.timedOut = e.timedOut
		}
	}
}

// startAlerts starts the attempts that are due to channels that are not full. It returns the time
// of the next call, zero for when an attempt ends.
func (d *Dispatcher) startAlerts(ctx, sendCtx context.Context, queues map[string]*alertQueue, ended chan<- endedAlert) (time.Time, error) {
	due, err := d.store.Alerts().Queues(ctx)
	if err != nil {
		return time.Time{}, err
	}
	var next time.Time
	for channel, at := range due {
		q := queues[channel]
		if q == nil {
			q = new(alertQueue)
			queues[channel] = q
		}
		for !q.full() && !at.After(time.Now()) {
			// An alert stays claimed for longer than any attempt: an attempt not recorded by then
			// was interrupted.
			c, err := d.store.Alerts().Claim(channel, q.program, d.cfg.AttemptTimeout+time.Minute)
			if err != nil {
				return time.Time{}, err
			}
			at = time.Now() // ask again for the time of the next one
			if c == nil {
				break
			}
			q.program = c.ProgramID
			q.inFlight++
			d.workers.Go(func() {
				e := endedAlert{q, d.tryAlert(ctx, sendCtx, c)}
				select {
				case ended <- e:
				case <-ctx.Done():
				}
			})
		}
		if !q.full() {
			next = earliest(next, at)
		}
	}
	return next, nil
}

// tryAlert makes one attempt to send an alert and records it. It reports whether the attempt timed
// out.
func (d *Dispatcher) tryAlert(ctx, sendCtx context.Context, c *store.AlertClaim) (timedOut bool) {
	a := d.withRecover(c.ID, c.Number, func() webhook.Attempt { return d.sendAlert(d.attemptContext(sendCtx), c) })
	d.metrics.byAlert[a.Result].Inc()
	step := d.cfg.RetryPolicy.After(&a, time.Now(), rand.Float64())
	if err := d.store.Alerts().Record(c, &a, step); err != nil {
		d.logger.Error("failed to record an alert attempt, will resend the alert", "alert", c.ID, "error", err)
	} else if a.Result != webhook.ResultSuccess {
		d.logger.LogAttrs(ctx, slog.LevelWarn, "alert attempt failed", append(attemptAttrs(&a),
			slog.String("alert", c.ID), slog.Int("number", c.Number), slog.String("status", string(step.Status)))...)
	}
	return a.Error == webhook.ErrorTimeout
}

// sendAlert makes one attempt to send an alert: to a webhook as a signed delivery
// with one event, to Slack and by email as text.
func (d *Dispatcher) sendAlert(ctx context.Context, c *store.AlertClaim) webhook.Attempt {
	request := client.Request{DeliveryID: c.ID, SubscriptionID: c.SubscriptionID, ProgramID: c.ProgramID, Number: c.Number}
	to := c.Channel
	if to == nil {
		to = &webhook.AlertChannel{Kind: webhook.ChannelWebhook, URL: d.cfg.Alerts.URL, Secret: d.cfg.Alerts.Secret}
	}
	var text webhook.AlertText
	var event []byte
	var err error
	if to.Kind == webhook.ChannelWebhook {
		event, err = webhook.LinkAlert(c.JSON, d.cfg.BaseURL)
		request.Secrets = []webhook.SigningSecret{to.Secret}
		request.Body = webhook.AppendBody(nil, c.ID, c.SubscriptionID, c.ProgramID, [][]byte{event})
	} else {
		text, err = webhook.ParseAlertText(c.JSON, d.cfg.BaseURL)
	}
	if err == nil && to.Kind == webhook.ChannelSlack {
		request.Body, err = text.SlackBody()
	}
	if err != nil {
		d.logger.Error("failed to render an alert", "alert", c.ID, "error", err)
		return webhook.Attempt{Number: c.Number, StartedAt: time.Now(), Result: webhook.ResultFailed, Error: webhook.ErrorProtocol}
	}
	if to.Kind != webhook.ChannelEmail {
		request.To = client.NewTarget(to.URL)
		return d.client.Send(ctx, &request)
	}
	a := d.cfg.SMTP.Send(ctx, d.cfg.AttemptTimeout, &mail.Message{ID: c.ID, To: to.To, Subject: text.Subject, Body: text.Body()})
	a.Number = c.Number
	return a
}
