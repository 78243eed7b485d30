// Package move moves programs from one installation to another.
package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	"service/internal/archive"
	"service/store"
	"service/store/datadir"
	"service/webhook"
)

const (
	// maxPause is how long the target keeps the first parts of a program without a request from the
	// source, which exports the next part in that time.
	maxPause = 15 * time.Minute
	// maxWait is how long the target waits for its replica.
	maxWait = 2 * time.Minute
)

// Target receives programs from other installations.
type Target struct {
	Store   *store.Store
	Catalog *webhook.Catalog
	Retry   webhook.RetryPolicy // decides what follows attempts that were in flight
	Version string              // of the binary
	Logger  *slog.Logger

	mu         sync.Mutex
	receptions map[string]*reception // by program ID
}

// reception is a program that is arriving.
type reception struct {
	moveID string
	ended  context.Context // ends the request in progress
	end    context.CancelFunc
	busy   chan struct{}      // contains an element while no request uses from
	from   *store.Reception   // nil before the first part is complete
	types  archive.EventTypes // of all parts
	expiry *time.Timer
}

// use returns a context for a request that also ends with the reception.
func (r *reception) use(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.ended, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// State returns the state of a program at this installation.
func (t *Target) State(ctx context.Context, programID string) (webhook.MoveState, error) {
	y := webhook.MoveState{Status: webhook.MoveNone, Format: archive.ProgramFormat, Version: t.Version}
	var err error
	if y.Schema, err = t.Store.Schema(ctx); err != nil {
		return y, err
	}
	p, err := t.Store.Programs().Get(ctx, programID)
	var refused *webhook.Error
	switch {
	case errors.As(err, &refused) && refused.Code == webhook.CodeNotFound:
		return y, nil
	case err != nil:
		return y, err
	}
	if y.Status = p.Status(); p.Move != nil {
		y.MoveID, y.Forwards = p.Move.ID, p.Move.Forwards
	}
	return y, nil
}

// First receives the part of a program that never changes. It ends an earlier move of the program
// whose program has not arrived. entry is the actor for the audit log.
func (t *Target) First(ctx context.Context, programID, moveID string, body io.Reader, entry webhook.AuditEntry) error {
	r := &reception{moveID: moveID, busy: make(chan struct{}, 1), types: make(archive.EventTypes)}
	r.ended, r.end = context.WithCancel(context.Background())
	ctx, release := r.use(ctx)
	defer release()
	t.mu.Lock()
	before := t.receptions[programID]
	if t.receptions == nil {
		t.receptions = make(map[string]*reception)
	}
	t.receptions[programID] = r
	t.mu.Unlock()
	defer func() { r.busy <- struct{}{} }()
	if before != nil {
		t.end(before)
	}
	x, p, err := t.receive(ctx, programID, body)
	if err == nil {
		defer p.Remove()
		maps.Copy(r.types, p.Types)
		x.Audit = entry
		r.from, err = t.Store.Programs().Receive(ctx, moveID, x)
	}
	if err == nil {
		if err = t.await(ctx, programID, moveID); err != nil { // wait now, so that the rest is in the replica soon
			err = errors.Join(err, r.from.Close())
			r.from = nil
		}
	}
	if err != nil {
		t.forget(programID, r)
		return unusable(err)
	}
	r.expiry = time.AfterFunc(maxPause, func() {
		t.Logger.Warn("removing a program that has not arrived: no request of the source", "program", programID, "move", moveID)
		t.forget(programID, r)
		t.end(r)
	})
	return nil
}

// Changes receives a part between the first and the rest.
func (t *Target) Changes(ctx context.Context, programID, moveID string, body io.Reader) error {
	r, err := t.take(programID, moveID)
	if err != nil {
		return err
	}
	defer func() { r.busy <- struct{}{} }()
	ctx, release := r.use(ctx)
	defer release()
	x, p, err := t.receive(ctx, programID, body)
	if err == nil {
		defer p.Remove()
		maps.Copy(r.types, p.Types)
		err = r.from.Add(ctx, x)
	}
	if err == nil {
		err = t.await(ctx, programID, moveID) // wait now, so that the rest is in the replica soon
	}
	if err != nil {
		t.forget(programID, r)
		err = errors.Join(err, r.from.Close())
		r.from = nil
		return unusable(err)
	}
	r.expiry.Reset(maxPause)
	return nil
}

// take returns a reception for a request, which must put an element into busy when it ends. Until
// then the reception does not expire.
func (t *Target) take(programID, moveID string) (*reception, error) {
	t.mu.Lock()
	r := t.receptions[programID]
	t.mu.Unlock()
	if r == nil || r.moveID != moveID {
		return nil, notHere(programID)
	}
	select {
	case <-r.busy:
	default:
		return nil, webhook.NewError(webhook.CodeConflict, "Another request of the move is in progress.")
	}
	if r.from == nil {
		r.busy <- struct{}{}
		return nil, notHere(programID)
	}
	r.expiry.Stop()
	return r, nil
}

func notHere(programID string) error {
	return webhook.NewError(webhook.CodeConflict, "The first part of the program "+programID+" is not here.")
}

// Rest receives everything else. The program is then complete here but not active. entry is the
// actor for the audit log.
func (t *Target) Rest(ctx context.Context, programID, moveID string, body io.Reader, entry webhook.AuditEntry) (store.Imported, error) {
	r, err := t.take(programID, moveID)
	if err != nil {
		return store.Imported{}, err
	}
	// Until Rest has ended, Abort and another First can end it.
	defer func() {
		t.forget(programID, r)
		r.from = nil // it is closed
		r.busy <- struct{}{}
	}()
	ctx, release := r.use(ctx)
	defer release()
	began := time.Now()
	x, p, err := t.receive(ctx, programID, body)
	var y store.Imported
	var types archive.CheckedTypes
	if err == nil {
		defer p.Remove()
		maps.Copy(r.types, p.Types)
		types, err = r.types.Check(ctx, t.Catalog)
	}
	if err == nil {
		x.Audit = entry
		x.Audit.Action = webhook.ActionProgramArrive
		y, err = r.from.Complete(ctx, x, func(w store.Write, y store.Imported) error {
			if err := types.Create(w, entry); err != nil {
				return err
			}
			entry.Action, entry.ProgramID, entry.SubjectID = webhook.ActionProgramArrive, programID, programID
			entry.Detail = fmt.Sprintf("move %s: %s, %s, %s", moveID, webhook.Count(y.Subscriptions, "subscription"),
				webhook.Count(y.Events, "event"), webhook.Count(y.Deliveries, "delivery"))
			return w.Audit(entry)
		})
	}
	if err = errors.Join(err, r.from.Close()); err != nil {
		return y, unusable(err)
	}
	// Another host that takes over must know that the program has arrived.
	if err := t.await(ctx, programID, moveID); err != nil {
		return y, err
	}
	t.Logger.Info("a program has arrived", "program", programID, "move", moveID, "events", y.Events, "deliveries", y.Deliveries,
		"rest_duration", time.Since(began).Round(time.Millisecond))
	return y, nil
}

// Activate makes a program that has arrived active. It can be repeated.
func (t *Target) Activate(ctx context.Context, programID, moveID string, entry webhook.AuditEntry) error {
	activated := false
	err := t.Store.Write(ctx, func(w store.Write) (err error) {
		if activated, err = w.Moves().Activate(programID, moveID); err != nil || !activated {
			return err
		}
		entry.Action, entry.ProgramID, entry.SubjectID, entry.Detail = webhook.ActionProgramActivate, programID, programID, "move "+moveID
		return w.Audit(entry)
	})
	if activated && err == nil {
		t.Logger.Info("a program that has moved here is active", "program", programID, "move", moveID)
	}
	if err != nil {
		return err
	}
	// The source does not repeat the activation for another host that takes over.
	return t.await(ctx, programID, moveID)
}

// await waits until everything committed so far is in the replica, if there is one, for at most
// maxWait.
func (t *Target) await(ctx context.Context, programID, moveID string) error {
	waiting, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	err := awaitReplica(waiting, t.Store, func(waited time.Duration) {
		t.Logger.Warn("a program that moves here waits for the replica", "program", programID, "move", moveID, "waited", waited)
	})
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		return webhook.NewError(webhook.CodeUnavailable, "The replica of this installation does not store the program. Try again later.")
	}
	return err
}

// Abort removes what has arrived with a move that is not active. entry is the actor for the audit
// log.
func (t *Target) Abort(ctx context.Context, programID, moveID string, entry webhook.AuditEntry) error {
	t.mu.Lock()
	r := t.receptions[programID]
	t.mu.Unlock()
	if r != nil && r.moveID == moveID {
		t.forget(programID, r)
		t.end(r)
	}
	return t.Store.Write(ctx, func(w store.Write) error {
		abandoned, err := w.Moves().Abandon(programID, moveID)
		if err != nil || !abandoned {
			return err
		}
		t.Logger.Info("removing a program whose move was aborted", "program", programID, "move", moveID)
		return w.Audit(store.AbortedArrival(entry, programID, moveID))
	})
}

// receive stores the database of a part in a file. It validates as much as possible.
func (t *Target) receive(ctx context.Context, programID string, body io.Reader) (*store.ProgramImport, *archive.ReceivedProgram, error) {
	p, err := archive.ReceiveProgram(ctx, body, t.Store.Dir(), t.Store.Programs().ImportRoom)
	if err != nil {
		return nil, nil, err
	}
	_, err = p.Types.Check(ctx, t.Catalog)
	if err == nil && p.Header.ProgramID != programID {
		err = webhook.NewError(webhook.CodeInvalid, "The body has the program "+p.Header.ProgramID+".")
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Remove())
	}
	return &store.ProgramImport{Path: p.Path, Key: p.Key, ProgramID: programID, Retry: &t.Retry}, p, nil
}

// forget removes a reception from the map.
func (t *Target) forget(programID string, r *reception) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.receptions[programID] == r {
		delete(t.receptions, programID)
	}
}

// end ends a reception once its request in progress has ended.
func (t *Target) end(r *reception) {
	r.end()
	<-r.busy
	if r.from != nil {
		r.expiry.Stop()
		if err := r.from.Close(); err != nil {
			t.Logger.Error("failed to remove a program that has not arrived; the next start removes it", "error", err)
		}
		r.from = nil
	}
	r.busy <- struct{}{}
}

// Close ends all receptions.
func (t *Target) Close() {
	t.mu.Lock()
	all := t.receptions
	t.receptions = nil
	t.mu.Unlock()
	for _, r := range all {
		t.end(r)
	}
}

// unusable converts an error of an import into an error for the source.
func unusable(err error) error {
	var refused *webhook.Error
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.Is(err, datadir.ErrUnusable):
		return webhook.NewError(webhook.CodeInvalid, "The program cannot be imported: "+err.Error()+".")
	}
	return err
}
