package api

import "service/webhook"

// incidentRecord is an incident in the API.
type incidentRecord struct {
	ID               string           `json:"id"`
	SubscriptionID   string           `json:"subscription_id"`
	ProgramID        string           `json:"program_id"`
	Status           string           `json:"status"`
	FailingReason    *string          `json:"failing_reason"`
	OpenedAt         timestamp        `json:"opened_at"`
	ClosedAt         timestamp        `json:"closed_at"`
	ClosedBy         *string          `json:"closed_by"`
	FirstFailureAt   timestamp        `json:"first_failure_at"`
	LastSuccessAt    timestamp        `json:"last_success_at"`
	LastFailure      *incidentFailure `json:"last_failure"`
	NextProbeAt      timestamp        `json:"next_probe_at"`
	ProbesFailed     int              `json:"probes_failed"`
	WaitingEvents    int              `json:"waiting_events"`
	FailedDeliveries int64            `json:"failed_deliveries"`
	ResendFrom       timestamp        `json:"resend_from"`
	Timeline         []incidentEntry  `json:"timeline,omitzero"` // only if read individually
}

// incidentFailure is the last attempt that failed.
type incidentFailure struct {
	At             timestamp     `json:"at"`
	DeliveryID     *string       `json:"delivery_id"`
	ResponseStatus *int          `json:"response_status"`
	Error          *attemptError `json:"error"`
}

// incidentEntry is an entry of a timeline. Fields that do not apply to its kind are null.
type incidentEntry struct {
	At             timestamp     `json:"at"`
	Kind           string        `json:"kind"`
	Alert          *string       `json:"alert"`
	DeliveryID     *string       `json:"delivery_id"`
	ResponseStatus *int          `json:"response_status"`
	Error          *attemptError `json:"error"`
	ReplayID       *string       `json:"replay_id"`
	BulkRunID      *string       `json:"bulk_run_id"`
	Deliveries     *int64        `json:"deliveries"`
}

func newIncidentRecord(i *webhook.Incident) incidentRecord {
	r := incidentRecord{
		ID: i.ID, SubscriptionID: i.SubscriptionID, ProgramID: i.ProgramID, Status: i.Status(),
		FailingReason: webhook.OrNull(string(i.FailingReason)), ProbesFailed: i.Probes, WaitingEvents: i.WaitingEvents,
		OpenedAt: timestamp(i.OpenedAt), ClosedAt: timestamp(i.ClosedAt), ClosedBy: webhook.OrNull(string(i.ClosedBy)),
		FirstFailureAt: timestamp(i.FirstFailure), LastSuccessAt: timestamp(i.LastSuccess), NextProbeAt: timestamp(i.NextProbe),
		FailedDeliveries: i.Failed, ResendFrom: timestamp(i.FailedFrom),
	}
	if !i.LastFailure.IsZero() {
		r.LastFailure = &incidentFailure{
			timestamp(i.LastFailure), webhook.OrNull(i.DeliveryID), webhook.OrNull(i.ResponseStatus), newAttemptError(i.Error),
		}
	}
	return r
}

// newWholeIncidentRecord returns the record of a single incident, with its timeline.
func newWholeIncidentRecord(i *webhook.Incident) incidentRecord {
	r := newIncidentRecord(i)
	r.Timeline = make([]incidentEntry, len(i.Timeline))
	for n, e := range i.Timeline {
		entry := incidentEntry{At: timestamp(e.At), Kind: string(e.Kind), Alert: webhook.OrNull(string(e.Alert))}
		if p := e.Probe; p != nil {
			entry.DeliveryID, entry.ResponseStatus = webhook.OrNull(p.DeliveryID), webhook.OrNull(p.ResponseStatus)
			entry.Error = newAttemptError(p.Error)
		}
		if s := e.Resent; s != nil {
			entry.ReplayID, entry.Deliveries = webhook.OrNull(s.ReplayID), &s.Deliveries
			if s.ProgramID == i.ProgramID { // a run over all programs is not readable here
				entry.BulkRunID = webhook.OrNull(s.BulkRunID)
			}
		}
		r.Timeline[n] = entry
	}
	return r
}

func findIncident(req *request) error {
	i, err := req.api.store.Incidents().Get(req.ctx, req.program(), req.params.ByName("id"))
	req.incident = &i
	return err
}

func listIncidents(req *request) (answer, error) {
	all, next, err := req.api.store.Incidents().Page(req.ctx, req.program(), &req.query)
	return listAnswer(all, newIncidentRecord, newFeedMeta(&req.query, next), err)
}

func readIncident(req *request) (answer, error) {
	return answer{data: newWholeIncidentRecord(req.incident), tagged: true}, nil
}
