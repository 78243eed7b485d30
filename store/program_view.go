package store

import (
	"context"
	"errors"

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
	found, err := scanProgram(s.db.Row(ctx, selectProgram, id))
	if err != nil {
		return nil, sqlite.NoRows(err, webhook.NoProgram(id))
	}
	s.programStates.describe(&found)
	return &found, nil
}

// Exists reports whether there is a program with an ID.
func (s Programs) Exists(ctx context.Context, id string) (exists bool, err error) {
	err = s.db.Scan(ctx, "SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?)", []any{id}, &exists)
	return exists, err
}

const selectVisibleProgramIDs = "SELECT id FROM programs WHERE id" + list.CanBeUsed + " ORDER BY id LIMIT ?"

// IDs returns the IDs of at most limit programs in ascending order.
func (s Programs) IDs(ctx context.Context, limit int) ([]string, error) {
	if limit < 1 {
		return nil, errors.New("store: limit must be at least 1")
	}
	var ids []string
	err := s.db.Each(ctx, selectVisibleProgramIDs, []any{limit}, sqlite.Into(&ids))
	return ids, err
}
