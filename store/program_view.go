package store

import (
	"context"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// View returns a page of the programs for admins, by [webhook.AllProgramList], and how many match.
// id selects one program, "" for all. It includes programs that are being imported.
func (s Programs) View(ctx context.Context, id string, q *webhook.ListQuery) (programs []webhook.Program, total int, err error) {
	b := make(list.Binds)
	if id != "" {
		b["id"] = sqlite.JSON([]string{id})
	}
	return s.page(ctx, q, b)
}

// Hidden reports whether a program is being erased or imported, so that nothing of it is visible.
func (s Programs) Hidden(id string) bool { return s.use(id, "") != nil }

// Lookup is like Get for admins: it also returns a program that is being imported.
func (s Programs) Lookup(ctx context.Context, id string) (*webhook.Program, error) {
	found, err := scanProgram(func(dest ...any) error { return s.db.Scan(ctx, selectProgram, []any{id}, dest...) })
	if err != nil {
		return nil, sqlite.NoRows(err, webhook.NoProgram(id))
	}
	s.programStates.describe(&found)
	return &found, nil
}
