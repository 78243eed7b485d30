package dispatcher

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"service/dispatcher/client"
	"service/store"
	"service/webhook"
)

// attempt sends a claimed delivery and records the attempt. It returns the attempt
// and the recorded state of its delivery and subscription. prep is nil if the attempt was
// not prepared.
func (d *Dispatcher) attempt(
	ctx context.Context, q *subscriptionQueue, c *store.Claim, prep *prepared,
) (a webhook.Attempt, r store.Recorded) {
	defer prep.discard() // has no effect once prep was taken
	// The attempt was counted in the queue's revision or an earlier one. A later acknowledged
	// change, such as a new URL, applies to it already.
	to, gone := d.currentTarget(q)
	c.URLNumber = to.URLNumber
	if gone || !d.store.Queues().MaySend() {
		a = interruptedAttempt(c.Number, time.Now())
	} else {
		a = d.send(ctx, to, c, prep)
		d.metrics.attempt(&a)
		if !c.AcceptedAt.IsZero() && c.Number == 1 && !c.Split {
			d.metrics.lag.Observe(max(0, a.StartedAt.Sub(c.AcceptedAt).Seconds()))
		}
		if !c.AcceptedAt.IsZero() && a.Result == webhook.ResultSuccess {
			d.metrics.delivered.Observe(max(0, a.StartedAt.Add(a.Duration).Sub(c.AcceptedAt).Seconds()))
		}
	}
	a.URL = to.URL
	step := d.cfg.RetryPolicy.AfterInterruptions(&a, c.Interruptions, time.Now(), rand.Float64())
	for {
		var err error
		r, err = d.store.Queues().Record(c, &a, step, d.cfg.HealthPolicy)
		if err == nil {
			d.log(c, &a, r.Step)
			return a, r
		}
		d.mu.Lock()
		retryAt := d.pauseClaims(q, c.SubscriptionID, err)
		d.mu.Unlock()
		// The slot stays in use until the result is stored. A shutdown ends the wait: the next start
		// records the attempt as interrupted.
		select {
		case <-time.After(time.Until(retryAt)):
		case <-ctx.Done():
			return a, store.Recorded{}
		}
	}
}

// attemptTarget is the subscription of an attempt, with its parsed URL.
type attemptTarget struct {
	*store.Queue
	target *client.Target
}

// currentTarget returns the subscription of q as it was last read from the store, and
// whether it is known to be deleted. It parses the URL once.
func (d *Dispatcher) currentTarget(q *subscriptionQueue) (to attemptTarget, gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q.target == nil {
		q.target = client.NewTarget(q.URL)
	}
	return attemptTarget{q.Queue, q.target}, q.phase == phaseDeleted
}

// send makes one attempt, using prep if it was prepared for this target.
func (d *Dispatcher) send(ctx context.Context, to attemptTarget, c *store.Claim, prep *prepared) webhook.Attempt {
	return d.withRecover(c.ID, c.Number, func() webhook.Attempt {
		attempt := prep.take(to)
		if attempt == nil {
			attempt = d.client.Prepare(request(to, c))
		}
		program, ctx := d.beginSending(c.ProgramID, d.attemptContext(ctx))
		defer d.endSending(program)
		return attempt.Send(ctx)
	})
}

// request returns the request of an attempt.
func request(to attemptTarget, c *store.Claim) *client.Request {
	size := 192 // bytes of the body without events; an estimate
	for _, e := range c.Events {
		size += len(e) + 1
	}
	return &client.Request{
		DeliveryID: c.ID, SubscriptionID: c.SubscriptionID, ProgramID: c.ProgramID,
		To: to.target, Authorization: to.Authorization, Headers: to.Headers, Secrets: to.SigningSecrets(time.Now()),
		Number: c.Number, Trace: c.Trace,
		// A test is stored as a ping with an example event.
		Test: c.Ping && len(c.Events) == 1 && webhook.IsTestEvent(c.Events[0]),
		Body: webhook.AppendBody(make([]byte, 0, size), c.ID, c.SubscriptionID, c.ProgramID, c.Events),
	}
}

// prepared is an attempt that was prepared while its delivery was being stored.
type prepared struct {
	to      attemptTarget
	attempt *client.Prepared // nil once taken
}

// prepare prepares the attempt of j while its delivery is being stored; nil if that
// fails. No byte of it may be sent before the delivery is stored.
func (d *Dispatcher) prepare(j job, f *store.Forming) (p *prepared) {
	defer func() {
		if recover() != nil {
			p = nil // the attempt itself reports the error
		}
	}()
	to, _ := d.currentTarget(j.queue)
	return &prepared{to, d.client.Prepare(request(to, f.Peek()))}
}

// take returns the attempt, once, if it was prepared for this target.
func (p *prepared) take(to attemptTarget) (attempt *client.Prepared) {
	if p != nil && p.to == to {
		attempt, p.attempt = p.attempt, nil
	}
	return attempt
}

// discard releases an attempt that was not taken.
func (p *prepared) discard() {
	if p != nil && p.attempt != nil {
		p.attempt.Discard()
	}
}

// withRecover runs send. A panic in it costs only this attempt.
func (d *Dispatcher) withRecover(id string, number int, send func() webhook.Attempt) (a webhook.Attempt) {
	started := time.Now()
	defer func() {
		if p := recover(); p != nil {
			d.logger.Error("panic in an attempt", "delivery", id, "panic", p, "stack", string(debug.Stack()))
			a = interruptedAttempt(number, started)
		}
	}()
	return send()
}

// interruptedAttempt is the result of an attempt that was counted, but not made or
// not completed.
func interruptedAttempt(number int, started time.Time) webhook.Attempt {
	return webhook.Attempt{
		Number: number, StartedAt: started, Duration: time.Since(started),
		Result: webhook.ResultRetryable, Error: webhook.ErrorInterrupted,
	}
}

// log writes one line for an attempt. The line contains no text that the receiver
// sent.
func (d *Dispatcher) log(c *store.Claim, a *webhook.Attempt, step webhook.Step) {
	if !d.logger.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	attributes := append(attemptAttrs(a),
		slog.String("program", c.ProgramID), slog.String("subscription", c.SubscriptionID), slog.String("delivery", c.ID),
		slog.Int("number", c.Number), slog.Int("events", len(c.Events)), slog.Bool("ping", c.Ping),
		slog.String("status", string(step.Status)))
	if step.FailureReason != webhook.FailureNone {
		attributes = append(attributes, slog.String("failure_reason", string(step.FailureReason)))
	}
	if !step.NextAttemptAt.IsZero() {
		attributes = append(attributes, slog.String("next_attempt_at", webhook.FormatTime(step.NextAttemptAt)))
	}
	if c.Trace != "" {
		attributes = append(attributes, slog.String("trace", c.Trace.ID()))
	}
	for _, phase := range [...]struct {
		name string
		took time.Duration
	}{{"dns", a.Phases.DNS}, {"connect", a.Phases.Connect}, {"tls", a.Phases.TLS}, {"first_byte", a.Phases.FirstByte}} {
		if phase.took > 0 {
			attributes = append(attributes, slog.Duration(phase.name, phase.took))
		}
	}
	d.logger.LogAttrs(context.Background(), slog.LevelInfo, "attempt", attributes...)
}

// attemptAttrs returns the log attributes that describe the result of an attempt.
func attemptAttrs(a *webhook.Attempt) []slog.Attr {
	attributes := make([]slog.Attr, 0, 20)
	attributes = append(attributes, slog.String("result", string(a.Result)), slog.Duration("duration", a.Duration))
	if a.ResponseStatus != 0 {
		attributes = append(attributes, slog.Int("response_status", a.ResponseStatus))
	}
	if a.Error != webhook.ErrorNone {
		attributes = append(attributes, slog.String("error", string(a.Error)))
	}
	return attributes
}
