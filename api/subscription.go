package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// subscriptionRecord is a subscription in the API.
type subscriptionRecord struct {
	ID                     string              `json:"id"`
	URL                    string              `json:"url"`
	Active                 bool                `json:"active"`
	Description            string              `json:"description"`
	Events                 []subscriptionEvent `json:"events"`
	Ordered                bool                `json:"ordered"`
	MaxInFlight            int                 `json:"max_in_flight"` // 0: the operator's default
	MaxPerSecond           *float64            `json:"max_per_second"`
	MaxEvents              *int                `json:"max_events"` // null: the operator's batch size
	HasAuthorizationHeader bool                `json:"has_authorization_header"`
	HeaderNames            []string            `json:"header_names"`
	Status                 webhook.Health      `json:"status"`
	FailingReason          *string             `json:"failing_reason"` // null unless it is failing, like the next two
	FailingSince           timestamp           `json:"failing_since"`
	NextProbeAt            timestamp           `json:"next_probe_at"`
	DisabledReason         *string             `json:"disabled_reason"`
	CreatedAt              timestamp           `json:"created_at"`
	UpdatedAt              timestamp           `json:"updated_at"`
	SigningSecret          string              `json:"signing_secret,omitempty"`       // only in the response that created or rotated it
	OldSecretExpiresAt     timestamp           `json:"old_secret_expires_at,omitzero"` // only in the response that rotated it
}

type subscriptionEvent struct {
	Name    string               `json:"name"`
	Version string               `json:"version"`
	Filter  *webhook.EventFilter `json:"filter,omitempty"`
}

func newSubscriptionRecord(s *webhook.Subscription) subscriptionRecord {
	r := subscriptionRecord{
		ID: s.ID, URL: s.URL, Active: s.Active, Description: s.Description,
		Events: make([]subscriptionEvent, len(s.Events)), Ordered: s.Ordered, MaxInFlight: s.MaxInFlight,
		MaxPerSecond: webhook.OrNull(s.MaxPerSecond), MaxEvents: webhook.OrNull(s.MaxEvents),
		HasAuthorizationHeader: s.HasAuthorizationHeader, HeaderNames: s.HeaderNames, Status: s.Status,
		FailingReason: webhook.OrNull(string(s.FailingReason)), FailingSince: timestamp(s.FailingSince), NextProbeAt: timestamp(s.NextProbeAt),
		DisabledReason: webhook.OrNull(s.DisabledReason), CreatedAt: timestamp(s.CreatedAt), UpdatedAt: timestamp(s.UpdatedAt),
	}
	for i, name := range s.Events {
		r.Events[i] = subscriptionEvent{name, webhook.EventVersion, s.Filters[name]}
	}
	return r
}

func findSubscription(req *request) error {
	s, err := req.api.store.Subscriptions().Get(req.ctx, req.program(), req.params.ByName("id"))
	req.subscription = &s
	return err
}

// createSubscription stores a subscription and returns its signing secret, which no later response
// contains.
func createSubscription(req *request) (answer, error) {
	fields, err := subscriptionFields(req, true)
	if err != nil {
		return answer{}, err
	}
	return req.create(func(w store.Write) (answer, error) {
		s, secret, err := w.Subscriptions().Create(req.program(), req.token.UserID, &fields, req.api.maxSubscriptions, req.actor())
		if err != nil {
			return answer{}, err
		}
		r := newSubscriptionRecord(&s)
		r.SigningSecret = secret.Reveal()
		return answer{status: http.StatusCreated, location: "/v2/webhooks/subscriptions/" + s.ID, data: r}, nil
	})
}

// rotateSecret returns the new secret and the time until which the old one is valid.
func rotateSecret(req *request) (answer, error) {
	body, err := req.readOptionalJSON()
	if err != nil {
		return answer{}, err
	}
	rotation, invalid := webhook.ParseRotation(body)
	if invalid != nil {
		return answer{}, invalid
	}
	return req.create(func(w store.Write) (answer, error) {
		s, secret, until, err := w.Subscriptions().RotateSecret(req.program(), req.subscription.ID, rotation, req.actor())
		if err != nil {
			return answer{}, err
		}
		r := newSubscriptionRecord(&s)
		r.SigningSecret, r.OldSecretExpiresAt = secret.Reveal(), timestamp(until)
		return answer{data: r}, nil
	})
}

// subscriptionFields parses the body of a request that creates or updates a subscription.
func subscriptionFields(req *request, creating bool) (webhook.SubscriptionFields, error) {
	body, err := req.readJSON()
	if err != nil {
		return webhook.SubscriptionFields{}, err
	}
	rules := req.api.rules
	if !creating {
		rules.Kept, rules.KeptFilters = req.subscription.Events, req.subscription.Filters
	}
	fields, invalid := rules.Parse(body, creating)
	if invalid != nil {
		return fields, invalid
	}
	if fields.ID != nil && *fields.ID != req.subscription.ID {
		return fields, webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidValue, Parameter: "id", Detail: "must be the id in the URL, or be omitted",
		})
	}
	return fields, nil
}

func listSubscriptions(req *request) (answer, error) {
	subs, total, err := req.api.store.Subscriptions().Page(req.ctx, req.program(), &req.query)
	return listAnswer(subs, newSubscriptionRecord, newPageMeta(&req.query, total), err)
}

// subscriptionAnswer returns the response to a GET. The revision makes its ETag change with
// the credentials, which the record does not show.
func subscriptionAnswer(s *webhook.Subscription) answer {
	return answer{data: newSubscriptionRecord(s), tagged: true, revision: s.Revision}
}

func readSubscription(req *request) (answer, error) {
	return subscriptionAnswer(req.subscription), nil
}

func updateSubscription(req *request) (answer, error) {
	fields, err := subscriptionFields(req, false)
	if err != nil {
		return answer{}, err
	}
	return changeSubscription(req, func(w store.Write) (webhook.Subscription, error) {
		return w.Subscriptions().Update(req.program(), req.subscription.ID, &fields, req.actor())
	})
}

// deleteSubscription returns the record as it was before the deletion. Its deliveries end in the background.
func deleteSubscription(req *request) (answer, error) {
	return changeSubscription(req, func(w store.Write) (webhook.Subscription, error) {
		return w.Subscriptions().Delete(req.program(), req.subscription.ID, req.actor())
	})
}

// changeSubscription runs a write that changes the subscription, if the preconditions of the request are met
// within that write.
func changeSubscription(req *request, change func(store.Write) (webhook.Subscription, error)) (answer, error) {
	conditions, err := req.conditions()
	if err != nil {
		return answer{}, err
	}
	var s webhook.Subscription
	err = req.api.store.Write(req.ctx, func(w store.Write) error {
		err := conditions.write(func() (answer, error) {
			s, err := w.Subscriptions().Get(req.program(), req.subscription.ID)
			return subscriptionAnswer(&s), err
		})
		if err == nil {
			s, err = change(w)
		}
		return err
	})
	return answer{data: newSubscriptionRecord(&s)}, err
}

// pingRecord is the result of a ping, test or probe (spec, section 4.2).
type pingRecord struct {
	Delivery struct {
		ID             string         `json:"id"`
		Status         webhook.Result `json:"status"`
		ResponseStatus *int           `json:"response_status"`
		DurationMS     int64          `json:"duration_ms"`
		Error          *attemptError  `json:"error"`
	} `json:"delivery"`
	Subscription struct {
		ID  string `json:"id"`
		URL string `json:"url"`
	} `json:"subscription"`
}

// pingSubscription waits for the first attempt of a ping.
func pingSubscription(req *request) (answer, error) {
	s, d, err := req.api.store.Subscriptions().Ping(req.ctx, req.program(), req.subscription.ID)
	return firstAttempt(req, "ping", &s, &d, err)
}

// firstAttempt returns the response with the first attempt of a ping or a test. After the timeout the ping
// or test continues as a delivery, which the error names.
func firstAttempt(req *request, noun string, s *webhook.Subscription, d *webhook.Delivery, err error) (answer, error) {
	if errors.Is(err, context.DeadlineExceeded) && d.ID != "" {
		err = webhook.NewError(webhook.CodeTimeout, fmt.Sprintf(
			"The first attempt of the %s was not completed within %s. The %[1]s continues as delivery %[3]s.", noun, req.api.timeout, d.ID))
	}
	if err != nil {
		return answer{}, err
	}
	return answer{data: newPingRecord(s, d.ID, &d.Attempts[0])}, nil
}

// testSubscription sends the example of an event type to this subscription only.
func testSubscription(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	event, invalid := req.api.catalog.ParseTest(body, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	s, d, err := req.api.store.Subscriptions().Test(req.ctx, req.program(), req.subscription.ID, event)
	return firstAttempt(req, "test", &s, &d, err)
}

// probeSubscription sends the next probe of a failing subscription now.
func probeSubscription(req *request) (answer, error) {
	s, r, err := req.api.store.Subscriptions().Probe(req.ctx, req.program(), req.subscription.ID)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && s.ID != "" {
		return answer{}, webhook.NewError(webhook.CodeTimeout, fmt.Sprintf(
			"The probe was not completed within %s. It continues in the background.", req.api.timeout))
	}
	if err != nil {
		return answer{}, err
	}
	return answer{data: newPingRecord(&s, r.DeliveryID, &r.Attempt)}, nil
}

func newPingRecord(s *webhook.Subscription, deliveryID string, attempt *webhook.Attempt) (r pingRecord) {
	a := newAttemptRecord(attempt)
	r.Delivery.ID, r.Delivery.Status, r.Delivery.ResponseStatus = deliveryID, a.Result, a.ResponseStatus
	r.Delivery.DurationMS, r.Delivery.Error = a.DurationMS, a.Error
	r.Subscription.ID, r.Subscription.URL = s.ID, s.URL
	return r
}
