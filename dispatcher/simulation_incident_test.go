package dispatcher

import (
	"context"
	"net/url"

	"service/webhook"
)

// auditIncidents compares the stored incidents of a subscription with its status
// and its deliveries. The caller holds s.mu.
func (s *simulation) auditIncidents(sub *modelSubscription, stored map[string]webhook.Delivery) {
	current, err := s.d.store.Subscriptions().Get(context.Background(), sub.program, sub.id)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
		return
	}
	all, err := s.incidents(sub)
	if err != nil {
		s.violate(promiseOperates, "%v", err)
		return
	}
	failed := int64(0)
	var open []webhook.Incident
	for _, i := range all {
		failed += i.Failed
		if i.Open() {
			open = append(open, i)
		}
	}
	switch failing := current.Status != webhook.HealthHealthy; {
	case len(open) > 1:
		s.violate(promiseIncident, "subscription %d has %d open incidents, want at most 1", sub.index, len(open))
	case failing && (len(open) == 0 || open[0].FailingReason == ""):
		s.violate(promiseIncident, "subscription %d is %s and has no open incident", sub.index, current.Status)
	case !failing && len(open) == 1 && (open[0].FailingReason != "" || open[0].Failed == 0):
		s.violate(promiseIncident, "subscription %d is healthy and has an incident open after its recovery", sub.index)
	}
	counted := failed
	alone, uncounted, expired := s.permanentFailures(sub, stored)
	failed -= alone
	// Retention removes deliveries and incidents of different ages.
	if (failed > 0 || failed < -uncounted) && s.changes.removedBefore.IsZero() {
		s.violate(promiseIncident, "subscription %d: its incidents count %d permanent failures too many", sub.index, failed)
	}
	// An incident is kept as long as the deliveries that expired during it, unless the clock was
	// set.
	if !s.jumped && counted < expired {
		s.violate(promiseIncident, "subscription %d: its incidents count %d permanent failures, and %d deliveries expired",
			sub.index, counted, expired)
	}
}

// permanentFailures counts three kinds of deliveries: those that failed permanently and that
// incidents count, those of them that may be uncounted because the subscription's URL has changed
// since, and those that expired.
func (s *simulation) permanentFailures(sub *modelSubscription, stored map[string]webhook.Delivery) (failed, uncounted, expired int64) {
	for _, d := range stored {
		if d.Events[0].Name == webhook.EventPing {
			continue
		}
		switch d.FailureReason {
		case webhook.FailureExpired:
			if !d.CompletedAt.Before(s.changes.removedBefore) {
				expired++
			}
		case webhook.FailureRejected, webhook.FailureAttemptsExhausted, webhook.FailureBlocked:
			if len(d.Events) > 1 { // its events are sent again
				continue
			}
			failed++
			if m := sub.byID[d.ID]; m == nil || m.last().earlierURL {
				uncounted++
			}
		}
	}
	return failed, uncounted, expired
}

func (s *simulation) incidents(sub *modelSubscription) (all []webhook.Incident, err error) {
	values := url.Values{"page[size]": {"100"}, "filter[subscription_id]": {sub.id}}
	for {
		query, invalid := webhook.IncidentList.Parse(values)
		if invalid != nil {
			return nil, invalid
		}
		page, next, err := s.d.store.Incidents().Page(context.Background(), sub.program, &query)
		if err != nil {
			return nil, err
		}
		if all = append(all, page...); next == "" {
			return all, nil
		}
		values.Set("page[cursor]", next)
	}
}
