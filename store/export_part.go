package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"service/internal/durable"
)

// exportPart is one of the two parts in which a program moves. The first has the rows that never
// change, such as events and completed deliveries, and is made while the program runs. The rest
// is made while it is frozen. A file remembers what the first part had.
type exportPart struct {
	path string
	rest bool
}

const (
	everything = "TRUE"
	newKeys    = "NOT EXISTS (SELECT 1 FROM part.keys k WHERE k.token_id = t.token_id AND k.key = t.key AND k.expires_at = t.expires_at)"
	statsFrom  = "(SELECT stats_from FROM part.part)"
)

// openPart creates the file of a part.
func (s *core) openPart() (*exportPart, error) {
	f, err := durable.CreateTemp(filepath.Join(s.dir, databaseFile+".part"))
	if err != nil {
		return nil, err
	}
	return &exportPart{path: f.Name()}, f.Close()
}

// close removes the file.
func (p *exportPart) close() error { return os.Remove(p.path) }

// condition returns the condition of the rows of a table that an export has. part is nil for all
// of them.
func (p *programTable) condition(part *exportPart) (condition string, ok bool) {
	condition = everything
	switch {
	case part == nil:
	case part.rest:
		condition = p.rest
	default:
		condition = p.first
	}
	return condition, condition != ""
}

// statsChange is how long a row of statistics may change.
const statsChange = 24 * time.Hour

// createMap stores the numbers of the deliveries of this part, and in the rest also those of the
// first, where those of the open ones are left out. The rest reads only deliveries that are newer
// or were open, however many the database has.
func (part *exportPart) createMap(ctx context.Context, db *sql.DB, programID string) error {
	queries := []string{
		"INSERT INTO export_deliveries (old, new, included) SELECT old, new, old IN (SELECT num FROM part.open) FROM part.deliveries",
		`INSERT INTO export_deliveries (old, new) SELECT num, (SELECT deliveries FROM part.part) + row_number() OVER (ORDER BY num)
			FROM src.deliveries WHERE num > (SELECT num FROM part.part) AND program_id = ?1 ORDER BY num`,
	}
	if !part.rest {
		queries = []string{
			"CREATE TABLE part.deliveries (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)",
			"CREATE TABLE part.open (num INTEGER PRIMARY KEY)",
			"CREATE TABLE part.keys (token_id TEXT NOT NULL, key TEXT NOT NULL, expires_at INTEGER NOT NULL, PRIMARY KEY (token_id, key)) " +
				"WITHOUT ROWID",
			"CREATE TABLE part.part (seq INTEGER NOT NULL, num INTEGER NOT NULL, deliveries INTEGER NOT NULL, stats_from INTEGER NOT NULL)",
			"INSERT INTO part.deliveries (old, new) SELECT num, row_number() OVER (ORDER BY num) FROM src.deliveries WHERE program_id = ?1 " +
				"ORDER BY num",
			"INSERT INTO part.open (num) SELECT num FROM src.deliveries WHERE program_id = ?1 AND completed_at IS NULL",
			"INSERT INTO part.keys (token_id, key, expires_at) SELECT token_id, key, expires_at FROM src.idempotency_keys " +
				"WHERE token_id IN (SELECT id FROM src.tokens WHERE program_id = ?1)",
			"INSERT INTO part.part (seq, num, deliveries, stats_from) SELECT " +
				"(SELECT coalesce(max(seq), 0) FROM src.events WHERE program_id = ?1), " +
				"(SELECT coalesce(max(num), 0) FROM src.deliveries), (SELECT count(*) FROM part.deliveries), ?2",
			"INSERT INTO export_deliveries (old, new, included) SELECT old, new, old NOT IN (SELECT num FROM part.open) FROM part.deliveries",
		}
	}
	values := []any{programID, time.Now().Add(-statsChange).UnixMilli()}
	for _, query := range queries {
		used := 0
		for used < len(values) && strings.Contains(query, fmt.Sprintf("?%d", used+1)) {
			used++
		}
		if _, err := db.ExecContext(ctx, query, values[:used]...); err != nil {
			return err
		}
	}
	return nil
}

// MoveExport is the export of a program that moves. The caller must call Close.
type MoveExport struct {
	s    Programs
	part *exportPart
	id   string
}

// ExportMove exports the first part of a program, while it is used. copies is how many more files
// of the size of the database must fit on the disk.
func (s Programs) ExportMove(ctx context.Context, programID string, copies int) (*MoveExport, *ProgramExport, error) {
	part, err := s.openPart()
	if err != nil {
		return nil, nil, err
	}
	x, err := s.export(ctx, programID, copies, part)
	if err != nil {
		return nil, nil, errors.Join(err, part.close())
	}
	return &MoveExport{s, part, programID}, x, nil
}

// Rest exports everything else of the program, which must be frozen. It reads the database
// itself, and only what has changed.
func (m *MoveExport) Rest(ctx context.Context) (*ProgramExport, error) {
	if err := m.s.writeCounts(); err != nil {
		return nil, err
	}
	keys, release, err := m.s.keys.Content()
	if err != nil {
		return nil, err
	}
	defer release()
	x := &ProgramExport{At: m.s.clock.now().UTC(), ProgramID: m.id}
	if err := m.s.db.Scan(ctx, "PRAGMA user_version", nil, &x.Schema); err != nil {
		return nil, err
	}
	rest := *m.part
	rest.rest = true
	return x, m.s.fillExport(ctx, x, filepath.Join(m.s.dir, databaseFile), keys, &rest)
}

// Close removes what was remembered of the first part.
func (m *MoveExport) Close() error { return m.part.close() }
