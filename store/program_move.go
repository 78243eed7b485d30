package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// storedMove is a move of a program to another installation.
type storedMove struct {
	id, url, ca string
}

// MoveTarget is the installation that a program moves to.
type MoveTarget struct {
	URL   string // base URL
	CA    string // certificates in PEM that verify it; "" for the system's
	Token string // platform token; secret
}

// OutgoingMove is a move that this installation has not completed.
type OutgoingMove struct {
	webhook.ProgramMove
	ProgramID string
	Token     string // of the target; secret
	Unusable  error  // why there is no Token, nil if there is one
}

// Move returns the move that prevents the use of a program here, nil if there is none. It only
// reads memory.
func (s Programs) Move(programID string) *webhook.ProgramMove {
	return s.programStates.of(programID).move()
}

func moveTokenPlace(programID string) string { return "move token of " + programID }

// CheckMovable returns the error of [MoveWrites.Begin], before anything is copied.
func (s Programs) CheckMovable(ctx context.Context, programID string) error {
	scan, _ := s.db.Reads(ctx)
	return checkMovable(programID, s.use, scan)
}

func checkMovable(programID string, use func(programID, record string) error, scan sqlite.ScanRow) error {
	if err := use(programID, ""); err != nil {
		return err
	}
	var exists, running bool
	if err := scan("SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?1), EXISTS (SELECT 1 FROM bulk_runs WHERE status = 'running' "+
		"AND program_id IN (?1, ''))", []any{programID}, &exists, &running); err != nil {
		return err
	}
	switch {
	case !exists:
		return webhook.NoProgram(programID)
	case running:
		return webhook.NewError(webhook.CodeConflict,
			"A bulk run is running in the program "+programID+". Wait for its end, or cancel it, and move the program again.")
	}
	return nil
}

// Begin freezes a program: after the commit its requests are refused and no attempt of it
// starts. The error is a *webhook.Error if the program does not exist, cannot be used, or has a
// bulk run in progress.
func (w MoveWrites) Begin(programID, moveID string, to *MoveTarget) error {
	s, t := w.t.s, w.t
	if err := checkMovable(programID, t.use, t.Scan); err != nil {
		return err
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	const insert = "INSERT OR REPLACE INTO program_moves (program_id, direction, id, url, ca, token, began_at) " +
		"VALUES (?, 'out', ?, ?, ?, ?, ?)"
	err := t.Exec(insert, programID, moveID, to.URL, to.CA, s.keys.Encrypt([]byte(to.Token), moveTokenPlace(programID)), now.UnixMilli())
	if err != nil {
		return err
	}
	state := programState{phase: phaseMoving, at: now, out: storedMove{id: moveID, url: to.URL, ca: to.CA}}
	return errors.Join(s.setProgramState(t, programID, state), t.notifyQueues(programID))
}

// Abort ends a move that the source has not completed: the program is active again.
func (w MoveWrites) Abort(programID, moveID string) error {
	if _, err := w.outgoing(programID, moveID, phaseMoving); err != nil {
		return err
	}
	w.t.alertQueued()
	// The row remains for AbortedMove.
	return errors.Join(w.t.Exec("UPDATE program_moves SET token = NULL WHERE program_id = ? AND direction = 'out'", programID),
		w.t.s.setProgramState(w.t, programID, programState{}), w.t.notifyQueues(programID))
}

// Renew replaces the token and the certificates of the target of a move. It returns false if
// the move has ended or not begun. The URL does not change.
func (w MoveWrites) Renew(programID, moveID string, to *MoveTarget) (renewed bool, err error) {
	s := w.t.s
	state, err := w.outgoing(programID, moveID, phaseMoving, phaseMoved)
	if err != nil {
		return false, nil
	}
	state.out.ca = to.CA
	return true, errors.Join(w.t.Exec("UPDATE program_moves SET ca = ?, token = ? WHERE program_id = ? AND direction = 'out'", to.CA,
		s.keys.Encrypt([]byte(to.Token), moveTokenPlace(programID)), programID), s.setProgramState(w.t, programID, state))
}

// AbortedMove returns the ID of the last move that [MoveWrites.Abort] ended, "" if the program has
// moved since or never.
func (s Programs) AbortedMove(ctx context.Context, programID string) (id string, err error) {
	const query = "SELECT id FROM program_moves m WHERE program_id = ? AND direction = 'out' " +
		"AND NOT EXISTS (SELECT 1 FROM program_states s WHERE s.program_id = m.program_id)"
	return id, sqlite.NoRows(s.db.Scan(ctx, query, []any{programID}, &id), nil)
}

// Complete records that the target has received the program. It is never active here again,
// except after a move back.
func (w MoveWrites) Complete(programID, moveID string) error {
	state, err := w.outgoing(programID, moveID, phaseMoving)
	if err != nil {
		return err
	}
	now := w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	return w.t.s.setProgramState(w.t, programID, programState{phase: phaseMoved, at: now, out: state.out})
}

// Activated records that the target sends the program's deliveries. Requests are forwarded
// to it from now on, and [Store.Housekeep] erases the records of the program, except for its
// tokens.
func (w MoveWrites) Activated(programID, moveID string) error {
	state, err := w.outgoing(programID, moveID, phaseMoved, phaseLeaving, phaseGone, phaseReceiving)
	if err != nil || state.phase != phaseMoved {
		return err
	}
	now := w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	state.phase = phaseLeaving
	const update = "UPDATE program_moves SET activated_at = ?, token = NULL WHERE program_id = ? AND direction = 'out'"
	return errors.Join(w.t.Exec(update, now.UnixMilli(), programID), w.t.s.setProgramState(w.t, programID, state))
}

// outgoing returns the state of a program whose move is in one of some phases, or a *webhook.Error.
func (w MoveWrites) outgoing(programID, moveID string, some ...phase) (programState, error) {
	state := w.t.state(programID)
	if !slices.Contains(some, state.phase) || state.out.id != moveID {
		return state, webhook.NewError(webhook.CodeConflict, "The move "+moveID+" of the program "+programID+" is not under way.")
	}
	return state, nil
}

// OutgoingMoves returns the moves that this installation has not completed: the target may not
// be active yet. A move whose token cannot be decrypted has Unusable set.
func (s Programs) OutgoingMoves(ctx context.Context) (all []OutgoingMove, err error) {
	for _, id := range s.programStates.in(phaseMoving, phaseMoved) {
		m := s.Move(id)
		if m == nil {
			continue
		}
		var token []byte
		err := s.db.Scan(ctx, "SELECT token FROM program_moves WHERE program_id = ? AND direction = 'out' AND id = ?", []any{id, m.ID}, &token)
		if errors.Is(err, sql.ErrNoRows) || err == nil && token == nil {
			continue // it has just ended
		}
		if err != nil {
			return nil, err
		}
		token, err = s.keys.Decrypt(token, moveTokenPlace(id))
		all = append(all, OutgoingMove{*m, id, string(token), err})
	}
	return all, nil
}

// notifyQueues makes the dispatcher read the queues of a program again after the commit. It must
// follow setProgramState.
func (t *tx) notifyQueues(programID string) error {
	const query = "SELECT id FROM subscriptions INDEXED BY subscriptions_by_program WHERE program_id = ? AND deleted_at IS NULL"
	return t.Each(query, []any{programID}, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		t.AfterCommit(func() { t.s.watchers.SubscriptionChanged(id) })
		return err
	})
}

// InFlight returns how many attempts of a program are in flight.
func (s Programs) InFlight(ctx context.Context, programID string) (n int, err error) {
	return n, s.db.Scan(ctx, "SELECT count(*) FROM deliveries WHERE status = 'pending' AND status <> 'success' AND claimed_at IS NOT NULL "+
		"AND program_id = ?", []any{programID}, &n)
}

// Schema returns the version of the database's schema.
func (s *Store) Schema(ctx context.Context) (version int, err error) {
	return version, s.db.Scan(ctx, "PRAGMA user_version", nil, &version)
}
