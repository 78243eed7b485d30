package store

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"time"

	"service/internal/durable"
	"service/store/datadir"
	"service/webhook"
)

// exportPart is one of the parts in which a program moves. The first contains the rows that never
// change, such as events and completed deliveries. Later parts contain those added since the
// previous part. The last contains all other rows, and is made while the program is frozen. A file
// records the contents of the earlier parts.
type exportPart struct {
	path string
	kind partKind
}

type partKind int

const (
	partFirst   partKind = iota
	partChanges          // rows added while the program is in use
	partRest
)

const (
	everything = "TRUE"
	newKeys    = "NOT EXISTS (SELECT 1 FROM part.keys k WHERE k.token_id = t.token_id AND k.key = t.key AND k.expires_at = t.expires_at)"
	// The end of its span decides which part a row of statistics is in.
	statsTo   = "t.at + t.span <= (SELECT stats_to FROM part.part)"
	statsFrom = "t.at + t.span > (SELECT stats_from FROM part.part)"
)

// openPart creates the file that records the parts.
func (s *core) openPart() (*exportPart, error) {
	f, err := durable.CreateTemp(filepath.Join(s.dir, datadir.Database+".part"))
	if err != nil {
		return nil, err
	}
	return &exportPart{path: f.Name()}, f.Close()
}

// close removes the file.
func (p *exportPart) close() error { return os.Remove(p.path) }

// condition returns the condition of the rows of a table that an export contains. part is nil for
// all of them.
func (p *programTable) condition(part *exportPart) (condition string, ok bool) {
	switch {
	case part == nil:
		return everything, true
	case part.kind == partFirst:
		return p.first, p.first != ""
	case part.kind == partRest:
		return p.rest, p.rest != ""
	}
	return p.first + " AND " + p.rest, p.first != "" && p.rest != ""
}

// statsChange is how long after the end of its span a row of statistics may change.
const statsChange = 10 * time.Minute

// createMap gives the new deliveries of the program their numbers in the export, and selects those
// of this part: completed ones, and in the rest open ones as well. It reads only deliveries that
// are new or were open, however many the database contains.
func (part *exportPart) createMap(ctx context.Context, db *sql.DB, programID string) error {
	if part.kind == partFirst {
		err := execAll(ctx, db, "CREATE TABLE part.deliveries (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)",
			"CREATE TABLE part.open (num INTEGER PRIMARY KEY)",
			"CREATE TABLE part.keys (token_id TEXT NOT NULL, key TEXT NOT NULL, expires_at INTEGER NOT NULL, PRIMARY KEY (token_id, key)) "+
				"WITHOUT ROWID",
			"CREATE TABLE part.part (seq INTEGER NOT NULL, num INTEGER NOT NULL, deliveries INTEGER NOT NULL, stats_from INTEGER NOT NULL, "+
				"stats_to INTEGER NOT NULL, created_at INTEGER NOT NULL)",
			"INSERT INTO part.part (seq, num, deliveries, stats_from, stats_to, created_at) VALUES (0, 0, 0, 0, 0, 0)")
		if err != nil {
			return err
		}
	} else if err := part.checkSame(ctx, db, programID); err != nil {
		return err
	}
	// It never decreases, since the earlier parts contain everything up to it.
	_, err := db.ExecContext(ctx, "UPDATE part.part SET stats_to = max(stats_from, ?)", time.Now().Add(-statsChange).UnixMilli())
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, `INSERT INTO part.deliveries (old, new)
		SELECT num, (SELECT deliveries FROM part.part) + row_number() OVER (ORDER BY num) FROM src.deliveries
		WHERE num > (SELECT num FROM part.part) AND program_id = ?1 ORDER BY num`, programID)
	if err != nil {
		return err
	}
	const completed = " AND t.completed_at IS NOT NULL"
	which := completed
	if part.kind == partRest {
		which = ""
	}
	// Records may name a removed delivery.
	return execAll(ctx, db, "CREATE TEMP VIEW export_deliveries AS SELECT m.old, m.new FROM part.deliveries m "+
		"WHERE EXISTS (SELECT 1 FROM src.deliveries d WHERE d.num = m.old)",
		"CREATE TABLE export_some (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)",
		"INSERT INTO export_some (old, new) SELECT m.old, m.new FROM part.open o CROSS JOIN part.deliveries m ON m.old = o.num "+
			"CROSS JOIN src.deliveries t ON t.num = o.num WHERE TRUE"+which,
		"INSERT INTO export_some (old, new) SELECT m.old, m.new FROM part.deliveries m CROSS JOIN src.deliveries t ON t.num = m.old "+
			"WHERE m.old > (SELECT num FROM part.part)"+which+" ORDER BY m.old")
}

// checkSame returns a *webhook.Error if the program is not that of the first part.
func (part *exportPart) checkSame(ctx context.Context, db *sql.DB, programID string) error {
	var same bool
	const query = "SELECT EXISTS (SELECT 1 FROM src.programs WHERE id = ? AND created_at = (SELECT created_at FROM part.part))"
	err := db.QueryRowContext(ctx, query, programID).Scan(&same)
	if err == nil && !same {
		err = webhook.NewError(webhook.CodeConflict, "The program "+programID+" was erased during the move.")
	}
	return err
}

// remember records the contents of this part and the earlier ones, for the next.
func (part *exportPart) remember(ctx context.Context, db *sql.DB, programID string) error {
	if err := execAll(ctx, db, "DELETE FROM part.open WHERE num IN (SELECT old FROM export_some)",
		"INSERT INTO part.open (num) SELECT t.num FROM part.deliveries m CROSS JOIN src.deliveries t ON t.num = m.old "+
			"WHERE m.old > (SELECT num FROM part.part) AND t.completed_at IS NULL"); err != nil {
		return err
	}
	_, err := db.ExecContext(ctx, "INSERT OR REPLACE INTO part.keys (token_id, key, expires_at) SELECT token_id, key, expires_at "+
		"FROM src.idempotency_keys t WHERE token_id IN (SELECT id FROM src.tokens WHERE program_id = ?1) AND "+newKeys, programID)
	if err == nil {
		_, err = db.ExecContext(ctx, "UPDATE part.part SET seq = (SELECT coalesce(max(seq), 0) FROM src.events WHERE program_id = ?1), "+
			"num = (SELECT coalesce(max(num), 0) FROM src.deliveries), "+
			"stats_from = stats_to, deliveries = coalesce((SELECT new FROM part.deliveries ORDER BY old DESC LIMIT 1), 0), "+
			"created_at = (SELECT created_at FROM src.programs WHERE id = ?1)", programID)
	}
	return err
}

// MoveExport is the export of a program that moves. The caller must call Close.
type MoveExport struct {
	s    Programs
	part *exportPart
	id   string
}

// ExportMove exports the first part of a program, while it is in use. copies is how many more
// files of the size of the database must fit on the disk.
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

// Changes exports the new rows that never change, while the program is in use.
func (m *MoveExport) Changes(ctx context.Context) (*ProgramExport, error) {
	return m.live(ctx, partChanges)
}

// Rest exports everything else of the program, which must be frozen.
func (m *MoveExport) Rest(ctx context.Context) (*ProgramExport, error) { return m.live(ctx, partRest) }

// live exports a part from the database itself, of which it reads only what has changed.
func (m *MoveExport) live(ctx context.Context, kind partKind) (*ProgramExport, error) {
	if err := m.s.writeCounts(); err != nil {
		return nil, err
	}
	keys, release, err := m.s.keys.Content()
	if err != nil {
		return nil, err
	}
	defer release()
	x := &ProgramExport{At: m.s.clock.Now().UTC(), ProgramID: m.id}
	if err := m.s.db.Scan(ctx, "PRAGMA user_version", nil, &x.Schema); err != nil {
		return nil, err
	}
	part := exportPart{path: m.part.path, kind: kind}
	return x, m.s.fillExport(ctx, x, filepath.Join(m.s.dir, datadir.Database), keys, &part)
}

// Close removes the file that records the parts.
func (m *MoveExport) Close() error { return m.part.close() }
