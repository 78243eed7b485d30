package store

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"service/webhook"
)

// programState is why a program cannot be used.
type programState struct {
	name string
	at   time.Time
	// out is the last move to another installation, nil for none. A program that has moved
	// before has it also while it arrives again.
	out *storedMove
	in  string // id of the move, only in stateArriving
}

// The states of programs, as stored.
const (
	stateErasing   = "erasing"
	stateImporting = "importing"
	stateMoving    = webhook.ProgramMoving
	stateMoved     = webhook.ProgramMoved
	stateArriving  = webhook.ProgramArriving
)

// move returns the move that the program is part of, nil if it is in another state.
func (p *programState) move() *webhook.ProgramMove {
	if p == nil || p.name == stateErasing || p.name == stateImporting {
		return nil
	}
	m := &webhook.ProgramMove{ID: p.in, Status: p.name, BeganAt: p.at}
	if p.out != nil {
		m.URL, m.CA = p.out.url, p.out.ca
		m.Forwards = p.name != stateMoving && !p.out.activated.IsZero()
	}
	if p.name != stateArriving {
		m.ID = p.out.id
	}
	return m
}

// programStates are the programs that cannot be used, a copy of the table program_states. There
// are few, and usually none. The leader of the writer replaces the map after a commit.
type programStates struct {
	current atomic.Pointer[map[string]programState]
}

// get returns the state of a program, nil if it can be used.
func (p *programStates) get(programID string) *programState {
	all := p.current.Load()
	if all == nil {
		return nil
	}
	if state, ok := (*all)[programID]; ok {
		return &state
	}
	return nil
}

// describe sets the state of a program in its record. It returns false if the program must not be
// visible.
func (p *programStates) describe(program *webhook.Program) bool {
	state := p.get(program.ID)
	switch {
	case state == nil:
	case state.name == stateErasing:
		program.ErasingSince = state.at
	case state.name == stateImporting:
		program.ImportingSince = state.at
	}
	program.Move = state.move()
	return state == nil || state.name != stateImporting
}

// importing returns the ids of the programs that are being imported as a JSON array to bind, nil
// if there are none.
func (p *programStates) importing() any {
	all := p.current.Load()
	if all == nil {
		return nil
	}
	var ids []string
	for id, state := range *all {
		if state.name == stateImporting {
			ids = append(ids, id)
		}
	}
	return jsonOf(ids)
}

// hidden returns the ids of all these programs as a JSON array to bind, nil if there are none.
func (p *programStates) hidden() any {
	all := p.current.Load()
	if all == nil || len(*all) == 0 {
		return nil
	}
	ids := make([]string, 0, len(*all))
	for id := range *all {
		ids = append(ids, id)
	}
	return jsonOf(ids)
}

// erasing returns the ids of the programs with records to erase.
func (p *programStates) erasing() (ids []string) {
	return p.list(func(state *programState) bool {
		return state.name == stateErasing ||
			state.name == stateMoved && !state.out.activated.IsZero() && !state.out.emptied && !state.out.receiving
	})
}

// list returns the ids of the programs in a state that matches, sorted.
func (p *programStates) list(match func(*programState) bool) (ids []string) {
	all := p.current.Load()
	if all == nil {
		return nil
	}
	for id, state := range *all {
		if match(&state) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// set replaces the state of a program, nil for none.
func (p *programStates) set(programID string, state *programState) {
	for {
		before, all := p.current.Load(), make(map[string]programState)
		if before != nil {
			maps.Copy(all, *before)
		}
		if delete(all, programID); state != nil {
			all[programID] = *state
		}
		if p.current.CompareAndSwap(before, &all) {
			return // an import that fails sets states outside the writer
		}
	}
}

// isVisible is the condition that a record of the program in a column is not hidden. :hidden
// binds the result of hidden.
func isVisible(column string) string { return notHidden(column, ":hidden") }

// notHidden is isVisible with another parameter.
func notHidden(column, hidden string) string {
	return "(" + hidden + " IS NULL OR " + column + " NOT IN (SELECT value FROM json_each(" + hidden + ")))"
}

// openProgramStates reads the states.
func (s *core) openProgramStates(ctx context.Context) error {
	const query = `SELECT p.program_id, p.state, p.at, coalesce(i.id, ''), o.id IS NOT NULL, coalesce(o.id, ''), coalesce(o.url, ''),
		coalesce(o.ca, ''), o.activated_at, o.emptied_at FROM program_states p
		LEFT JOIN program_moves i ON i.program_id = p.program_id AND i.direction = 'in'
		LEFT JOIN program_moves o ON o.program_id = p.program_id AND o.direction = 'out'`
	return s.db.Each(ctx, query, nil, func(scan func(...any) error) error {
		var id string
		var state programState
		var at int64
		var hasOut bool
		var out storedMove
		var activated, emptied sql.NullInt64
		err := scan(&id, &state.name, &at, &state.in, &hasOut, &out.id, &out.url, &out.ca, &activated, &emptied)
		state.at = time.UnixMilli(at).UTC()
		switch state.name {
		case stateImporting:
			state.name = stateErasing // its process has ended
		case stateMoving, stateMoved, stateArriving:
			if hasOut {
				out.activated, out.emptied = fromMillis(activated), emptied.Valid
				state.out = &out
			}
		}
		if state.name != stateArriving {
			state.in = ""
		}
		s.programStates.set(id, &state)
		return err
	})
}

// setProgramState stores the state of a program, nil for none, and wakes the housekeeping that a
// state gives work or takes it from.
func (s *core) setProgramState(t *tx, programID string, state *programState) error {
	t.AfterCommit(func() {
		s.programStates.set(programID, state)
		s.tokens.clear()
		s.housekeeping.wakeAll() // after set: what is woken reads the states
	})
	newWrite(s, t).programChanged(programID)
	if state == nil {
		return t.Exec("DELETE FROM program_states WHERE program_id = ?", programID)
	}
	return t.Exec("INSERT INTO program_states (program_id, state, at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET state = ?2, at = ?3",
		programID, state.name, state.at.UnixMilli())
}

// find returns a *webhook.Error if a record of a program cannot be found now: [webhook.CodeNotFound]
// if the program is hidden, [webhook.CodeUnavailable] if it is being moved.
func (p *programStates) find(programID, record string) error {
	switch state := p.get(programID); {
	case state == nil:
		return nil
	case state.name == stateMoving, state.name == stateArriving, state.name == stateMoved && state.out.activated.IsZero():
		return state.move().Unavailable(programID)
	}
	return webhook.NotFound(record)
}

// usable returns a *webhook.Error if a program cannot be used now.
func (p *programStates) usable(programID string) error {
	switch state := p.get(programID); {
	case state == nil:
		return nil
	case state.name == stateErasing:
		return webhook.NewError(webhook.CodeConflict,
			"The program "+programID+" is being erased. Its id can be used again when that has finished.")
	case state.name == stateMoved:
		return webhook.NewError(webhook.CodeConflict, "The program "+programID+" has moved to "+state.out.url+". Send the request there.")
	case state.name == stateMoving, state.name == stateArriving:
		return state.move().Unavailable(programID)
	default:
		return webhook.NewError(webhook.CodeConflict, "The program "+programID+" is being imported. It can be used when that has finished.")
	}
}
