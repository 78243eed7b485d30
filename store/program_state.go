package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// phase says what a program is used for now.
//
//	from              | when                                               | to
//	------------------|----------------------------------------------------|----------
//	active (or none)  | an import, or the first part of a move, adds it    | importing
//	importing         | it is complete                                     | active
//	importing         | all parts of its move are here                     | arriving
//	importing         | it failed, or its process ended                    | erasing
//	active            | a move to another installation begins              | moving
//	moving            | the move is aborted                                | active
//	moving            | the target has all of it                           | moved
//	moved             | the target sends its deliveries                    | leaving
//	leaving           | the records here are erased, except for the tokens | gone
//	gone              | the first part of a move back is here              | receiving
//	receiving         | all parts of the move back are here                | arriving
//	receiving         | it failed, or its process ended                    | leaving
//	arriving          | the source activates it                            | active
//	arriving          | the source aborts the move                         | erasing, or leaving after a move away
//	active, leaving,  | it is deleted                                      | erasing
//	gone, arriving    |                                                    |
//	erasing           | nothing is left of it                              | active (none)
type phase uint8

const (
	phaseActive phase = iota // including programs that do not exist
	phaseErasing
	phaseImporting
	phaseMoving
	phaseMoved
	phaseLeaving
	phaseGone
	phaseReceiving
	phaseArriving
)

// phaseRules are what a phase allows.
type phaseRules struct {
	stored string  // the column state
	next   []phase // the phases that can follow
	closed string  // why the program cannot be used, with URL for the URL of out; its records are not found
	retry  bool    // requests should be repeated soon, even those for records
}

var phases = [...]phaseRules{
	phaseActive: {next: []phase{phaseImporting, phaseMoving, phaseErasing}},
	phaseErasing: {stored: "erasing", next: []phase{phaseActive},
		closed: "is being erased. Its id can be used again when that has finished."},
	phaseImporting: {stored: "importing", next: []phase{phaseActive, phaseArriving, phaseErasing},
		closed: "is being imported. It can be used when that has finished."},
	phaseMoving:    {stored: webhook.ProgramMoving, next: []phase{phaseActive, phaseMoved}, retry: true},
	phaseMoved:     {stored: webhook.ProgramMoved, next: []phase{phaseLeaving}, retry: true},
	phaseLeaving:   {stored: webhook.ProgramMoved, next: []phase{phaseGone, phaseErasing}, closed: hasMoved},
	phaseGone:      {stored: webhook.ProgramMoved, next: []phase{phaseReceiving, phaseErasing}, closed: hasMoved},
	phaseReceiving: {stored: webhook.ProgramMoved, next: []phase{phaseLeaving, phaseArriving}, closed: hasMoved},
	phaseArriving:  {stored: webhook.ProgramArriving, next: []phase{phaseActive, phaseErasing, phaseLeaving}, retry: true},
}

const hasMoved = "has moved to URL. Send the request there."

// programState is the phase of a program and the data of the phase.
type programState struct {
	phase phase
	at    time.Time
	// out is the last move to another installation. A program that has moved before keeps it
	// while it arrives again.
	out storedMove
	in  string // ID of the move, only in phaseArriving
}

// use returns the *webhook.Error for a request that needs a record of a program, or the program
// itself if record is empty; nil if it can be used.
func (p programState) use(programID, record string) error {
	rule := &phases[p.phase]
	switch {
	case rule.retry:
		return p.move().Unavailable(programID)
	case rule.closed == "":
		return nil
	case record != "":
		return webhook.NotFound(record)
	}
	return webhook.NewError(webhook.CodeConflict, "The program "+programID+" "+strings.Replace(rule.closed, "URL", p.out.url, 1))
}

// use decides whether a program, or a record of it, can be used: see [programState.use].
func (s *core) use(programID, record string) error {
	return s.programStates.of(programID).use(programID, record)
}

// use is [core.use] as of this write.
func (t *tx) use(programID, record string) error { return t.state(programID).use(programID, record) }

// state returns the state of a program as of this write. Earlier writes of its commit count.
func (t *tx) state(programID string) programState {
	for _, set := range slices.Backward(t.states) {
		if set.programID == programID {
			return set.programState
		}
	}
	return t.s.programStates.of(programID)
}

// stateSet is the state that a write has given a program.
type stateSet struct {
	programID string
	programState
}

// move returns the move that the program is part of, nil for none.
func (p programState) move() *webhook.ProgramMove {
	if p.phase < phaseMoving {
		return nil
	}
	m := &webhook.ProgramMove{ID: p.out.id, Status: phases[p.phase].stored, BeganAt: p.at, URL: p.out.url, CA: p.out.ca,
		Forwards: p.out.id != "" && p.phase >= phaseLeaving}
	if p.phase == phaseArriving {
		m.ID = p.in
	}
	return m
}

// programStates are the states of the programs that are not active, a copy of the table
// program_states. They are few, and usually none. The leader of the writer replaces the map
// after a commit.
type programStates struct {
	current atomic.Pointer[map[string]programState]
}

// of returns the state of a program.
func (p *programStates) of(programID string) programState {
	if all := p.current.Load(); all != nil {
		return (*all)[programID]
	}
	return programState{}
}

// describe sets the state of a program in its record.
func (p *programStates) describe(program *webhook.Program) {
	state := p.of(program.ID)
	switch state.phase {
	case phaseErasing:
		program.ErasingSince = state.at
	case phaseImporting:
		program.ImportingSince = state.at
	}
	program.Move = state.move()
}

// in returns the IDs of the programs in some phases, sorted.
func (p *programStates) in(some ...phase) (ids []string) {
	if all := p.current.Load(); all != nil {
		for id, state := range *all {
			if slices.Contains(some, state.phase) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// set replaces the state of a program.
func (p *programStates) set(programID string, state programState) {
	for {
		before, all := p.current.Load(), make(map[string]programState)
		if before != nil {
			maps.Copy(all, *before)
		}
		if delete(all, programID); state.phase != phaseActive {
			all[programID] = state
		}
		if p.current.CompareAndSwap(before, &all) {
			return // an import that fails sets states outside the writer
		}
	}
}

// openProgramStates reads the states.
func (s *core) openProgramStates(ctx context.Context) error {
	const query = `SELECT p.program_id, p.state, p.at, coalesce(i.id, ''), coalesce(o.id, ''), coalesce(o.url, ''), coalesce(o.ca, ''),
		o.activated_at IS NOT NULL, o.emptied_at IS NOT NULL FROM program_states p
		LEFT JOIN program_moves i ON i.program_id = p.program_id AND i.direction = 'in' AND p.state = 'arriving'
		LEFT JOIN program_moves o ON o.program_id = p.program_id AND o.direction = 'out' AND p.state IN ('moving', 'moved', 'arriving')`
	return s.db.Each(ctx, query, nil, func(scan func(...any) error) error {
		var id, stored string
		var state programState
		var activated, emptied bool
		err := scan(&id, &stored, (*sqlite.Time)(&state.at), &state.in, &state.out.id, &state.out.url, &state.out.ca, &activated, &emptied)
		state.phase = phase(slices.IndexFunc(phases[:], func(rule phaseRules) bool { return rule.stored == stored }))
		switch {
		case state.phase == phaseImporting:
			state.phase = phaseErasing // its process has ended
		case state.phase == phaseMoved && emptied:
			state.phase = phaseGone
		case state.phase == phaseMoved && activated:
			state.phase = phaseLeaving
		}
		s.programStates.set(id, state)
		return err
	})
}

// setProgramState stores the state of a program, and wakes the housekeeping whose work depends
// on it. The phase must be one that can follow.
func (s *core) setProgramState(t *tx, programID string, state programState) error {
	before := t.state(programID).phase
	if state.phase != before && !slices.Contains(phases[before].next, state.phase) {
		return fmt.Errorf("store: the program %s cannot go from phase %d to %d", programID, before, state.phase)
	}
	t.states = append(t.states, stateSet{programID, state})
	t.AfterCommit(func() {
		s.programStates.set(programID, state)
		s.tokens.clear()
		s.housekeeping.wakeAll() // after set: the woken housekeeping reads the states
	})
	t.programChanged(programID)
	if state.phase == phaseActive {
		return t.Exec("DELETE FROM program_states WHERE program_id = ?", programID)
	}
	return t.Exec("INSERT INTO program_states (program_id, state, at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET state = ?2, at = ?3",
		programID, phases[state.phase].stored, state.at.UnixMilli())
}
