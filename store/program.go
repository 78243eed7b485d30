package store

import (
	"context"
	"time"

	"service/webhook"
)

// ensureProgram creates a program unless it exists.
func (t *tx) ensureProgram(id string, now time.Time) error {
	return t.Exec("INSERT INTO programs (id, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING", id, now.UnixMilli())
}

// List returns all programs, ordered by id.
func (s Programs) List(ctx context.Context) ([]webhook.Program, error) {
	var all []webhook.Program
	err := s.db.Each(ctx, "SELECT id, created_at FROM programs ORDER BY id", nil, func(scan func(...any) error) error {
		var p webhook.Program
		var created int64
		if err := scan(&p.ID, &created); err != nil {
			return err
		}
		p.CreatedAt = time.UnixMilli(created).UTC()
		all = append(all, p)
		return nil
	})
	return all, err
}
