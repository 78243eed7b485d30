package control

import (
	"context"

	"service/webhook"
)

// Program is a program with its statistics.
type Program struct {
	webhook.Program
	Statistics webhook.ProgramStatistics
}

// Programs returns all programs, ordered by id.
func (t AuditedStore) Programs(ctx context.Context) ([]Program, error) {
	programs, err := t.Store.Programs().List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Program, len(programs))
	// A read of the statistics is short, however many programs there are.
	const chunk = 100
	for from := 0; from < len(programs); from += chunk {
		part := programs[from:min(from+chunk, len(programs))]
		ids := make([]string, len(part))
		for i := range part {
			ids[i] = part[i].ID
		}
		statistics, err := t.Store.Programs().Statistics(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i := range part {
			all[from+i] = Program{part[i], *statistics[part[i].ID]}
		}
	}
	return all, nil
}
