package chaos

import (
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"service/test/harness"
	"service/webhook"
)

// arrival is a delivery as its receiver got it.
type arrival struct {
	subscription string
	sum          [sha256.Size]byte
	events       []string
	times        int // number of requests that arrived while the power was on
	ok           int // how many of these got the response 200
	// answered is true after any response 200, even just before a power cut: the
	// service may still have stored it.
	answered bool
}

// ServeHTTP serves all receivers: /PROGRAM/KIND.
func (c *Chaos) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	id := r.Header.Get("X-Service-Delivery")
	body, err := io.ReadAll(r.Body)
	a, counts, refused := c.arrive(r, id, kind)
	if err != nil {
		return // the service was killed during the request
	}
	c.readDelivery(r, id, body, a)
	switch {
	case refused:
		w.WriteHeader(http.StatusInternalServerError)
		return
	case kind == Slow:
		select {
		case <-time.After(slowAnswer):
		case <-r.Context().Done():
		}
	case kind == Hanging:
		select {
		case <-c.repaired:
		case <-r.Context().Done():
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.answered = true
	if counts {
		a.ok++
	}
}

// arrive adds a request to the ledger. It returns the delivery's entry, whether the
// request counts, and whether the receiver must refuse it.
func (c *Chaos) arrive(r *http.Request, id, kind string) (a *arrival, counts, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a = c.arrivals[id]; a == nil {
		a = &arrival{subscription: r.Header.Get("X-Service-Subscription")}
		c.arrivals[id] = a
	}
	counts = !c.powerOff
	if counts {
		a.times++
	}
	c.requests[r.URL.Path]++
	c.steps++
	return a, counts, kind == Flaky && c.requests[r.URL.Path]%flakyEvery == 0
}

// readDelivery compares a body with its headers, and with earlier requests of the same
// delivery.
func (c *Chaos) readDelivery(r *http.Request, id string, body []byte, a *arrival) {
	var delivery struct {
		ID           string `json:"delivery_id"`
		Subscription string `json:"subscription_id"`
		Program      string `json:"program_id"`
		Events       []struct{ ID string }
	}
	if err := json.Unmarshal(body, &delivery); err != nil {
		c.violation("the body of delivery %s is not JSON: %v", id, err)
	}
	if delivery.ID != id || delivery.Subscription != r.Header.Get("X-Service-Subscription") ||
		delivery.Program != r.Header.Get("X-Service-Program") {
		c.violation("the headers of delivery %s name other ids than its body, %s", id, body)
	}
	if len(delivery.Events) == 0 {
		c.violation("delivery %s arrived without events", id)
	}
	sum := sha256.Sum256(body)
	c.mu.Lock()
	other := a.events != nil && a.sum != sum
	if a.events == nil {
		a.sum = sum
		for _, e := range delivery.Events {
			a.events = append(a.events, e.ID)
		}
	}
	c.mu.Unlock()
	if other {
		c.violation("delivery %s arrived with other bytes than before", id)
	}
}

// Delivered reports whether an event of the first program has arrived at its
// healthy receiver.
func (c *Chaos) Delivered(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.arrivals {
		if a.subscription == c.Programs[0].Subscriptions[Healthy] && a.ok > 0 && slices.Contains(a.events, id) {
			return true
		}
	}
	return false
}

// drain waits until every event in the log is in its deliveries and these have ended, but at most
// [harness.Timeout]. Faults then finds any errors.
func (c *Chaos) drain() {
	c.tb.Helper()
	deadline := time.After(harness.Timeout())
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for _, p := range c.Programs {
		events, err := harness.Feed[webhook.EventRef](c.Instance, p.Token, "/v2/events")
		if err != nil {
			return
		}
		for kind, id := range p.Subscriptions {
			for {
				if done, err := c.drained(p, id, events, wantedBy[kind]); err != nil {
					return
				} else if done {
					break
				}
				select {
				case <-tick.C:
				case <-deadline:
					return
				}
			}
		}
	}
}

// drained reports whether the subscription's deliveries have ended and contain all
// events with one of the names.
func (c *Chaos) drained(p *Program, subscription string, events []webhook.EventRef, names []string) (bool, error) {
	deliveries, err := harness.Feed[harness.Delivery](c.Instance, p.Token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries")
	if err != nil {
		return false, err
	}
	within := make(map[string]bool)
	for i := range deliveries {
		d := &deliveries[i]
		if !d.Status.Final() {
			return false, nil
		}
		for _, e := range d.Events {
			within[e.ID] = within[e.ID] || !sentAgain(d)
		}
	}
	return !slices.ContainsFunc(events, func(e webhook.EventRef) bool {
		return slices.Contains(names, e.Name) && !within[e.ID]
	}), nil
}
