package api

import (
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// replayRecord is a replay in the API.
type replayRecord struct {
	ID             string               `json:"id"`
	SubscriptionID string               `json:"subscription_id"`
	Only           webhook.ReplayOnly   `json:"only"`
	FromAt         timestamp            `json:"from_at"` // both ends are included
	ToAt           timestamp            `json:"to_at"`
	Events         []replayEvent        `json:"events"`
	Status         webhook.ReplayStatus `json:"status"`
	Progress       replayProgress       `json:"progress"`
	EventsSent     int64                `json:"events_sent"`
	Deliveries     int64                `json:"deliveries"`
	CreatedAt      timestamp            `json:"created_at"`
	CompletedAt    timestamp            `json:"completed_at"`
}

type replayEvent struct {
	Name string `json:"name"`
}

// replayProgress counts positions of the event log.
type replayProgress struct {
	Scanned int64 `json:"scanned"`
	Total   int64 `json:"total"`
}

// replayCount is the result of a dry run.
type replayCount struct {
	DryRun     bool  `json:"dry_run"`
	Events     int64 `json:"events"`
	Deliveries int64 `json:"deliveries"` // minimum
	Complete   bool  `json:"complete"`
}

// newReplayRecord returns the record of a replay. Its end is inclusive in the API and
// exclusive in the store.
func newReplayRecord(r *webhook.Replay) replayRecord {
	return replayRecord{
		ID: r.ID, SubscriptionID: r.SubscriptionID, Only: r.Only,
		FromAt: timestamp(r.From), ToAt: timestamp(r.To.Add(-time.Millisecond)),
		Events: recordsOf(r.Events, func(name *string) replayEvent { return replayEvent{*name} }),
		Status: r.Status, Progress: replayProgress{r.Scanned, r.Total},
		EventsSent: r.EventsSent, Deliveries: r.Deliveries,
		CreatedAt: timestamp(r.CreatedAt), CompletedAt: timestamp(r.CompletedAt),
	}
}

func findReplay(req *request) error {
	r, err := req.api.store.Replays().Get(req.ctx, req.program(), req.params.ByName("id"), req.params.ByName("replay_id"))
	req.replay = &r
	return err
}

// createReplay starts a replay, or with dry_run counts its events. It reads the plan before the write, to
// keep the write short.
func createReplay(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	fields, invalid := webhook.ParseReplay(body, req.subscription, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	if fields.DryRun {
		n, err := req.api.store.Replays().Count(req.ctx, req.program(), req.subscription.ID, &fields, req.api.batchSize)
		if err != nil {
			return answer{}, err
		}
		count := replayCount{true, n.Events, n.Deliveries, n.Complete}
		return req.create(func(store.Write) (answer, error) { return answer{data: count}, nil })
	}
	plan, err := req.api.store.Replays().Plan(req.ctx, req.program(), req.subscription.ID, &fields)
	if err != nil {
		return answer{}, err
	}
	return req.create(func(w store.Write) (answer, error) {
		r, err := w.Replays().Create(plan, req.actor())
		location := "/v2/webhooks/subscriptions/" + r.SubscriptionID + "/replays/" + r.ID
		return answer{status: http.StatusAccepted, location: location, data: newReplayRecord(&r)}, err
	})
}

func listReplays(req *request) (answer, error) {
	replays, next, err := req.api.store.Replays().Page(req.ctx, req.program(), req.subscription.ID, &req.query)
	return listAnswer(replays, newReplayRecord, newFeedMeta(&req.query, next), err)
}

func replayAnswer(r *webhook.Replay) answer {
	return answer{data: newReplayRecord(r), tagged: true}
}

func readReplay(req *request) (answer, error) { return replayAnswer(req.replay), nil }

// cancelReplay stops a running replay.
func cancelReplay(req *request) (answer, error) {
	var r webhook.Replay
	err := req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		r, err = w.Replays().Cancel(req.program(), req.replay.SubscriptionID, req.replay.ID, req.actor())
		return err
	})
	return answer{data: newReplayRecord(&r)}, err
}
