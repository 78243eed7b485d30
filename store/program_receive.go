package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"service/store/datadir"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// upsertKeys are the primary keys of the tables whose rows may be here before a part of a move
// adds them again.
var upsertKeys = map[string]string{"programs": "id", "subscriptions": "id", "tokens": "id"}

// upsert returns the clause that replaces a row of the same program that is already here.
func (p *programTable) upsert(names []string) string {
	key, ok := upsertKeys[p.name]
	if !ok {
		return ""
	}
	var set []string
	for _, name := range names {
		if name != key {
			set = append(set, name+" = excluded."+name)
		}
	}
	clause := " ON CONFLICT (" + key + ") DO UPDATE SET " + strings.Join(set, ", ")
	if p.name != "programs" {
		clause += " WHERE program_id = excluded.program_id"
	}
	return clause
}

// Reception adds a program that moves here, in parts. Retention waits for its end, so the
// caller must call Close soon.
type Reception struct {
	s      Programs
	im     *importer
	moveID string
	back   bool              // the program has moved away from here before
	added  [sha256.Size]byte // digest of the last part of Add
}

// Receive adds the first part of a program. It waits for a retention run. The error is a
// *webhook.Error if the program exists here, unless it has moved away and is active elsewhere.
func (s Programs) Receive(ctx context.Context, moveID string, x *ProgramImport) (*Reception, error) {
	db, err := s.openExport(ctx, x)
	if err != nil {
		return nil, err
	}
	defer db.Close() // the export was only read
	r := &Reception{s: s, moveID: moveID, im: s.importer(ctx, x)}
	r.im.moving, r.im.pace = true, movePace
	if err := r.im.open(db, x); err != nil {
		return nil, err
	}
	if err := r.im.verify(); err != nil {
		return nil, err
	}
	if err := s.sweeping.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := r.first(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// openExport opens the database of an export, for reading.
func (s Programs) openExport(ctx context.Context, x *ProgramImport) (*sql.DB, error) {
	return sqlite.OpenForeign(ctx, x.Path, schema.Current, datadir.ErrUnusable)
}

func (r *Reception) first(ctx context.Context) error {
	s, im := r.s, r.im
	// Leftovers of an earlier move or import.
	if err := s.eraseAll(ctx, true); err != nil {
		return err
	}
	if err := r.begin(); err != nil {
		return err
	}
	if err := im.tables(); err != nil {
		return err
	}
	return im.count()
}

// begin adds the program itself, hidden.
func (r *Reception) begin() error {
	s, im := r.s, r.im
	rows, err := im.read(&programTables[0], "TRUE")
	if err != nil {
		return err
	}
	return s.writer.do(func(t *tx) error {
		state := t.state(im.programID)
		switch state.phase {
		case phaseLeaving:
			return webhook.NewError(webhook.CodeUnavailable,
				"The records of the program "+im.programID+" that the last move left here are still being erased. Try again later.")
		case phaseGone:
			r.back, state.phase = true, phaseReceiving
			return errors.Join(t.Exec("UPDATE program_moves SET emptied_at = NULL WHERE program_id = ? AND direction = 'out'", im.programID),
				t.Exec(rows.insert, rows.all[0]...),
				s.setProgramState(t, im.programID, state))
		}
		return im.create(t, rows, "there")
	})
}

// Add adds a part between the first and the rest, while the program is in use. A part that is sent
// twice in a row, because its sender got no response, is added once.
func (r *Reception) Add(ctx context.Context, x *ProgramImport) error {
	digest, err := digestOf(x.Path)
	if err != nil || digest == r.added {
		return err
	}
	if err := r.add(ctx, x); err != nil {
		return err
	}
	r.added = digest
	return nil
}

func digestOf(path string) (digest [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return digest, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return digest, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func (r *Reception) add(ctx context.Context, x *ProgramImport) (err error) {
	db, err := r.s.openExport(ctx, x)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	im, id := r.im, r.im.programID
	im.ctx, im.events, im.incidents, im.done.Subscriptions = ctx, 0, 0, 0
	err = im.open(db, x)
	if other := im.programID; other != id {
		im.programID = id
		return errors.Join(err, webhook.NewError(webhook.CodeInvalid, "The parts are of different programs."))
	}
	if err != nil {
		return err
	}
	if err := im.verify(); err != nil {
		return err
	}
	rows, err := im.read(&programTables[0], "TRUE")
	if err != nil {
		return err
	}
	if err := im.write(func(t *tx) error { return t.Exec(rows.insert, rows.all[0]...) }); err != nil {
		return err
	}
	if err := im.tables(); err != nil {
		return err
	}
	return im.count()
}

// Complete adds the rest of the program, without pauses because the program is frozen. After
// that, the program is complete here but not active. The last write runs the functions.
func (r *Reception) Complete(ctx context.Context, x *ProgramImport, also ...func(Write, Imported) error) (Imported, error) {
	im := r.im
	im.pace = frozenPace
	if err := r.Add(ctx, x); err != nil {
		return Imported{}, err
	}
	if err := im.interrupt(); err != nil {
		return Imported{}, err
	}
	im.audit = x.Audit
	if err := im.name(); err != nil {
		return Imported{}, err
	}
	return im.done, r.s.write(ctx, func(w Write) error {
		for _, do := range also {
			if err := do(w, im.done); err != nil {
				return err
			}
		}
		return r.arrive(w)
	})
}

// arrive makes the program complete but inactive.
func (r *Reception) arrive(w Write) error {
	s, t, id := w.t.s, w.t, r.im.programID
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	state := programState{phase: phaseArriving, at: now, in: r.moveID, out: t.state(id).out}
	return errors.Join(
		t.Exec("INSERT OR REPLACE INTO program_moves (program_id, direction, id, url, ca, began_at) VALUES (?, 'in', ?, '', '', ?)",
			id, r.moveID, now.UnixMilli()),
		s.setProgramState(t, id, state))
}

// AbortedArrival is the audit entry about a move to this installation that ended before the program
// was active. by contains the actor.
func AbortedArrival(by webhook.AuditEntry, programID, moveID string) webhook.AuditEntry {
	by.Action, by.ProgramID, by.SubjectID = webhook.ActionProgramMoveAbort, programID, programID
	by.Detail = "move " + moveID + " to this installation"
	return by
}

// Close ends the reception. Unless the program has arrived, the added records are erased, and the
// audit log records that.
func (r *Reception) Close() (err error) {
	defer r.s.sweeping.Release(1)
	id := r.im.programID
	state := r.s.programStates.of(id)
	if state.phase != phaseReceiving && state.phase != phaseImporting {
		return nil // it has arrived, or begin refused it
	}
	said := r.s.writer.do(func(t *tx) error {
		return t.people.Audit(AbortedArrival(r.im.audit, id, r.moveID))
	})
	if state.phase == phaseImporting {
		return errors.Join(said, r.s.abandonImport(id))
	}
	state.phase = phaseLeaving // as stored
	r.s.programStates.set(id, state)
	wake(r.s.housekeeping.erasures)
	return said
}

// Activate makes an arrived program active. Repeated, it changes nothing and returns false.
// The error is a *webhook.Error if it has not arrived with this move.
func (w MoveWrites) Activate(programID, moveID string) (activated bool, err error) {
	s, t := w.t.s, w.t
	if state := t.state(programID); state.phase != phaseArriving || state.in != moveID {
		var before bool
		const query = "SELECT EXISTS (SELECT 1 FROM program_moves WHERE program_id = ? AND direction = 'in' AND id = ? " +
			"AND activated_at NOT NULL)"
		err := t.Scan(query, []any{programID, moveID}, &before)
		if err == nil && !before {
			err = webhook.NewError(webhook.CodeConflict, "The program "+programID+" has not arrived with the move "+moveID+".")
		}
		return false, err
	}
	delete(t.w.heads, programID)
	t.w.forgetFailures()
	t.alertQueued()
	t.AfterCommit(func() { s.housekeeping.pruneProgram(programID) }) // the source may have pruned responses that are kept here
	return true, errors.Join(
		t.Exec("DELETE FROM program_moves WHERE program_id = ? AND direction = 'out'", programID),
		t.Exec("UPDATE program_moves SET activated_at = ? WHERE program_id = ? AND direction = 'in'", s.clock.Now().UnixMilli(), programID),
		s.setProgramState(t, programID, programState{}), t.notifyQueues(programID))
}

// Abandon removes the records that have arrived with a move that is not active, in the
// background. It returns false if there are none.
func (w MoveWrites) Abandon(programID, moveID string) (abandoned bool, err error) {
	s, t := w.t.s, w.t
	state := t.state(programID)
	if state.phase != phaseArriving || state.in != moveID {
		return false, nil
	}
	next := programState{phase: phaseErasing, at: s.clock.Now()}
	if state.out.id != "" {
		next = programState{phase: phaseLeaving, at: state.at, out: state.out}
	}
	return true, errors.Join(t.Exec("DELETE FROM program_moves WHERE program_id = ? AND direction = 'in'", programID),
		s.setProgramState(t, programID, next))
}
