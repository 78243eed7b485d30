package store

import (
	"context"
	"errors"

	"service/store/record"
	"service/store/replica"
	"service/store/watch"
	"service/webhook"
)

// LogPage is a page of [Events.Pull].
type LogPage = record.LogPage

// Waiter is a request that waits for events.
type Waiter = watch.Waiter

// Pull is [record.Events.Log]. With an AcknowledgeTimeout it returns only events that are in the
// replica: for newer ones it waits like [Replica.Acknowledge].
func (s Events) Pull(ctx context.Context, programID string, sub *webhook.Subscription, q *webhook.ListQuery) (LogPage, error) {
	p, err := s.Log(ctx, programID, sub, q)
	if err != nil || len(p.Events) == 0 || s.replication == nil || s.replication.AcknowledgeTimeout() == 0 {
		return p, err
	}
	if s.pulled.Covered(s.replication, programID, p.Events[len(p.Events)-1].Seq) {
		return p, nil
	}
	commits := s.db.Writer().VisibleCommits()
	err = s.replication.Await(ctx, commits)
	if errors.Is(err, replica.ErrNotAcknowledged) {
		err = webhook.NewError(webhook.CodeUnavailable, "The next events are stored on this host, but not in the replica yet. "+
			"Send the request again.")
	}
	if err == nil {
		s.pulled.Add(programID, p.Newest, commits)
	}
	return p, err
}

// Await returns a waiter for events that [Events.Pull] would return, and for changes after which a
// token's request must be checked again. The caller must call its Close.
func (s Events) Await(programID, tokenID string, sub *webhook.Subscription, q *webhook.ListQuery) *Waiter {
	keys := []watch.EventKey{watch.ProgramKey(programID), watch.RecordKey(tokenID)}
	names := q.Filters["name"]
	switch {
	case sub != nil:
		names, keys = sub.Events, append(keys, watch.RecordKey(sub.ID))
	case names == nil:
		names = []string{watch.AnyName}
	}
	for _, name := range names {
		keys = append(keys, watch.EventKey{ProgramID: programID, Name: name})
	}
	return s.watchers.Await(keys...)
}
