package web

import (
	"net/http"
	"time"

	"service/internal/ratelimit"
	"service/store"
	"service/web/ui"
	"service/webhook"
)

// sharedPages show a delivery to every visitor with a link to it.
type sharedPages struct {
	*site
	limiter *ratelimit.Limiter
}

// shareLimit limits invalid links per network. Links cannot be guessed: the limit slows down
// visitors who try.
var shareLimit = ratelimit.Limit{Name: "share", Burst: 30, Interval: 10 * time.Second}

// show shows a delivery as the API does to its partner: no bodies or headers of responses, no
// details for admins, and of the URL only the host.
func (h *sharedPages) show(r *request) (response, error) {
	view, share, open, err := h.store.Deliveries().Shared(r.Context(), r.PathValue("code"))
	if err != nil {
		return response{}, err
	}
	if !open {
		// A valid link always works: others in its network can send many invalid ones.
		if wait := h.limiter.Allow(ratelimit.Try{Limit: shareLimit, Key: webhook.Network(addressOf(r)).String()}); wait > 0 {
			return response{}, &problem{status: http.StatusTooManyRequests, title: "Too many invalid links", public: true, retryAfter: wait,
				text: "Try again in " + ui.Duration(wait+time.Second) + "."}
		}
		return response{}, &problem{
			status: http.StatusNotFound, title: "This link is not valid", public: true,
			text: "A link to a delivery works for 7 days, and can be revoked. Ask the person who sent it for a new one.",
		}
	}
	return response{page: sharedPage(h.frame(r, "Delivery"), newSharedDelivery(&view), share.ExpiresAt), secret: true}, nil
}

// newSharedDelivery returns a delivery without the fields that only admins may see.
func newSharedDelivery(view *store.DeliveryView) *deliveryRecord {
	d := &deliveryRecord{DeliveryView: *view}
	d.Attempts = nil
	d.ReplayID, d.RecoveredBy, d.Redeliveries = "", "", nil
	for _, a := range view.Attempts {
		d.attempts = append(d.attempts, attemptRecord{Attempt: webhook.Attempt{
			Number: a.Number, StartedAt: a.StartedAt, Duration: a.Duration, Result: a.Result, ResponseStatus: a.ResponseStatus, Error: a.Error,
		}})
	}
	if d.EventJSON != nil {
		d.body = webhook.AppendBody(nil, d.ID, d.SubscriptionID, d.ProgramID, d.EventJSON)
	}
	return d
}

// sharedOutcome describes the result of an attempt, as the API does.
func sharedOutcome(a *webhook.Attempt) string {
	if a.Error != webhook.ErrorNone {
		return a.Error.Detail()
	}
	return outcomeText(a)
}

// share creates a link to a delivery, and shows it once.
func (h *deliveryPages) share(r *request, d *deliveryRecord) (response, error) {
	var sh webhook.Share
	var code string
	err := h.store.Write(r, func(sw store.Write) (err error) {
		sh, code, err = sw.Deliveries().Share(d.ProgramID, d.ID, r.actor())
		return err
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	link := h.cfg.BaseURL + webhook.SharePath + code
	return response{page: createdSharePage(h.frame(r, "Link to the delivery"), &sh, link), secret: true}, nil
}

// revokeShare ends a link to a delivery.
func (h *deliveryPages) revokeShare(r *request, d *deliveryRecord) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error { return sw.Shares().Revoke(d.ID, r.PathValue("share"), r.actor()) })
	return saved(err, deliveryPath(d.ID)+"#shares", "Link revoked. It no longer works.")
}
