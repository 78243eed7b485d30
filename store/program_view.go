package store

import (
	"context"

	"service/webhook"
)

// viewedPrograms selects programs by [webhook.AllProgramList]. LIKE ignores the case of ASCII
// letters.
var viewedPrograms = " FROM programs WHERE " + allOf(isIn("id"), isWithin("created_at", "created_at"), isWithin("updated_at", "updated_at"),
	`:program_name IS NULL OR EXISTS (SELECT 1 FROM json_each(:program_name) t WHERE programs.name LIKE t.value ESCAPE '\'
			OR programs.id LIKE t.value ESCAPE '\')`,
	`:failing IS NULL OR (id IN (SELECT s.program_id FROM subscriptions s INDEXED BY subscriptions_by_health
			WHERE s.status = 'failing' AND s.status <> 'healthy' AND s.deleted_at IS NULL)) IN (SELECT value FROM json_each(:failing))`)

// View returns a page of the programs for admins, by [webhook.AllProgramList], and how many match.
// id selects one program, "" for all. It includes programs that are being imported.
func (s Programs) View(ctx context.Context, id string, q *webhook.ListQuery) (programs []webhook.Program, total int, err error) {
	b := bindsOf(q)
	if id != "" {
		b["id"] = jsonOf([]string{id})
	}
	b["failing"] = jsonOf(truths(q.Filters["failing"]))
	if texts := q.Filters["program_name"]; texts != nil {
		patterns := make([]string, len(texts))
		for i, text := range texts {
			patterns[i] = containing(text)
		}
		b["program_name"] = jsonOf(patterns)
	}
	return s.page(ctx, q, viewedPrograms, b)
}

// Hidden reports whether a program is being erased or imported, so that nothing of it is visible.
func (s Programs) Hidden(id string) bool { return s.programStates.get(id) != nil }

// Lookup is like Get for admins: it also returns a program that is being imported.
func (s Programs) Lookup(ctx context.Context, id string) (*webhook.Program, error) {
	p, err := s.Get(ctx, id)
	if state := s.programStates.get(id); err == nil || state == nil || state.name != stateImporting {
		return p, err
	}
	found, err := scanProgram(func(dest ...any) error { return s.db.Scan(ctx, selectProgram, []any{id}, dest...) })
	if err != nil {
		return nil, notFound(err, "program")
	}
	s.programStates.describe(&found)
	return &found, nil
}
