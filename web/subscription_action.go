package web

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"service/store"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

const (
	// pingWait is the maximum time that a page waits for the result of a ping.
	pingWait = 15 * time.Second
	// onceLife is how long a one-time form is valid.
	onceLife = 2 * time.Hour
	maxOnce  = 1024
	// maxPortalOnce applies to partners, who cannot use up the codes of admins.
	maxPortalOnce = 8192
	// maxProgramOnce applies to the partners of one program, who cannot use up the codes of others.
	maxProgramOnce = 256
)

// issueOnce returns a code that lets the session submit a form once. The response to that form
// shows a secret, and reloading the response submits the form again.
func (h *subscriptionPages) issueOnce(r *request) string {
	if r.portal.in() {
		return h.portalCodes.IssueIn(r.portal.session.ProgramID, r.portal.session.ID)
	}
	return h.formCodes.Issue(r.session.ID)
}

// useOnce reports whether a form is submitted for the first time.
func (h *subscriptionPages) useOnce(r *request, code string) bool {
	if r.portal.in() {
		of, good := h.portalCodes.Use(code)
		return good && of == r.portal.session.ID
	}
	of, good := h.formCodes.Use(code)
	return good && of == r.session.ID
}

// sentBefore is the error of a form that was submitted before.
const sentBefore = "This form was submitted before, or has expired. Nothing was changed. Check whether the first submission succeeded, " +
	"or submit the form again."

// recorded returns a function that records an action in the write in which the store performs it.
func (r *request) recorded(action webhook.Action, u *record.SubscriptionView, detail string) func(store.Write) error {
	return r.checked(func(sw store.Write) error {
		return sw.Subscriptions().Record(r.actor(), action, &u.Subscription, detail)
	})
}

func (h *subscriptionPages) ping(r *request, u *record.SubscriptionView) (response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), pingWait)
	defer cancel()
	_, d, err := h.store.Subscriptions().Ping(ctx, u.ProgramID, u.ID, r.recorded(webhook.ActionSubscriptionPing, u, ""))
	return showSent(u.ID, &d, err)
}

// showSent redirects to the attempt of a delivery that was sent immediately. If err is
// [context.DeadlineExceeded] there is no result yet, and the page says so.
func showSent(subscriptionID string, d *webhook.Delivery, err error) (response, error) {
	if err != nil && (d.ID == "" || !errors.Is(err, context.DeadlineExceeded)) {
		return response{}, asProblem(err)
	}
	return response{location: subscriptionPath(subscriptionID) + "?ping=" + url.QueryEscape(d.ID) + "#ping"}, nil
}

// test sends the example of an event type to this subscription only.
func (h *subscriptionPages) test(r *request, u *record.SubscriptionView) (response, error) {
	form := r.PostForm
	event, invalid := h.cfg.Rules.Catalog.TestEvent(form.Get("name"), time.Now())
	if invalid != nil {
		return response{}, &problem{status: http.StatusUnprocessableEntity, title: "Unknown event type",
			text: "Nothing was sent. Choose an event type of the catalog other than ping."}
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingWait)
	defer cancel()
	_, d, err := h.store.Subscriptions().Test(ctx, u.ProgramID, u.ID, event, r.recorded(webhook.ActionSubscriptionTest, u, event.Name))
	return showSent(u.ID, &d, err)
}

// probe sends the next probe of a failing subscription now, and shows the result.
func (h *subscriptionPages) probe(r *request, u *record.SubscriptionView) (response, error) {
	ctx, cancel := context.WithTimeout(r.Context(), pingWait)
	defer cancel()
	s, probed, err := h.store.Subscriptions().Probe(ctx, u.ProgramID, u.ID, r.recorded(webhook.ActionSubscriptionProbe, u, ""))
	to := response{location: subscriptionPath(u.ID)}
	var refused *webhook.Error
	switch {
	case errors.As(err, &refused) && refused.Code == webhook.CodeConflict:
		to.note = &ui.Note{Kind: ui.NoteWarning, Text: refused.Detail}
	case errors.Is(err, context.DeadlineExceeded) && s.ID != "":
		to.note = &ui.Note{Kind: ui.NoteWarning, Text: "The probe is still in progress. Reload the page to see its result under Deliveries."}
	case err != nil:
		return response{}, asProblem(err)
	default:
		to.location += "?probe=" + url.QueryEscape(probed.DeliveryID) + "#ping"
	}
	return to, nil
}

func (h *subscriptionPages) pause(r *request, u *record.SubscriptionView) (response, error) {
	return h.setActive(r, u, false,
		"Subscription paused. Only pings and tests are sent. "+
			"Events published until you resume it are not delivered; replay the missed ones then.")
}

func (h *subscriptionPages) resume(r *request, u *record.SubscriptionView) (response, error) {
	return h.setActive(r, u, true,
		"Subscription resumed. New events are delivered. You can replay the events that it missed.")
}

func (h *subscriptionPages) setActive(r *request, u *record.SubscriptionView, active bool, text string) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		_, err := sw.Subscriptions().Update(u.ProgramID, u.ID, &webhook.SubscriptionFields{Active: &active}, r.actor())
		return err
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	return done(subscriptionPath(u.ID), text)
}

// confirmRotate shows the effects of a secret rotation.
func (h *subscriptionPages) confirmRotate(r *request, u *record.SubscriptionView) (response, error) {
	return h.renderRotate(r, u, "", nil, http.StatusOK), nil
}

func (h *subscriptionPages) renderRotate(
	r *request, u *record.SubscriptionView, refused string, faults []ui.FieldError, status int,
) response {
	return response{page: rotatePage(h.frame(r, "Rotate secret"), u, h.issueOnce(r), refused, faults, r.PostForm.Has("end_old"),
		h.curl.Command("POST", apiSubscriptionPath(u.ID)+"/rotate_secret", "")), status: status}
}

// rotateSecret rotates the secret. Only this response shows the new and the previous secret.
func (h *subscriptionPages) rotateSecret(r *request, u *record.SubscriptionView) (response, error) {
	form := r.PostForm
	if !h.useOnce(r, form.Get("once")) {
		return h.renderRotate(r, u, sentBefore, nil, http.StatusConflict), nil
	}
	rotation := webhook.Rotation{EndOld: form.Has("end_old")}
	var err error
	if own := strings.TrimSpace(form.Get("own_secret")); own != "" {
		if rotation.Secret, err = webhook.ParseSigningSecret(own); err != nil {
			faults := []ui.FieldError{{ID: "own-secret", Label: "Own secret", Text: err.Error()}}
			return h.renderRotate(r, u, "", faults, http.StatusUnprocessableEntity), nil
		}
	}
	var s webhook.Subscription
	var secret, before webhook.SigningSecret
	var until time.Time
	err = h.store.Write(r, func(sw store.Write) (err error) {
		if before, err = sw.Subscriptions().SigningSecret(u.ProgramID, u.ID); err != nil {
			return err
		}
		s, secret, until, err = sw.Subscriptions().RotateSecret(u.ProgramID, u.ID, rotation, r.actor())
		return err
	})
	var refused *webhook.Error
	if errors.As(err, &refused) && refused.Code == webhook.CodeConflict {
		return h.renderRotate(r, u, refused.Detail, nil, http.StatusConflict), nil
	}
	if faults := ui.FieldErrors(err, map[string][2]string{"signing_secret": {"own-secret", "Own secret"}}); faults != nil {
		return h.renderRotate(r, u, "", faults, http.StatusUnprocessableEntity), nil
	}
	if err != nil {
		return response{}, asProblem(err)
	}
	n := &newSecret{subscription: &s, secret: secret, rotated: true}
	if !rotation.EndOld {
		n.before, n.old = before, append(u.OldSecrets, until)
	}
	return response{secret: true, page: secretPage(h.frame(r, "New signing secret"), n)}, nil
}

// newSecret is a signing secret to show once.
type newSecret struct {
	subscription *webhook.Subscription
	secret       webhook.SigningSecret
	rotated      bool                  // it replaces another
	before       webhook.SigningSecret // the previous secret, if it still signs until the last time of old; otherwise nil
	old          []time.Time           // when each older secret expires
}

// replayForm is the form of a replay, with a count of what the replay would send.
type replayForm struct {
	subscription *record.SubscriptionView
	only         webhook.ReplayOnly
	from, to     string // as typed, or in the format of the browser's fields
	faults       []ui.FieldError
	counted      bool
	fields       webhook.ReplayFields
	count        store.ReplayCount // if counted
	refused      string            // why the replay is not possible, "" if it is
	curl         string
}

// body returns the body of the equivalent API request.
func (p *replayForm) body(c ui.Clock, dryRun bool) []byte {
	asked := struct {
		From   string `json:"from,omitempty"`
		To     string `json:"to,omitempty"`
		Only   string `json:"only,omitempty"`
		DryRun bool   `json:"dry_run,omitempty"`
	}{c.WithZone(p.from), c.WithZone(p.to), string(p.only), dryRun}
	b, err := json.Marshal(asked)
	if err != nil {
		panic(err) // marshaling strings cannot fail
	}
	return []byte(ui.EscapeJSONText(string(b)))
}

// readReplay reads the form of a replay from a query or a body.
func (h *subscriptionPages) readReplay(r *request, u *record.SubscriptionView, values url.Values) *replayForm {
	p := &replayForm{subscription: u, only: webhook.ReplayOnly(values.Get("only")), from: strings.TrimSpace(values.Get("from")),
		to: strings.TrimSpace(values.Get("to"))}
	if values.Has("from") {
		fields, invalid := webhook.ParseReplay(p.body(r.clock, false), &u.Subscription, r.clock.Now)
		if invalid != nil {
			p.faults = ui.FieldErrors(invalid, map[string][2]string{"from": {"from", "From"}, "to": {"to", "To"}, "only": {"only", "Events"}})
			for i := range p.faults {
				if p.faults[i].ID == "only" {
					p.faults[i].Text = "must be failed, missed or all events"
				}
			}
		}
		p.fields = fields
	} else {
		p.only = webhook.ReplayFailed
		p.from = r.clock.FieldValue(r.clock.Now.Add(-24 * time.Hour).Truncate(time.Minute))
	}
	if !u.Active {
		p.refused = "The subscription is not active, so only pings and tests are sent to it. Resume it first."
	}
	p.curl = h.curl.Command("POST", apiSubscriptionPath(u.ID)+"/replays", string(p.body(r.clock, true)))
	return p
}

// newReplay shows the form and, once the form is complete, the counts.
func (h *subscriptionPages) newReplay(r *request, u *record.SubscriptionView) (response, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "Invalid address",
			text: "The query has an invalid % escape."}
	}
	p := h.readReplay(r, u, values)
	status := http.StatusOK
	if p.faults != nil {
		status = http.StatusUnprocessableEntity
	} else if values.Has("from") && p.refused == "" {
		p.count, err = h.store.Replays().Count(r.Context(), u.ProgramID, u.ID, &p.fields, max(h.cfg.BatchSize, 1))
		if err != nil {
			return response{}, asProblem(err)
		}
		p.counted = true
	}
	return response{page: replayPage(h.frame(r, "Replay"), p), status: status}, nil
}

// createReplay starts a replay.
func (h *subscriptionPages) createReplay(r *request, u *record.SubscriptionView) (response, error) {
	form := r.PostForm
	form["from"] = []string{form.Get("from")} // required
	p := h.readReplay(r, u, form)
	if p.faults != nil || p.refused != "" {
		return response{page: replayPage(h.frame(r, "Replay"), p), status: http.StatusUnprocessableEntity}, nil
	}
	plan, err := h.store.Replays().Plan(r.Context(), u.ProgramID, u.ID, &p.fields)
	if err != nil {
		return response{}, asProblem(err)
	}
	err = h.store.Write(r, func(sw store.Write) error {
		_, err := sw.Replays().Create(plan, r.actor())
		return err
	})
	var refused *webhook.Error
	if errors.As(err, &refused) && refused.Code == webhook.CodeConflict {
		p.refused = refused.Detail
		return response{page: replayPage(h.frame(r, "Replay"), p), status: http.StatusConflict}, nil
	}
	if err != nil {
		return response{}, asProblem(err)
	}
	text := "Replay started."
	if form.Get("only") == string(webhook.ReplayFailed) {
		text = "The events of the failed deliveries are being resent by a replay, listed below."
	}
	return done(subscriptionPath(u.ID)+"#replays", text+" It continues in the background, even after a restart of the service.")
}

func (h *subscriptionPages) cancelReplay(r *request, u *record.SubscriptionView) (response, error) {
	var replay webhook.Replay
	err := h.store.Write(r, func(sw store.Write) (err error) {
		replay, err = sw.Replays().Cancel(u.ProgramID, u.ID, r.PathValue("replay"), r.actor())
		return err
	})
	if err != nil && replay.Status != webhook.ReplayDone && replay.Status != webhook.ReplayCancelled {
		return response{}, asProblem(err)
	}
	done := ui.Note{Kind: ui.NoteSuccess, Text: "Replay cancelled. The " + deliveriesOf(int(replay.Deliveries)) + " that it created continue."}
	if replay.Deliveries == 0 {
		done.Text = "Replay cancelled. It created no deliveries."
	}
	if replay.Status == webhook.ReplayDone {
		done = ui.Note{Kind: ui.NoteWarning, Text: "The replay is no longer running."}
	}
	return response{location: subscriptionPath(u.ID) + "#replays", note: &done}, nil
}

// confirmDelete shows the effects of a deletion.
func (h *subscriptionPages) confirmDelete(r *request, u *record.SubscriptionView) (response, error) {
	return response{page: deletePage(h.frame(r, "Delete subscription"), u, h.curl.Command("DELETE", apiSubscriptionPath(u.ID), ""))}, nil
}

func (h *subscriptionPages) delete(r *request, u *record.SubscriptionView) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		_, err := sw.Subscriptions().Delete(u.ProgramID, u.ID, r.actor())
		return err
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	return done(subscriptionPath(u.ID), "Subscription deleted. It receives nothing more.")
}
