package store

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"service/webhook"
)

// programState is why a program cannot be used.
type programState struct {
	name string // stateErasing or stateImporting
	at   time.Time
}

// The states of programs, as stored.
const (
	stateErasing   = "erasing"
	stateImporting = "importing"
)

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
	if state != nil && state.name == stateErasing {
		program.ErasingSince = state.at
	}
	return state == nil || state.name == stateErasing
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

// erasing returns the ids of the programs that are being erased.
func (p *programStates) erasing() (ids []string) {
	all := p.current.Load()
	if all == nil {
		return nil
	}
	for id, state := range *all {
		if state.name == stateErasing {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// set replaces the state of a program, nil for none.
func (p *programStates) set(programID string, state *programState) {
	all := make(map[string]programState)
	if before := p.current.Load(); before != nil {
		maps.Copy(all, *before)
	}
	if delete(all, programID); state != nil {
		all[programID] = *state
	}
	p.current.Store(&all)
}

// isVisible is the condition that a record of the program in a column is not hidden. :hidden
// binds the result of hidden.
func isVisible(column string) string {
	return ":hidden IS NULL OR " + column + " NOT IN (SELECT value FROM json_each(:hidden))"
}

// openProgramStates reads the states.
func (s *core) openProgramStates(ctx context.Context) error {
	return s.db.Each(ctx, "SELECT program_id, state, at FROM program_states", nil, func(scan func(...any) error) error {
		var id string
		var state programState
		var at int64
		err := scan(&id, &state.name, &at)
		state.at = time.UnixMilli(at).UTC()
		if state.name == stateImporting {
			state.name = stateErasing // its process has ended
		}
		s.programStates.set(id, &state)
		return err
	})
}

// setProgramState stores the state of a program, nil for none.
func (s *core) setProgramState(t *tx, programID string, state *programState) error {
	t.AfterCommit(func() {
		s.programStates.set(programID, state)
		s.tokens.clear()
	})
	Write{s, t}.programChanged(programID)
	if state == nil {
		return t.Exec("DELETE FROM program_states WHERE program_id = ?", programID)
	}
	return t.Exec("INSERT INTO program_states (program_id, state, at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET state = ?2, at = ?3",
		programID, state.name, state.at.UnixMilli())
}

// usable returns a *webhook.Error if a program cannot be used now.
func (p *programStates) usable(programID string) error {
	switch state := p.get(programID); {
	case state == nil:
		return nil
	case state.name == stateErasing:
		return webhook.NewError(webhook.CodeConflict,
			"The program "+programID+" is being erased. Its id can be used again when that has finished.")
	default:
		return webhook.NewError(webhook.CodeConflict, "The program "+programID+" is being imported. It can be used when that has finished.")
	}
}
