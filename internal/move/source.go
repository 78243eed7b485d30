package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"service/internal/archive"
	"service/store"
	"service/webhook"
)

const (
	// attemptGrace is how long attempts in flight may take to end in a frozen program.
	attemptGrace = 2 * time.Second
	// freezeLimit is how long a program may be frozen while the target does not respond. After that
	// the source aborts the move and the program is active again.
	freezeLimit  = 10 * time.Second
	inFlightPoll = 20 * time.Millisecond
	// Time until the first report that a move waits for the replica, and between two.
	firstNotice, laterNotice = time.Second, 15 * time.Second
	// Pauses between two requests to activate the program.
	minRetry, maxRetry = 200 * time.Millisecond, 15 * time.Second
	// The source sends changes until a part takes less than shortPart, since the program is frozen
	// for about as long as the next part takes. It sends at most maxParts parts.
	shortPart = 500 * time.Millisecond
	maxParts  = 8
	// A program is not frozen if the last part took longer.
	longPart = 3 * time.Second
)

// Source moves programs to other installations.
type Source struct {
	Store   *store.Store
	Catalog *webhook.Catalog
	Version string                 // of the binary
	Cut     func(programID string) // cuts a program's attempts in flight
	Logger  *slog.Logger
	// Dial connects to targets; nil for TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu      sync.Mutex
	ctx     context.Context // of Run
	jobs    map[string]*Job // by program ID; those that have ended are removed
	running sync.WaitGroup
}

// Job is a move in progress.
type Job struct {
	programID string
	id        string // the ID of the move

	mu     sync.Mutex
	far    *remote
	fresh  chan struct{} // far was replaced; capacity one
	lines  []string
	change chan struct{} // closed with the next line, or at the end
	ended  bool
	err    error
}

// remote returns the target.
func (j *Job) remote() *remote {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.far
}

// replace replaces the target, which keeps its URL.
func (j *Job) replace(far *remote) {
	j.mu.Lock()
	j.far = far
	j.mu.Unlock()
	select {
	case j.fresh <- struct{}{}:
	default:
	}
}

// say adds a line of progress.
func (j *Job) say(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
	close(j.change)
	j.change = make(chan struct{})
}

// Follow calls show with each line of progress and returns the result of the move. If ctx ends
// first, the move continues.
func (j *Job) Follow(ctx context.Context, show func(string)) error {
	for shown := 0; ; {
		j.mu.Lock()
		lines, change, ended, err := j.lines[shown:], j.change, j.ended, j.err
		j.mu.Unlock()
		for _, line := range lines {
			show(line)
		}
		if shown += len(lines); ended {
			return err
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errFreezeLimit ends a move that keeps the program frozen for too long.
var errFreezeLimit = fmt.Errorf("the program was frozen for %s", freezeLimit)

// Run continues the moves of the previous process, and runs moves until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	left, err := s.Store.Programs().OutgoingMoves(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.ctx = ctx
	s.mu.Unlock()
	for i := range left {
		m := &left[i]
		to := store.MoveTarget{URL: m.URL, CA: m.CA, Token: m.Token}
		far, err := s.connect(&to)
		if err = errors.Join(err, m.Unusable); err != nil {
			// Aborting the move needs no target, and Start can replace the token and the
			// certificates.
			far = &remote{to: to, unusable: err}
		}
		j := newJob(m.ProgramID, m.ID, far)
		if _, _, err := s.begin(j, func(ctx context.Context) error { return s.resume(ctx, j, m.Status) }); err != nil {
			return err
		}
	}
	<-ctx.Done()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

func newJob(programID, id string, far *remote) *Job {
	return &Job{programID: programID, id: id, far: far, change: make(chan struct{}), fresh: make(chan struct{}, 1)}
}

// Start moves a program, or returns the move in progress, with the token and certificates of to if
// the target accepts them. The error is a *webhook.Error if the program is moving elsewhere.
func (s *Source) Start(ctx context.Context, programID string, to *store.MoveTarget,
	entry webhook.AuditEntry) (j *Job, attached bool, err error) {
	far, err := s.connect(to)
	if err != nil {
		return nil, false, err
	}
	own := newJob(programID, webhook.NewID(), far)
	j, attached, err = s.begin(own, func(ctx context.Context) error { return s.move(ctx, own, entry) })
	if attached {
		err = s.renew(ctx, j, far, entry)
	}
	return j, attached, err
}

// renew replaces the token and the certificates of a move in progress.
func (s *Source) renew(ctx context.Context, j *Job, far *remote, entry webhook.AuditEntry) error {
	if far.to == j.remote().to {
		return nil
	}
	if _, err := far.state(ctx, j.programID); err != nil {
		var refused *webhook.Error
		if errors.As(err, &refused) {
			return err
		}
		return webhook.NewError(webhook.CodeUnavailable, err.Error()+". The move goes on with the token and the certificates that it has.")
	}
	j.replace(far) // before the write, since a move that begins after it stores these
	entry.Action, entry.ProgramID, entry.SubjectID = webhook.ActionProgramMove, j.programID, j.programID
	entry.Detail = "new token for move " + j.id + " to " + far.to.URL
	return s.Store.Write(ctx, func(w store.Write) error {
		renewed, err := w.Moves().Renew(j.programID, j.id, &far.to)
		if err != nil || !renewed {
			return err
		}
		return w.Audit(entry)
	})
}

// begin runs a job, unless the program has one.
func (s *Source) begin(j *Job, run func(context.Context) error) (_ *Job, attached bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		return nil, false, webhook.NewError(webhook.CodeUnavailable, "The service is starting or stopping. Try again.")
	}
	if before := s.jobs[j.programID]; before != nil {
		if url := before.remote().to.URL; url != j.far.to.URL {
			return nil, false, webhook.NewError(webhook.CodeConflict, "The program "+j.programID+" is already moving to "+url+".")
		}
		return before, true, nil
	}
	if s.jobs == nil {
		s.jobs = make(map[string]*Job)
	}
	s.jobs[j.programID] = j
	ctx := s.ctx
	s.running.Go(func() {
		err := run(ctx)
		s.mu.Lock()
		delete(s.jobs, j.programID)
		s.mu.Unlock()
		j.mu.Lock()
		defer j.mu.Unlock()
		j.ended, j.err = true, err
		close(j.change)
	})
	return j, false, nil
}

// resume continues a move after a restart. A frozen program becomes active again, since the target
// becomes active only after this installation has recorded the move.
func (s *Source) resume(ctx context.Context, j *Job, status string) error {
	if status == webhook.ProgramMoving {
		s.abort(j, errors.New("the service was restarted"))
		return webhook.NewError(webhook.CodeConflict, "The move was aborted by a restart. The program is active here.")
	}
	return s.activate(ctx, j)
}

// await waits until everything committed so far is in the replica, if there is one.
func (s *Source) await(ctx context.Context, j *Job) error {
	return awaitReplica(ctx, s.Store, func(waited time.Duration) {
		s.Logger.Warn("the move of a program waits for the replica", "program", j.programID, "move", j.id, "waited", waited)
		j.say("Waiting for the replica of this installation.")
	})
}

// awaitReplica waits until everything committed so far is in the replica, if there is one. While it
// waits, it calls notice from time to time.
func awaitReplica(ctx context.Context, s *store.Store, notice func(waited time.Duration)) error {
	began := time.Now()
	for pause := firstNotice; ; pause = laterNotice {
		waiting, cancel := context.WithTimeout(ctx, pause)
		err := s.Replica().Await(waiting)
		over := waiting.Err() != nil
		cancel()
		if err == nil || !over || ctx.Err() != nil {
			return err
		}
		notice(time.Since(began).Round(time.Second))
	}
}

// move moves a program.
func (s *Source) move(ctx context.Context, j *Job, entry webhook.AuditEntry) error {
	if err := s.check(ctx, j); err != nil {
		return err
	}
	// Do not freeze a program while its replica is unreachable.
	if err := s.await(ctx, j); err != nil {
		return err
	}
	began := time.Now()
	j.say("Copying the program. It stays active.")
	x, first, err := s.Store.Programs().ExportMove(ctx, j.programID, 0)
	if err != nil {
		return err
	}
	defer func() {
		if err := x.Close(); err != nil {
			s.Logger.Error("failed to remove a temporary file of a move", "error", err)
		}
	}()
	if err := s.send(ctx, j, "", first); err != nil {
		s.abandon(j)
		return err
	}
	j.say("Copied %s in %s.", webhook.ByteSize(first.Bytes), time.Since(began).Round(time.Millisecond))
	if err := s.catchUp(ctx, j, x); err != nil {
		s.abandon(j)
		return err
	}
	frozen := time.Now()
	freezing, cancel := context.WithDeadlineCause(ctx, frozen.Add(freezeLimit), errFreezeLimit)
	defer cancel()
	if err = s.freeze(freezing, j, entry); err == nil {
		err = s.transfer(freezing, j, x)
	}
	if err != nil {
		if cause := context.Cause(freezing); ctx.Err() == nil && cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		s.abort(j, err)
		return fmt.Errorf("the move failed, and the program is active here: %w", err)
	}
	if err := s.complete(ctx, j, entry); err != nil {
		return err
	}
	if err := s.activate(ctx, j); err != nil {
		return err
	}
	took := time.Since(frozen).Round(time.Millisecond)
	s.Logger.Info("moved a program", "program", j.programID, "move", j.id, "to", j.remote().to.URL, "frozen", took,
		"duration", time.Since(began).Round(time.Millisecond))
	j.say("Frozen for %s.", took)
	return nil
}

// catchUp sends the changes since the previous part, until they are few or no longer decrease. The
// error is a *webhook.Error if they are still too many to freeze the program.
func (s *Source) catchUp(ctx context.Context, j *Job, x *store.MoveExport) error {
	last := time.Duration(math.MaxInt64)
	for range maxParts {
		began := time.Now()
		changes, err := x.Changes(ctx)
		if err != nil {
			return err
		}
		if err := s.send(ctx, j, "/changes", changes); err != nil {
			return err
		}
		took := time.Since(began)
		j.say("Copied %s of changes in %s.", webhook.ByteSize(changes.Bytes), took.Round(time.Millisecond))
		decreases := took <= last/4*3
		if last = took; took < shortPart || !decreases {
			break
		}
	}
	if last > longPart {
		return webhook.NewError(webhook.CodeConflict, fmt.Sprintf("The program %s changes faster than it can be copied: the last part took %s, "+
			"and requests would be refused as long. It is active here. Try again when it is less busy.", j.programID, last.Round(time.Millisecond)))
	}
	return nil
}

// check refuses a move that cannot succeed.
func (s *Source) check(ctx context.Context, j *Job) error {
	far := j.remote()
	if m := s.Store.Programs().Move(j.programID); m != nil {
		if m.Status == webhook.ProgramMoved && m.URL == far.to.URL {
			j.say("The program has already moved to %s.", m.URL)
		}
		return webhook.NewError(webhook.CodeConflict, "The program "+j.programID+" is not active here: its status is "+m.Status+".")
	}
	if err := s.Store.Programs().CheckMovable(ctx, j.programID); err != nil {
		return err
	}
	schema, err := s.Store.Schema(ctx)
	if err != nil {
		return err
	}
	there, err := far.state(ctx, j.programID)
	switch {
	case err != nil:
		return err
	case there.Format != archive.ProgramFormat || there.Schema < schema:
		return webhook.NewError(webhook.CodeConflict, fmt.Sprintf(
			"%s runs version %s, which is older than this one (schema %d, here %d). Upgrade it first.",
			far.to.URL, there.Version, there.Schema, schema))
	case there.Status == webhook.MoveNone, there.Status == webhook.ProgramMoved && there.Forwards:
		return nil
	case there.Status == webhook.ProgramArriving:
		aborted, err := s.Store.Programs().AbortedMove(ctx, j.programID)
		if err != nil {
			return err
		}
		if aborted != there.MoveID { // another installation may have recorded that the program moved there
			return webhook.NewError(webhook.CodeConflict, fmt.Sprintf("%s has the program %s from move %s, which is not active and "+
				"did not begin here. If no other installation moves it, remove it there: service program delete %[2]s",
				far.to.URL, j.programID, there.MoveID))
		}
		return far.call(ctx, http.MethodDelete, far.path(j.programID, "/"+there.MoveID), nil, nil)
	case there.Status == "erasing":
		j.say("%s removes what it has of the program first.", far.to.URL)
		return nil
	}
	return webhook.NewError(webhook.CodeConflict, fmt.Sprintf("%s has a program %s already (%s). Delete it there first, or keep it.",
		far.to.URL, j.programID, there.Status))
}

// send uploads a part and removes its file.
func (s *Source) send(ctx context.Context, j *Job, path string, x *store.ProgramExport) (err error) {
	far := j.remote()
	part, err := archive.NewSourceOf(x, s.Catalog, s.Version)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, part.Close()) }()
	return far.upload(ctx, far.path(j.programID, "/"+j.id+path), part)
}

// freeze stops the program here. When it returns, requests are refused and no attempt is in flight.
func (s *Source) freeze(ctx context.Context, j *Job, entry webhook.AuditEntry) error {
	began := time.Now()
	entry.Action, entry.ProgramID, entry.SubjectID = webhook.ActionProgramMove, j.programID, j.programID
	url := j.remote().to.URL
	entry.Detail = "move " + j.id + " to " + url
	err := s.Store.Write(ctx, func(w store.Write) error {
		if err := w.Moves().Begin(j.programID, j.id, &j.remote().to); err != nil {
			return err
		}
		return w.Audit(entry)
	})
	if err != nil {
		return err
	}
	s.Logger.Info("froze a program to move it", "program", j.programID, "move", j.id, "to", url)
	j.say("Frozen: requests of the program get 503.")
	// A host that takes over must know the ID of the move, to remove what has arrived.
	if err := s.await(ctx, j); err != nil {
		return err
	}
	for cut := false; ; {
		n, err := s.Store.Programs().InFlight(ctx, j.programID)
		if err != nil || n == 0 {
			return err
		}
		switch frozen := time.Since(began); {
		case frozen > 2*attemptGrace:
			return fmt.Errorf("%s did not end", webhook.Count(n, "attempt"))
		case frozen > attemptGrace && !cut:
			j.say("Cutting %s in flight.", webhook.Count(n, "attempt"))
			s.Cut(j.programID)
			cut = true
		}
		select {
		case <-time.After(inFlightPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// transfer sends the changes since the last part. When it returns, the program has arrived.
func (s *Source) transfer(ctx context.Context, j *Job, x *store.MoveExport) error {
	rest, err := x.Rest(ctx)
	if err != nil {
		return err
	}
	j.say("Sending %s of changes.", webhook.ByteSize(rest.Bytes))
	return s.send(ctx, j, "/rest", rest)
}

// complete records that the program has moved away. From then on it can be active only at the
// target.
func (s *Source) complete(ctx context.Context, j *Job, entry webhook.AuditEntry) error {
	entry.Action, entry.ProgramID, entry.SubjectID = webhook.ActionProgramMoved, j.programID, j.programID
	entry.Detail = "move " + j.id + " to " + j.remote().to.URL
	for done := false; ; {
		var err error
		if !done {
			err = s.Store.Write(context.WithoutCancel(ctx), func(w store.Write) error {
				if err := w.Moves().Complete(j.programID, j.id); err != nil {
					return err
				}
				return w.Audit(entry)
			})
			done = err == nil
		}
		if done {
			// Until the replica contains the record, another host could take over with the program
			// active.
			if err = s.await(ctx, j); err == nil {
				return nil
			}
		}
		s.Logger.Error("failed to record a move, will retry", "program", j.programID, "move", j.id, "error", err)
		select {
		case <-time.After(minRetry):
		case <-ctx.Done():
			return errors.New("the service is stopping; its next start continues the move")
		}
	}
}

// activate makes the program active at the target, however long that takes.
func (s *Source) activate(ctx context.Context, j *Job) error {
	// After a restart, the record may not be in the replica yet.
	for pause := minRetry; ; pause = min(2*pause, maxRetry) {
		err := s.await(ctx, j)
		if err == nil {
			err = s.tryActivate(ctx, j)
		}
		if err == nil {
			break
		}
		s.Logger.Warn("failed to activate a program that has moved, will retry", "program", j.programID, "move", j.id,
			"to", j.remote().to.URL, "error", err)
		j.say("Not active there yet: %v", err)
		select {
		case <-j.fresh:
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.New("the service is stopping; its next start continues the move")
		}
	}
	err := s.Store.Write(context.WithoutCancel(ctx), func(w store.Write) error { return w.Moves().Activated(j.programID, j.id) })
	if err != nil {
		return err
	}
	j.say("The program is active at %s. Requests that come here are forwarded.", j.remote().to.URL)
	return nil
}

func (s *Source) tryActivate(ctx context.Context, j *Job) error {
	far := j.remote()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return far.call(ctx, http.MethodPost, far.path(j.programID, "/"+j.id+"/activate"), nil, nil)
}

// abort makes the program active here again.
func (s *Source) abort(j *Job, reason error) {
	entry := webhook.AuditEntry{Admin: webhook.Terminal, Action: webhook.ActionProgramMoveAbort, ProgramID: j.programID,
		SubjectID: j.programID, Detail: "move " + j.id}
	for aborted := false; !aborted; {
		err := s.Store.Write(context.Background(), func(w store.Write) error {
			if m := s.Store.Programs().Move(j.programID); m == nil {
				return nil // the program was not frozen
			}
			if err := w.Moves().Abort(j.programID, j.id); err != nil {
				return err
			}
			return w.Audit(entry)
		})
		if aborted = err == nil; !aborted {
			s.Logger.Error("failed to end a move, will retry", "program", j.programID, "move", j.id, "error", err)
			s.mu.Lock()
			stopping := s.ctx == nil
			s.mu.Unlock()
			if stopping {
				return // the next start aborts it
			}
			<-time.After(minRetry)
		}
	}
	s.Logger.Warn("aborted the move of a program, which is active here", "program", j.programID, "move", j.id, "reason", reason)
	s.abandon(j)
}

// abandon asks the target to remove what has arrived. If that fails, the next move removes it.
func (s *Source) abandon(j *Job) {
	far := j.remote()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if err := far.call(ctx, http.MethodDelete, far.path(j.programID, "/"+j.id), nil, nil); err != nil {
		s.Logger.Warn("the target keeps an aborted move, which is never active and can be deleted there", "program", j.programID,
			"move", j.id, "to", far.to.URL, "error", err)
	}
}
