package web

import (
	"net/netip"
	"net/url"
	"strconv"

	"service/web/portal"
	"service/web/ui"
	"service/webhook"
)

// madeUpExample is shown while there is no delivery. Its signature belongs to no subscription.
func madeUpExample(r *request) *portal.Example {
	id, now := webhook.NewID(), r.clock.Now
	body := webhook.AppendBody(nil, id, webhook.NewID(), r.program, [][]byte{webhook.PingEvent(webhook.NewID(), now)})
	return &portal.Example{ID: id, Timestamp: strconv.FormatInt(now.Unix(), 10), Signature: webhook.NewSigningSecret().Sign(id, now, body),
		Body: body}
}

// verifyView is the page that shows how to verify a signature.
type verifyView struct {
	delivery *deliveryRecord // the last one, nil for none
	example  *portal.Example
	receiver string // program that receives deliveries

	loopback bool // deliveries to this computer are permitted

	checklist []string // of the guide for receivers
}

// recentForVerify is how many recent deliveries are searched for one that was sent.
const recentForVerify = 20

// verify shows how to verify a signature, with the last delivery of the program or of one of its
// subscriptions as the example.
func (h *portalPages) verify(r *request) (response, error) {
	values := url.Values{"page[size]": {strconv.Itoa(recentForVerify)}}
	if id := r.URL.Query().Get("subscription"); webhook.IsID(id) {
		values.Set("filter[subscription_id]", id)
	}
	q, invalid := webhook.ProgramDeliveryList.Parse(values)
	if invalid != nil {
		return response{}, invalid
	}
	page, _, err := h.store.Deliveries().PageProgram(r.Context(), r.program, &q)
	if err != nil {
		return response{}, asProblem(err)
	}
	v := verifyView{
		example: madeUpExample(r), receiver: portal.Receiver(), checklist: h.cfg.Receiving.Checklist(),
		loopback: h.cfg.Rules.AllowHTTP && h.cfg.Rules.Destinations.Allows(netip.AddrFrom4([4]byte{127, 0, 0, 1})),
	}
	for i := range page {
		if page[i].AttemptsMade == 0 {
			continue
		}
		if v.delivery, err = h.exampleOf(r, page[i].ID, v.example); err != nil {
			return response{}, err
		}
		if v.delivery != nil {
			break
		}
	}
	return response{page: verifyPage(h.frame(r, "Verify signatures"), &v)}, nil
}

// exampleOf sets the example to a delivery. It returns nil if the delivery can no longer be signed.
func (h *portalPages) exampleOf(r *request, id string, e *portal.Example) (*deliveryRecord, error) {
	view, err := h.store.Deliveries().View(r.Context(), id)
	if isCallerError(err) || err == nil && (!r.mine(view.ProgramID) || view.EventJSON == nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	withoutResponses(view.Attempts)
	d := &deliveryRecord{DeliveryView: view, attempts: attemptRecords(id, view.Attempts)}
	d.body = webhook.AppendBody(nil, d.ID, d.SubscriptionID, d.ProgramID, d.EventJSON)
	at := d.sentAt()
	signature, err := h.store.Subscriptions().Sign(r.Context(), d.ProgramID, d.SubscriptionID, d.ID, at, d.body)
	if isCallerError(err) || at.IsZero() {
		return nil, nil // the subscription is deleted
	}
	if err != nil {
		return nil, err
	}
	*e = portal.Example{ID: d.ID, Timestamp: strconv.FormatInt(at.Unix(), 10), Signature: signature, Body: d.body}
	return d, nil
}

// subscriptionName is the display name of a delivery's subscription.
func (d *deliveryRecord) subscriptionName() string {
	name, _ := subscriptionName(&d.Subscription)
	return ui.Visible(name)
}
