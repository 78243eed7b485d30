package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"service/internal/durable"
	"service/store/clock"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/rekey"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// ProgramExport is a database that contains one program, in a file in the data directory. Its
// secrets are encrypted with a key of its own. The caller owns the file and calls Remove when done.
type ProgramExport struct {
	Path      string
	Bytes     int64
	Schema    int
	At        time.Time // includes everything written before
	ProgramID string
	Key       []byte   // content of a key file that decrypts the secrets; secret
	Names     []string // of the event types that it uses, sorted
}

// Remove removes the file. Call it once.
func (x *ProgramExport) Remove() error { return os.Remove(x.Path) }

// exportCopies is how many databases an export writes next to the database at a time: a copy of
// everything, and the program.
const exportCopies = 2

// ExportSpace returns the maximum number of bytes that an export needs on the data directory's
// disk, including copies files of the size of the database, and how many are free for it.
func (s Programs) ExportSpace(ctx context.Context, copies int) (need, free int64, err error) {
	if err := s.db.Scan(ctx, selectLiveBytes, nil, &need); err != nil {
		return 0, 0, err
	}
	room, minFree, err := s.freeRoom()
	if err != nil {
		return 0, 0, err
	}
	return int64(exportCopies+copies) * need, max(room-minFree, 0), nil
}

// Export copies a program as of one moment to a database of its own, while writes go on. copies
// is how many more files of the size of the database must fit on the disk. The error is a
// *webhook.Error if there is no such program, or if the disk has no room.
func (s Programs) Export(ctx context.Context, programID string, copies int) (*ProgramExport, error) {
	return s.export(ctx, programID, copies, nil)
}

// export copies a program, or the first part of it.
func (s Programs) export(ctx context.Context, programID string, copies int, part *exportPart) (made *ProgramExport, err error) {
	if err := s.checkProgram(ctx, programID); err != nil {
		return nil, err
	}
	if err := s.writeCounts(); err != nil {
		return nil, err
	}
	snapshot, err := s.snapshot(ctx, exportCopies+copies)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, snapshot.Remove()) }()
	made = &ProgramExport{Schema: snapshot.Schema, At: snapshot.At, ProgramID: programID}
	return made, s.fillExport(ctx, made, snapshot.Path, snapshot.Keys, part)
}

// writeCounts stores the counts that are in memory, since they are part of a program.
func (s *core) writeCounts() error {
	return s.writer.do(func(t *tx) error {
		return errors.Join(s.stats.Write(t.Tx, math.MaxInt, t.counted()), s.uses.Write(t.Tx, math.MaxInt))
	})
}

// fillExport creates the file of an export, and fills it from a database.
func (s *core) fillExport(ctx context.Context, made *ProgramExport, src string, keys []byte, part *exportPart) error {
	f, err := durable.CreateTemp(filepath.Join(s.dir, datadir.Database+".export"))
	if err != nil {
		return err
	}
	made.Path = f.Name()
	if err = f.Close(); err == nil {
		err = made.fill(ctx, src, keys, part)
	}
	var info os.FileInfo
	if err == nil {
		info, err = os.Stat(made.Path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("store: export: %w", err), made.Remove())
	}
	made.Bytes = info.Size()
	return nil
}

// checkProgram returns a *webhook.Error if a program does not exist or cannot be used.
func (s *core) checkProgram(ctx context.Context, id string) error {
	var exists bool
	if err := s.db.Scan(ctx, "SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?)", []any{id}, &exists); err != nil {
		return err
	}
	if !exists {
		return webhook.NoProgram(id)
	}
	return s.use(id, "")
}

// fill copies the program, or a part of it, from a complete database, as of one moment.
func (x *ProgramExport) fill(ctx context.Context, src string, keys []byte, part *exportPart) (err error) {
	db, err := sqlite.OpenPrivate(ctx, x.Path, schema.Current)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "ATTACH DATABASE ? AS src", src); err != nil {
		return err
	}
	if part != nil {
		if _, err := db.ExecContext(ctx, "ATTACH DATABASE ? AS part", part.path); err != nil {
			return err
		}
	}
	if _, err := db.ExecContext(ctx, "BEGIN"); err != nil { // the pool has one connection
		return err
	}
	if err := x.copyTables(ctx, db, part); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "COMMIT"); err != nil {
		return err
	}
	if err := x.reencrypt(ctx, db, keys); err != nil {
		return err
	}
	if x.Names, err = usedNames(ctx, db); err != nil {
		return err
	}
	if part != nil {
		_, err = db.ExecContext(ctx, "DETACH DATABASE part")
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "DETACH DATABASE src")
	}
	return err
}

// copyTables copies the rows of all tables.
func (x *ProgramExport) copyTables(ctx context.Context, db *sql.DB, part *exportPart) error {
	if err := createMaps(ctx, db, x.ProgramID, part); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, copyClock, clock.CountedTime, exportedAhead, clock.SavedClock); err != nil {
		return err
	}
	var offset int64
	err := sqlite.NoRows(db.QueryRowContext(ctx, "SELECT CAST(CAST(value AS TEXT) AS INTEGER) FROM src.settings WHERE name = ?",
		clock.WaitOffset).Scan(&offset), nil)
	if err != nil {
		return err
	}
	for i := range programTables {
		table := &programTables[i]
		condition, ok := table.condition(part)
		if !ok {
			continue
		}
		if err := table.export(ctx, db, x.ProgramID, condition, offset, part != nil); err != nil {
			return fmt.Errorf("%s: %w", table.name, err)
		}
	}
	drop := []string{"DROP VIEW export_some", "DROP TABLE export_deliveries", "DROP TABLE export_incidents", "DROP TABLE export_runs"}
	if part != nil {
		if part.kind != partRest {
			if err := part.remember(ctx, db, x.ProgramID); err != nil {
				return err
			}
		}
		drop[0], drop[1] = "DROP TABLE export_some", "DROP VIEW export_deliveries"
	}
	return execAll(ctx, db, drop...)
}

// exportedAhead is the setting of an export with wall clock minus counted time, in milliseconds: the
// minimum that is known, so that a wall clock that was set forward makes no record look older.
const exportedAhead = "ahead"

// copyClock copies the clock, which determines the age of the records. The last commit has saved it.
const copyClock = `WITH saved(name, ms) AS (SELECT name, CAST(CAST(value AS TEXT) AS INTEGER) FROM src.settings)
	INSERT INTO main.settings (name, value)
	SELECT ?1, CAST(CAST((SELECT ms FROM saved WHERE name = ?1) AS TEXT) AS BLOB)
	UNION ALL SELECT ?2, CAST(CAST(min(ahead) AS TEXT) AS BLOB) FROM (SELECT at - counted AS ahead FROM src.retention_marks
		UNION ALL SELECT (SELECT ms FROM saved WHERE name = ?3) - (SELECT ms FROM saved WHERE name = ?1))`

// execAll executes queries without parameters.
func execAll(ctx context.Context, db *sql.DB, queries ...string) error {
	for _, query := range queries {
		if _, err := db.ExecContext(ctx, query); err != nil {
			return err
		}
	}
	return nil
}

// createMaps creates tables with the numbers of the program's records in the copy, which are
// dense: an import adds the same to all of them. export_some contains the deliveries that this
// copy includes, the other tables all numbers of their records.
func createMaps(ctx context.Context, db *sql.DB, programID string, part *exportPart) error {
	maps := [][2]string{{"export_deliveries", "deliveries"}, {"export_incidents", "incidents"}, {"export_runs", "bulk_runs"}}
	if part != nil {
		if err := part.createMap(ctx, db, programID); err != nil {
			return err
		}
		maps = maps[1:]
	}
	for _, m := range maps {
		if err := execAll(ctx, db, "CREATE TABLE "+m[0]+" (old INTEGER PRIMARY KEY, new INTEGER NOT NULL)"); err != nil {
			return err
		}
		_, err := db.ExecContext(ctx, "INSERT INTO "+m[0]+" (old, new) SELECT num, row_number() OVER (ORDER BY num) FROM src."+m[1]+
			" WHERE program_id = ?1 ORDER BY num", programID)
		if err != nil {
			return err
		}
	}
	if part != nil {
		return nil
	}
	return execAll(ctx, db, "CREATE VIEW export_some AS SELECT old, new FROM export_deliveries")
}

// mapped returns the number of a record in the copy, NULL if it was removed.
func mapped(name, column string) string {
	return "(SELECT m.new FROM export_" + name + " m WHERE m.old = " + column + ")"
}

// reachedNum returns how many records of the copy have at most a number.
func reachedNum(name, column string) string {
	return "coalesce((SELECT m.new FROM export_" + name + " m WHERE m.old <= " + column + " ORDER BY m.old DESC LIMIT 1), 0)"
}

// programTable is a table with records of programs.
type programTable struct {
	name   string
	from   string            // FROM and WHERE clauses that select the rows t of the program ?1
	wait   []string          // columns in wait clock time; in the copy they are in wall clock time
	other  map[string]string // the values of columns that differ in the copy
	moving map[string]string // replaces other if the program moves
	// key is the order in which the rows are imported.
	key string
	// first and rest are the conditions of the rows in the first and the last part of a move, ""
	// for none of them. Parts in between contain the rows of both. Only rows that never change are
	// in one part alone.
	first, rest string
}

const (
	ofTheProgram       = " t WHERE t.program_id = ?1"
	ofItsSubscriptions = " t WHERE t.subscription_id IN (SELECT id FROM src.subscriptions WHERE program_id = ?1)"
	ofItsTokens        = " t WHERE t.token_id IN (SELECT id FROM src.tokens WHERE program_id = ?1)"
	ofItsDeliveries    = " t ON t.delivery = m.old WHERE ?1 = ?1"
	ofItsRuns          = " t WHERE t.run IN (SELECT old FROM export_runs WHERE ?1 = ?1)"
)

// programTables are the tables with records of programs, in the order of an import. A missing
// table of a later schema would not be moved; TestProgramTables detects it.
var programTables = []programTable{
	{name: "programs", from: "src.programs t WHERE t.id = ?1", key: "id", first: everything, rest: everything},
	{name: "subscriptions", from: "src.subscriptions" + ofTheProgram, key: "id", first: everything, rest: everything},
	{name: "old_signing_secrets", from: "src.old_signing_secrets" + ofItsSubscriptions, wait: []string{"expires_at"},
		key: "subscription_id, expires_at", rest: everything},
	{name: "tokens", from: "src.tokens" + ofTheProgram, key: "id", first: everything, rest: everything},
	{name: "idempotency_keys", from: "src.idempotency_keys" + ofItsTokens, wait: []string{"expires_at"}, key: "token_id, key",
		first: everything, rest: newKeys},
	{name: "events", from: "src.events" + ofTheProgram, key: "seq", first: everything, rest: "t.seq > (SELECT seq FROM part.part)"},
	// All erased events, since an earlier part may have had the payloads. The import erases them again.
	{name: "erasures", from: "src.events t INDEXED BY events_erased WHERE t.program_id = ?1 AND t.erased_at IS NOT NULL",
		other: map[string]string{"at": "t.erased_at", "cleared": "0"}, key: "seq", rest: everything},
	{name: "log_epochs", from: "src.log_epochs" + ofTheProgram, key: "num", rest: everything},
	{name: "deliveries", from: "export_some m CROSS JOIN src.deliveries t ON t.num = m.old WHERE ?1 = ?1",
		wait: []string{"next_attempt_at"}, other: map[string]string{"num": "m.new"}, key: "num", first: everything, rest: everything},
	{name: "old_urls", from: "src.old_urls" + ofItsSubscriptions,
		other: map[string]string{"last_delivery": reachedNum("deliveries", "t.last_delivery")}, key: "subscription_id, number",
		rest: everything},
	{name: "delivery_events", from: "export_some m CROSS JOIN src.deliveries d ON d.num = m.old CROSS JOIN json_each(d.seqs) j " +
		"CROSS JOIN src.delivery_events t ON t.program_id = ?1 AND t.seq = j.value AND t.delivery = m.old WHERE ?1 = ?1",
		other: map[string]string{"delivery": "m.new"}, key: "seq, delivery", first: everything, rest: everything},
	{name: "attempts", from: "export_some m CROSS JOIN src.attempts" + ofItsDeliveries, other: map[string]string{"delivery": "m.new"},
		key: "delivery, number", first: everything, rest: everything},
	{name: "responses", from: "export_some m CROSS JOIN src.responses" + ofItsDeliveries, other: map[string]string{"delivery": "m.new"},
		key: "delivery", first: everything, rest: everything},
	{name: "stored_responses", from: "export_some m CROSS JOIN src.stored_responses t ON t.delivery = m.old WHERE t.program_id = ?1",
		other: map[string]string{"delivery": "m.new"}, key: "delivery, number", first: everything, rest: everything},
	{name: "recovered", from: "export_deliveries m CROSS JOIN src.recovered" + ofItsDeliveries, other: map[string]string{"delivery": "m.new"},
		key: "delivery", rest: everything},
	{name: "splits", from: "export_deliveries m CROSS JOIN src.splits" + ofItsDeliveries, other: map[string]string{"delivery": "m.new"},
		key: "delivery", rest: everything},
	{name: "size_bounds", from: "src.size_bounds" + ofItsSubscriptions, wait: []string{"learned_at"}, key: "subscription_id",
		rest: everything},
	{name: "replays", from: "src.replays" + ofItsSubscriptions, key: "id", rest: everything},
	{name: "delivered", from: "src.delivered" + ofItsSubscriptions, key: "subscription_id, name, first_seq", rest: everything},
	{name: "stats", from: "src.stats" + ofTheProgram, key: "subscription_id, span, at",
		first: statsTo, rest: statsFrom},
	// Those of the first part, since it contains responses that the source may have trimmed since.
	{name: "response_marks", from: "src.response_marks" + ofItsSubscriptions, key: "subscription_id", first: everything},
	{name: "bulk_runs", from: "src.bulk_runs" + ofTheProgram, other: map[string]string{
		"num": mapped("runs", "t.num"), "newest": reachedNum("deliveries", "t.newest"), "after_num": reachedNum("deliveries", "t.after_num"),
	}, key: "num", rest: everything},
	{name: "bulk_run_waits", from: "src.bulk_run_waits" + ofItsRuns, other: map[string]string{
		"run": mapped("runs", "t.run"), "after_num": reachedNum("deliveries", "t.after_num"),
	}, key: "run, subscription_id", rest: everything},
	{name: "bulk_run_deliveries", from: "src.bulk_run_deliveries t JOIN export_deliveries m ON m.old = t.delivery WHERE t.run IN " +
		"(SELECT old FROM export_runs WHERE ?1 = ?1)",
		other: map[string]string{"run": mapped("runs", "t.run"), "delivery": "m.new"}, key: "run, delivery", rest: everything},
	{name: "bulk_run_subscriptions", from: "src.bulk_run_subscriptions" + ofItsRuns, other: map[string]string{"run": mapped("runs", "t.run")},
		key: "subscription_id, run", rest: everything},
	{name: "incidents", from: "src.incidents" + ofTheProgram, other: map[string]string{
		"num": mapped("incidents", "t.num"), "last_delivery": mapped("deliveries", "t.last_delivery"), "probe_log": mappedProbes,
	}, key: "num", rest: everything},
	{name: "undelivered", from: "export_deliveries m CROSS JOIN src.undelivered" + ofItsDeliveries, other: map[string]string{
		"delivery": "m.new", "incident": mapped("incidents", "t.incident"),
	}, key: "subscription, seq, delivery", rest: everything},
	{name: "alerts", from: "src.alerts" + ofTheProgram, other: map[string]string{
		// Unsent alerts are sent by the installation where they arose.
		"status": "iif(t.next_attempt_at IS NULL, t.status, 'unsent')", "next_attempt_at": "NULL", "incident": mapped("incidents", "t.incident"),
	}, moving: map[string]string{
		// If the program moves, the target sends them, to all of its own channels.
		"status": "iif(" + alertWaits + ", 'pending', t.status)", "next_attempt_at": "iif(" + alertWaits + ", 0, NULL)",
		"attempts_made": "iif(" + alertWaits + ", 0, t.attempts_made)",
	}, key: "num", rest: everything},
	{name: "losses", from: "src.losses" + ofItsSubscriptions, key: "subscription_id", rest: everything},
	{name: "failures", from: "src.failures" + ofItsSubscriptions, wait: []string{"quiet_at"}, other: map[string]string{
		"last_delivery": mapped("deliveries", "t.last_delivery"), "incident": mapped("incidents", "t.incident"), "probe_log": mappedProbes,
	}, key: "subscription_id", rest: everything},
	{name: "cursors", from: "src.cursors" + ofItsSubscriptions, key: "subscription_id", rest: everything},
	{name: "interests", from: "src.interests" + ofItsSubscriptions, key: "subscription_id, name, after_seq", rest: everything},
	{name: "dictionaries", from: "src.dictionaries t WHERE ?1 = ?1", key: "num", first: everything, rest: everything},
}

// alertWaits is the condition of the alerts that are not yet sent to every channel.
const alertWaits = "(t.next_attempt_at IS NOT NULL OR t.num IN (SELECT y.alert FROM src.alert_sends y WHERE y.next_attempt_at IS NOT NULL))"

// mappedProbes is a log of probes with the numbers of the copy, 0 for a removed delivery.
const mappedProbes = `iif(t.probe_log IS NULL, NULL, (SELECT json_group_array(json_set(p.value, '$.delivery',
	coalesce((SELECT m.new FROM export_deliveries m WHERE m.old = p.value ->> 'delivery'), 0)) ORDER BY p.key) FROM json_each(t.probe_log) p))`

// columns returns the columns of the table in a database.
func (p *programTable) columns(ctx context.Context, db *sql.DB) (names, types []string, err error) {
	_, each := sqlite.ReadsOf(ctx, db)
	err = each("SELECT name, type FROM pragma_table_info(?)", []any{p.name}, func(scan func(...any) error) error {
		var name, kind string
		err := scan(&name, &kind)
		names, types = append(names, name), append(types, kind)
		return err
	})
	return names, types, err
}

// export copies the rows of a program. offset is wall clock minus wait clock in milliseconds.
func (p *programTable) export(ctx context.Context, db *sql.DB, programID, condition string, offset int64, moving bool) error {
	names, _, err := p.columns(ctx, db)
	if err != nil {
		return err
	}
	values := make([]string, len(names))
	for i, name := range names {
		values[i] = "t." + name
		if slices.Contains(p.wait, name) {
			values[i] += fmt.Sprintf(" + (%d)", offset)
		}
		if other, ok := p.other[name]; ok {
			values[i] = other
		}
		if other, ok := p.moving[name]; ok && moving {
			values[i] = other
		}
	}
	_, err = db.ExecContext(ctx, "INSERT INTO main."+p.name+" ("+strings.Join(names, ", ")+") SELECT "+strings.Join(values, ", ")+
		" FROM "+p.from+" AND "+condition+" ORDER BY "+p.key, programID)
	return err
}

// reencrypt encrypts the secrets of the copy with a new key, which it sets in x.
func (x *ProgramExport) reencrypt(ctx context.Context, db *sql.DB, keys []byte) error {
	old, err := keyring.OfContent(keys)
	if err != nil {
		return err
	}
	fresh := []keyring.Key{keyring.NewKey()}
	x.Key = keyring.Format(fresh)
	ring, err := keyring.New(nil, fresh)
	if err != nil {
		return err
	}
	for _, c := range rekey.Columns() {
		if err := c.Each(ctx, db, func(place string, value []byte) ([]byte, error) {
			secret, err := old.Decrypt(value, place)
			if err != nil {
				return nil, err
			}
			return ring.Encrypt(secret, place), nil
		}); err != nil {
			return err
		}
	}
	_, err = db.ExecContext(ctx, "INSERT INTO settings (name, value) VALUES (?, ?)", keyring.CheckPlace, ring.NewCheck())
	return err
}

// usedNames returns the names of the event types that a program in a private database uses.
func usedNames(ctx context.Context, db *sql.DB) (names []string, err error) {
	_, each := sqlite.ReadsOf(ctx, db)
	err = each(`WITH RECURSIVE n(name) AS (SELECT min(name) FROM events
		UNION ALL SELECT (SELECT min(e.name) FROM events e WHERE e.name > n.name) FROM n WHERE n.name IS NOT NULL)
		SELECT name FROM n WHERE name IS NOT NULL
		UNION SELECT x.value FROM subscriptions s, json_each(s.events) x WHERE s.deleted_at IS NULL ORDER BY 1`, nil, sqlite.Into(&names))
	return names, err
}
