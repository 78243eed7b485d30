package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"service/internal/control"
	"service/test/harness"
	"service/webhook"
)

// event is an event that a publisher sent.
type event struct {
	program string
	name    string
	number  int // a field of the event, to check its content
	acked   bool
}

// json returns the event as it is published, and as it must be in the log.
func (e *event) json(id string) []byte {
	own := fmt.Sprintf(`"content_id":%d,"channel_ids":[%[1]d,2]`, e.number)
	switch e.name {
	case "content_updated":
		own = fmt.Sprintf(`"content_id":%d`, e.number)
	case "channel_archived":
		own = fmt.Sprintf(`"channel_id":%d,"channel_name":%q`, e.number, strings.Repeat("n", e.number%50))
	}
	return fmt.Appendf(nil, `{"id":"%s","timestamp":"2026-03-14T08:24:48.644Z","name":"%s","version":"1",%s}`, id, e.name, own)
}

// NewEvent adds an event of a program to the ledger, and returns it as it must be
// published.
func (c *Chaos) NewEvent(p *Program) (id string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &event{program: p.ID, name: wantedBy[Healthy][0], number: len(c.events)}
	id = uuid.NewString()
	c.events[id] = e
	return id, e.json(id)
}

// Acknowledge records that the service has acknowledged events.
func (c *Chaos) Acknowledge(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.events[id].acked = c.events[id].acked || !c.powerOff
	}
}

// publish publishes events until ctx ends: singly, in arrays and in lines. It publishes
// unacknowledged events again with the same IDs, or abandons them.
func (c *Chaos) publish(ctx context.Context, p *Program, rng *rand.Rand) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var body any
	var ids []string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if body == nil {
			body, ids = c.compose(p, rng)
		}
		base, ok := c.Instance.AwaitURL(ctx)
		if !ok {
			return
		}
		status, err := c.Instance.Call(context.WithoutCancel(ctx), p.Token, "POST", base+"/v2/events", body, nil)
		c.step()
		switch {
		case status == http.StatusCreated:
			c.Acknowledge(ids...)
			body = nil
		case err == nil && !c.mayRefuse(status):
			c.violation("publishing %s: status %d", ids, status)
			body = nil
		case rng.IntN(2) == 0:
			body = nil
		}
	}
}

// compose makes up to eight new events and adds them to the ledger.
func (c *Chaos) compose(p *Program, rng *rand.Rand) (body any, ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []json.RawMessage
	for range 1 + rng.IntN(8) {
		names := wantedBy[Healthy]
		e := &event{program: p.ID, name: names[rng.IntN(len(names))], number: len(c.events)}
		if e.name == "channel_archived" && rng.IntN(4) > 0 {
			e.name = names[0] // a few are enough for the hanging receiver
		}
		id := uuid.NewString()
		c.events[id] = e
		ids = append(ids, id)
		all = append(all, e.json(id))
	}
	switch rng.IntN(3) {
	case 0:
		// Lines are stored one by one, not all or none.
		lines := harness.NDJSON{}
		for _, e := range all {
			lines = append(append(lines, e...), '\n')
		}
		return lines, ids
	case 1:
		c.batches = append(c.batches, ids)
		return map[string]any{"events": all}, ids
	}
	for _, id := range ids[1:] {
		delete(c.events, id)
	}
	return []byte(all[0]), ids[:1]
}

// mayRefuse counts a refused valid request, and reports whether its status is allowed:
// 503, or while the power is off any status that means a fault of the service.
func (c *Chaos) mayRefuse(status int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	return status == http.StatusServiceUnavailable || c.powerOff && status >= 500
}

// registration is a subscription and a token that were created together.
type registration struct {
	program      *Program
	subscription string // "" if it was not acknowledged
	url          string
	token        string // "" if it was not acknowledged
}

// register creates subscriptions and tokens until ctx ends.
func (c *Chaos) register(ctx context.Context, p *Program, rng *rand.Rand) {
	url := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(20+rng.IntN(60)) * time.Millisecond):
		}
		base, ok := c.Instance.AwaitURL(ctx)
		if !ok {
			return
		}
		if url == "" {
			var answer struct{ Data struct{ URL string } }
			status, err := c.Instance.Call(ctx, p.Token, "GET", base+"/v2/webhooks/subscriptions/"+p.Subscriptions[Healthy], nil, &answer)
			if err != nil || status != http.StatusOK {
				continue
			}
			url = answer.Data.URL
		}
		r := &registration{program: p, url: fmt.Sprintf("%s?n=%d", url, rng.Uint64())}
		var answer struct{ Data struct{ ID string } }
		status, err := c.Instance.Call(context.WithoutCancel(ctx), p.Token, "POST", base+"/v2/webhooks/subscriptions",
			harness.Subscription{URL: r.url, Events: harness.Events("content_deleted")}, &answer)
		switch {
		case status == http.StatusCreated && err == nil:
			r.subscription = answer.Data.ID
		case err == nil && !c.mayRefuse(status):
			c.violation("creating a subscription: status %d", status)
		}
		if token, err := createToken(ctx, c.Instance.Data, p.ID); err == nil {
			r.token = token
		}
		c.mu.Lock()
		if !c.powerOff {
			c.registered = append(c.registered, r)
		}
		c.mu.Unlock()
	}
}

// createToken creates a token over the service's control socket, as the command
// token create does, but without starting a process each time.
func createToken(ctx context.Context, data, program string) (string, error) {
	client, err := control.Dial(ctx, data)
	if err != nil {
		return "", err
	}
	defer client.Close()
	return client.CreateToken(ctx, webhook.NewToken{ProgramID: program, UserID: "chaos",
		Scopes: []webhook.Scope{webhook.ScopeWebhooksRead}})
}
