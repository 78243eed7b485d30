package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/clock"
	"service/store/datadir"
	"service/store/dictionary"
	"service/store/erasure"
	"service/store/keyring"
	"service/store/list"
	"service/store/record"
	"service/store/schema"
	"service/store/sqlite"
	"service/store/transit"
	"service/webhook"
)

// ProgramImport is a program to import.
type ProgramImport struct {
	Path      string // the database of a [ProgramExport], not used by another process
	Key       []byte // that of the export
	ProgramID string // the required program ID; "" for any
	// Retry decides what follows the attempts that were in flight, which become interrupted.
	// Nil leaves that to the next start of the service.
	Retry *webhook.RetryPolicy
	Idle  bool // no other writes are expected, so the import does not pause between two steps
	// Audit contains the actor and the action of the audit entries that name each token and each
	// subscription. Without an action, none are written.
	Audit webhook.AuditEntry
}

// Imported counts what was imported.
type Imported struct {
	ProgramID     string `json:"program_id"`
	Subscriptions int    `json:"subscriptions"` // not deleted
	Events        int    `json:"events"`
	Deliveries    int    `json:"deliveries"`
	Interrupted   int    `json:"interrupted"` // deliveries whose attempt was in flight
	// Named are the tokens that are not revoked and the subscriptions that are not deleted, as
	// texts without secrets.
	Named []string `json:"named,omitempty"`
}

// importCopies is the maximum space that an import needs on the disk, in sizes of the export:
// the export itself, the records with their indexes, and the WAL.
const importCopies = 3

// ImportRoom returns a *webhook.Error if the disk has no room for the import of this many bytes.
func (s Programs) ImportRoom(bytes int64) error { return s.roomFor(importCopies * bytes) }

// Import adds a program in small steps. Nothing of it is visible or sent until the last step,
// which also runs the functions. If it fails, or the process ends, the added records are erased.
// The error is a *webhook.Error if the program exists, and wraps [datadir.ErrUnusable] if the database
// cannot be used.
func (s Programs) Import(ctx context.Context, x *ProgramImport, also ...func(Write, Imported) error) (y Imported, err error) {
	db, err := s.openExport(ctx, x)
	if err != nil {
		return y, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	im := s.importer(ctx, x)
	if err := im.open(db, x); err != nil {
		return y, err
	}
	if err := im.verify(); err != nil {
		return y, err
	}
	// Retention must not see half of the program.
	if err := s.sweeping.Acquire(ctx, 1); err != nil {
		return y, err
	}
	defer s.sweeping.Release(1)
	if s.programStates.of(im.programID).phase == phaseErasing {
		if err := s.eraseAll(ctx, true); err != nil { // leftovers of an earlier import
			return y, err
		}
	}
	if err := im.begin(); err != nil {
		return y, err
	}
	if err = im.run(also); err != nil {
		return y, errors.Join(err, s.abandonImport(im.programID))
	}
	for _, id := range im.ids {
		s.watchers.SubscriptionChanged(id)
	}
	return im.done, nil
}

// abandonImport schedules the erasure of the records that an import has added.
func (s *core) abandonImport(programID string) error {
	state := programState{phase: phaseErasing, at: s.clock.Now()}
	s.programStates.set(programID, state) // even if it cannot be stored: the next process does the same
	wake(s.housekeeping.erasures)
	return s.writer.do(func(t *tx) error { return s.setProgramState(t, programID, state) })
}

// importer returns an importer without an export.
func (s Programs) importer(ctx context.Context, x *ProgramImport) *importer {
	im := &importer{steps: s.newSteps(ctx, importPace), retry: x.Retry, audit: x.Audit,
		subscriptions: make(map[int64]int64), runs: make(map[int64]int64), named: make(map[string]string)}
	if x.Idle {
		im.pace = frozenPace
	}
	return im
}

// importer adds one program.
type importer struct {
	steps
	db        *sql.DB // the export
	keys      *keyring.Keyring
	packed    dictionary.Set // of the export
	gate      *transit.Gate
	programID string
	retry     *webhook.RetryPolicy
	done      Imported
	ids       []string // of the subscriptions
	audit     webhook.AuditEntry
	named     map[string]string // tokens and subscriptions that were imported, by ID, as the audit log names them

	moving bool // the program arrives in parts, and may have rows here

	deliveries        []numberedPart  // in the order of the parts
	incidents, events int64           // added to the numbers of the export
	younger           time.Duration   // counted time here minus that of the export, when the import began
	ahead             time.Duration   // times of its records minus counted time here
	subscriptions     map[int64]int64 // their numbers here
	runs              map[int64]int64
}

// numberedPart are the deliveries for which the import of a part has reserved numbers: those above the
// numbers of earlier parts. Later parts contain some of them again, which were open.
type numberedPart struct {
	last  int64 // number in the export
	added int64 // to the numbers of the export
	here  list.ImportedRange
}

// open sets the export, and reads the ID of the program and the dictionaries.
func (im *importer) open(db *sql.DB, x *ProgramImport) (err error) {
	im.db, im.packed = db, dictionary.Set{}
	if im.keys, err = keyring.OfContent(x.Key); err != nil {
		return fmt.Errorf("%w: %w", datadir.ErrUnusable, err)
	}
	scan, each := sqlite.ReadsOf(im.ctx, im.db)
	check, err := schema.Get(scan, keyring.CheckPlace)
	if err != nil {
		return err
	}
	if !im.keys.Fits(check) {
		return fmt.Errorf("%w: its secrets are encrypted with another key", datadir.ErrUnusable)
	}
	var programs int
	err = im.db.QueryRowContext(im.ctx, "SELECT count(*), coalesce(max(id), '') FROM programs").Scan(&programs, &im.programID)
	if err != nil {
		return err
	}
	if programs != 1 || webhook.CheckIdentifier("id", im.programID) != nil || x.ProgramID != "" && im.programID != x.ProgramID {
		return fmt.Errorf("%w: it is not the export of one program", datadir.ErrUnusable)
	}
	if im.gate == nil {
		im.gate = transit.New(im.programID)
	}
	if err := im.readClock(); err != nil {
		return err
	}
	return im.packed.Read(each)
}

// verify checks every row of the export before anything is written, since the export may be
// handmade.
func (im *importer) verify() error {
	for i := range programTables {
		table := &programTables[i]
		r, rows, err := im.rowsOf(table, everything)
		if err == nil {
			err = errors.Join(im.verifyRows(table, r, rows), rows.Close())
		}
		var faulty *transit.Error
		if errors.As(err, &faulty) {
			return fmt.Errorf("%w: %w", datadir.ErrUnusable, faulty)
		}
		if err != nil {
			return err
		}
	}
	return im.checkForeign()
}

// verifyRows checks the rows of a table.
func (im *importer) verifyRows(table *programTable, r *importRows, rows *sql.Rows) error {
	gate, err := im.gate.Table(table.name, r.names)
	if err != nil {
		return err
	}
	return sqlite.Drain(rows, func(scan func(...any) error) error {
		row, err := r.scan(scan)
		if err == nil {
			err = im.reveal(table, r, row)
		}
		if err == nil {
			err = gate.Check(row)
		}
		return err
	})
}

// maxClock bounds the clock of an export: it is in the 22nd century.
const maxClock = 200 * 365 * day

// readClock reads the clock of the export. Its records are as old here as they were there: the wall
// clocks of two machines may differ.
func (im *importer) readClock() error {
	scan, _ := sqlite.ReadsOf(im.ctx, im.db)
	read := func(setting string) (time.Duration, error) {
		ms, err := clock.ReadNumber(scan, setting)
		return time.Duration(ms) * time.Millisecond, err
	}
	counted, err1 := read(clock.CountedTime)
	ahead, err2 := read(exportedAhead)
	err := errors.Join(err1, err2)
	var faulty *strconv.NumError
	if errors.As(err, &faulty) || max(counted.Abs(), ahead.Abs()) > maxClock {
		return fmt.Errorf("%w: its clock is not that of a service", datadir.ErrUnusable)
	}
	if err != nil {
		return err
	}
	im.younger = im.s.clock.Counted() - counted
	im.ahead = ahead - im.younger
	const saved = 2 // seconds: the clock is saved once per second, and a counted_at is rounded up
	im.gate.At(im.s.clock.Now(), clock.WholeSeconds(counted)+saved)
	return nil
}

// begin adds the program itself, hidden.
func (im *importer) begin() error {
	table := &programTables[0]
	rows, err := im.read(table, "TRUE")
	if err != nil {
		return err
	}
	return im.s.writer.do(func(t *tx) error { return im.create(t, rows, "here") })
}

// create adds the row of a new program, hidden. where is how the caller refers to this installation.
func (im *importer) create(t *tx, rows *importRows, where string) error {
	if err := t.use(im.programID, ""); err != nil {
		return err
	}
	var exists bool
	if err := t.Scan("SELECT EXISTS (SELECT 1 FROM programs WHERE id = ?)", []any{im.programID}, &exists); err != nil {
		return err
	}
	if exists {
		return webhook.NewError(webhook.CodeConflict, "The program "+im.programID+" exists "+where+" already. Delete it first, or keep it.")
	}
	return errors.Join(t.Exec(rows.insert, rows.all[0]...),
		im.s.setProgramState(t, im.programID, programState{phase: phaseImporting, at: im.s.clock.Now()}))
}

// references are the columns of the export with IDs that must not be IDs of another program here.
var references = []struct{ column, from, table, what string }{
	{"id", "subscriptions", "subscriptions", "subscriptions"},
	{"id", "tokens", "tokens", "tokens"},
	{"id", "replays", "replays", "replays"},
	{"replay_id", "deliveries WHERE replay_id IS NOT NULL", "replays", "replays"},
	{"redelivery_of", "deliveries WHERE redelivery_of IS NOT NULL", "deliveries", "deliveries"},
	{"split_of", "deliveries WHERE split_of IS NOT NULL", "deliveries", "deliveries"},
}

// checkForeign refuses a program with IDs of another program here, in its own records or in
// references.
func (im *importer) checkForeign() error {
	_, each := sqlite.ReadsOf(im.ctx, im.db)
	for _, r := range references {
		var ids []string
		look := func() error {
			found, err := im.s.ids(im.ctx, "SELECT coalesce(s.program_id, '') FROM json_each(?) i CROSS JOIN "+r.table+
				" s ON s.id = i.value WHERE s.program_id IS NOT ? LIMIT 1", sqlite.JSON(ids), im.programID)
			if err == nil && len(found) > 0 {
				err = webhook.NewError(webhook.CodeConflict,
					"Another program here has "+r.what+" of this export. Delete it first, or keep it.")
			}
			ids = ids[:0]
			return err
		}
		err := each("SELECT DISTINCT "+r.column+" FROM "+r.from, nil, func(scan func(...any) error) error {
			var id string
			if err := scan(&id); err != nil {
				return err
			}
			if ids = append(ids, id); len(ids) == 1000 {
				return look()
			}
			return nil
		})
		if err == nil && len(ids) > 0 {
			err = look()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run adds all other records, and makes the program visible.
func (im *importer) run(also []func(Write, Imported) error) error {
	if err := im.tables(); err != nil {
		return err
	}
	if err := im.interrupt(); err != nil {
		return err
	}
	if err := im.count(); err != nil {
		return err
	}
	if err := im.name(); err != nil {
		return err
	}
	return im.s.write(im.ctx, func(w Write) error {
		delete(w.t.w.heads, im.programID)
		w.t.w.forgetFailures()
		for _, do := range also {
			if err := do(w, im.done); err != nil {
				return err
			}
		}
		// The original program may have accepted more events since the export.
		return errors.Join(w.t.Exec(schema.BeginEpochs, im.programID), w.t.Exec(schema.DropEpochs, im.programID),
			im.s.setProgramState(w.t, im.programID, programState{}))
	})
}

// tables adds the rows of all tables but programs.
func (im *importer) tables() error {
	for i := range programTables[1:] {
		table := &programTables[1+i]
		if table.name == "dictionaries" {
			continue
		}
		err := im.table(table)
		if err != nil && sqlite.IsConstraint(err) {
			return fmt.Errorf("%w: table %s: it has a row that is here already, or that breaks a rule of the table", datadir.ErrUnusable, table.name)
		}
		if err != nil {
			return fmt.Errorf("store: import %s: %w", table.name, err)
		}
	}
	return nil
}

// remember records the name of a token or a subscription, as of the last part that contains it.
func (im *importer) remember(table *programTable, r *importRows, row []any) {
	switch id := r.text(row, "id"); {
	case table.name == "tokens" && *r.at(row, "revoked_at") == nil:
		im.named[id] = "token " + id + " of user " + r.text(row, "user_id") + " with " + r.text(row, "scopes")
	case table.name == "subscriptions" && *r.at(row, "deleted_at") == nil:
		im.named[id] = "subscription " + id + " to " + r.text(row, "url")
	default:
		delete(im.named, id)
	}
}

// name writes the audit entries that name the imported tokens and subscriptions, before their use.
func (im *importer) name() error {
	ids := slices.Sorted(maps.Keys(im.named))
	for _, id := range ids {
		im.done.Named = append(im.done.Named, im.named[id])
	}
	if im.audit.Action == "" {
		return nil
	}
	return inSteps(&im.steps, ids, func(t *tx, some []string) error {
		for _, id := range some {
			e := im.audit
			e.ProgramID, e.SubjectID, e.Detail = im.programID, id, "came with "+im.named[id]
			if err := t.people.Audit(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// count adds the number of rows in the export.
func (im *importer) count() error {
	im.done.ProgramID = im.programID
	for what, to := range map[string]*int{
		"subscriptions WHERE deleted_at IS NULL": &im.done.Subscriptions, "events": &im.done.Events, "deliveries": &im.done.Deliveries,
	} {
		var n int
		if err := im.db.QueryRowContext(im.ctx, "SELECT count(*) FROM "+what).Scan(&n); err != nil {
			return err
		}
		*to += n
	}
	return nil
}

// interrupt records the attempts that were in flight.
func (im *importer) interrupt() error {
	nums, err := im.s.nums(im.ctx, "SELECT num FROM deliveries WHERE status = 'pending' AND status <> 'success' AND claimed_at IS NOT NULL "+
		"AND program_id = ?", im.programID)
	im.done.Interrupted = len(nums)
	if err != nil || im.retry == nil {
		return err
	}
	return inSteps(&im.steps, nums, func(t *tx, some []int64) error {
		for _, num := range some {
			if err := t.interrupt(num, *im.retry, time.Now()); err != nil {
				return err
			}
		}
		return nil
	})
}

// importRows are rows to add to a table.
type importRows struct {
	insert string
	names  []string       // of the columns
	column map[string]int // index by name
	kinds  []string       // types of the columns
	all    [][]any
}

// at returns the value of a column of a row.
func (r *importRows) at(row []any, column string) *any { return &row[r.column[column]] }

// text returns the text in a column of a row, "" for another value.
func (r *importRows) text(row []any, column string) string {
	s, _ := (*r.at(row, column)).(string)
	return s
}

// convert converts the number in a column of a row, unless that is NULL or missing.
func (r *importRows) convert(row []any, column string, to func(int64) int64) {
	if i, ok := r.column[column]; ok {
		if n, ok := row[i].(int64); ok {
			row[i] = to(n)
		}
	}
}

// add adds a number to that in a column of a row, unless that is NULL or missing.
func (r *importRows) add(row []any, column string, n int64) {
	r.convert(row, column, func(v int64) int64 { return v + n })
}

// rowsOf returns the rows of a table of the export that match a condition, in the order of its
// key, and how to insert them. The caller must call Close.
func (im *importer) rowsOf(table *programTable, where string) (*importRows, *sql.Rows, error) {
	names, kinds, err := table.columns(im.ctx, im.db)
	if err != nil {
		return nil, nil, err
	}
	r := &importRows{column: make(map[string]int), kinds: kinds}
	for i, name := range names {
		r.column[name] = i
	}
	selected := strings.Join(names, ", ")
	if table.name == "events" { // the order in which they are stored
		r.column["rowid"], r.kinds = len(names), append(r.kinds, "INTEGER")
		names, selected = append(names, "rowid"), selected+", rowid"
	}
	r.names = names
	r.insert = "INSERT INTO " + table.name + " (" + strings.Join(names, ", ") + ") VALUES (?" + strings.Repeat(", ?", len(names)-1) + ")"
	if im.moving {
		r.insert += table.upsert(names)
	}
	rows, err := im.db.QueryContext(im.ctx, "SELECT "+selected+" FROM "+table.name+" WHERE "+where+" ORDER BY "+table.key)
	return r, rows, err
}

// scan reads a row.
func (r *importRows) scan(scan func(...any) error) ([]any, error) {
	row, dest := make([]any, len(r.kinds)), make([]any, len(r.kinds))
	for i := range row {
		dest[i] = &row[i]
	}
	err := scan(dest...)
	for i, kind := range r.kinds { // one of the drivers returns texts as bytes
		switch v := row[i].(type) {
		case []byte:
			if kind == "TEXT" {
				row[i] = string(v)
			} else if v == nil {
				row[i] = []byte{}
			}
		case string:
			if kind == "BLOB" {
				row[i] = []byte(v)
			}
		}
	}
	return row, err
}

// read reads the rows of a small table.
func (im *importer) read(table *programTable, where string) (*importRows, error) {
	r, rows, err := im.rowsOf(table, where)
	if err != nil {
		return nil, err
	}
	err = sqlite.Drain(rows, func(scan func(...any) error) error {
		row, err := r.scan(scan)
		r.all = append(r.all, row)
		return err
	})
	if err == nil && len(r.all) == 0 {
		err = fmt.Errorf("%w: it has no row in %s", datadir.ErrUnusable, table.name)
	}
	return r, err
}

// table adds the rows of a table in steps.
func (im *importer) table(table *programTable) error {
	where := "TRUE"
	if table.name == "deliveries" {
		if err := im.extend(); err != nil {
			return err
		}
	}
	if of := numberedTable(table.name); of != nil {
		last, err := im.reserve(table, of)
		if err != nil {
			return err
		}
		if last > 0 {
			where = fmt.Sprintf("%s <> %d", of.column, last)
		}
	}
	r, rows, err := im.rowsOf(table, where)
	if err != nil {
		return err
	}
	defer rows.Close()
	for more := true; more; {
		r.all = r.all[:0]
		for len(r.all) < im.size {
			if more = rows.Next(); !more {
				break
			}
			row, err := r.scan(rows.Scan)
			if err == nil {
				err = im.convert(table, r, row)
			}
			if err != nil {
				return err
			}
			r.all = append(r.all, row)
		}
		if len(r.all) == 0 {
			break
		}
		if err := im.write(func(t *tx) error { return im.insert(t, table, r) }); err != nil {
			return err
		}
	}
	return rows.Err()
}

// insert adds rows to a table.
func (im *importer) insert(t *tx, table *programTable, r *importRows) error {
	if table.name == "failures" {
		t.w.forgetFailures()
	}
	for _, row := range r.all {
		values := row
		switch table.name {
		case "subscriptions", "old_signing_secrets", "idempotency_keys":
			// In the write, since a key rotation continues after the writes that have begun.
			values = slices.Clone(row)
			im.encrypt(table, r, values)
			if im.moving && table.name == "idempotency_keys" { // the key of an earlier part, whose size is counted
				const replaced = "DELETE FROM idempotency_keys WHERE token_id = ? AND key = ?"
				if err := t.Exec(replaced, *r.at(row, "token_id"), *r.at(row, "key")); err != nil {
					return err
				}
			}
		case "erasures":
			seq, _ := (*r.at(row, "seq")).(int64)
			at, _ := (*r.at(row, "at")).(int64)
			if err := erasure.Mark(t.Tx, &im.s.dictionaries, im.programID, seq, at); err != nil {
				return err
			}
			continue
		case "events":
			values = slices.Clone(row)
			e := webhook.Event{ID: r.text(row, "id"), JSON: row[r.column["json"]].([]byte)}
			values[r.column["json"]] = slices.Clone(im.s.dictionaries.Pack(&t.w.packed, &e))
		}
		if err := im.insertRow(t, table, r, values); err != nil {
			return err
		}
	}
	return nil
}

// insertRow adds a row. Subscriptions and bulk runs get the next number.
func (im *importer) insertRow(t *tx, table *programTable, r *importRows, row []any) error {
	if table.name == "alerts" && *r.at(row, "next_attempt_at") != nil {
		return im.queueAlert(t, r, slices.Clone(row))
	}
	if table.name != "subscriptions" && table.name != "bulk_runs" {
		return t.Exec(r.insert, row...)
	}
	old, _ := (*r.at(row, "num")).(int64)
	values := slices.Clone(row)
	if table.name == "bulk_runs" {
		*r.at(values, "num") = nil
		num, err := t.Insert(r.insert, values...)
		t.AfterCommit(func() { im.runs[old] = num })
		return err
	}
	var num int64
	id := *r.at(values, "id")
	const next = "SELECT coalesce((SELECT num FROM subscriptions WHERE id = ?), max(num) + 1, 1) FROM subscriptions"
	if err := t.Scan(next, []any{id}, &num); err != nil {
		return err
	}
	*r.at(values, "num") = num
	t.AfterCommit(func() { im.subscriptions[old] = num })
	return t.Exec(r.insert, values...)
}

// queueAlert adds an alert of a program that moves, which this installation sends once the program
// is active.
func (im *importer) queueAlert(t *tx, r *importRows, values []any) error {
	now := im.s.clock.Now().UTC().Truncate(time.Millisecond)
	if *r.at(values, "next_attempt_at") = im.s.clock.Wait(now); !im.s.sendAlerts {
		*r.at(values, "status"), *r.at(values, "next_attempt_at") = "unsent", nil
	}
	num, err := t.Insert(r.insert, values...)
	if err != nil {
		return err
	}
	return t.queueSends(num, t.s.clock.Wait(now))
}

// numbered is a table whose rows are in the order of a number, along which a time never
// decreases. The rows of an import get numbers without a gap, since a row of another program
// between them would break the order of the times.
type numbered struct{ table, column, time string }

var numberedTables = []numbered{
	{"deliveries", "num", "created_at"}, {"events", "rowid", "received_at"}, {"incidents", "num", "opened_at"},
}

func numberedTable(name string) *numbered {
	for i := range numberedTables {
		if numberedTables[i].table == name {
			return &numberedTables[i]
		}
	}
	return nil
}

// reserve adds the last row of a table, so that other rows cannot get the numbers below it. It
// returns the last number in the export, 0 if there is none.
func (im *importer) reserve(table *programTable, of *numbered) (last int64, err error) {
	reserved := int64(0) // by earlier parts
	if n := len(im.deliveries); n > 0 && of.table == "deliveries" {
		reserved = im.deliveries[n-1].last
	}
	var from, to sql.NullInt64
	err = im.db.QueryRowContext(im.ctx, fmt.Sprintf("SELECT coalesce(max(%s), 0), min(%s), max(%s) FROM %s WHERE %s > %d",
		of.column, of.time, of.time, of.table, of.column, reserved)).Scan(&last, &from, &to)
	if err != nil || last == 0 {
		return 0, err
	}
	r, err := im.read(table, fmt.Sprintf("%s = %d", of.column, last))
	if err != nil {
		return 0, err
	}
	for _, row := range r.all {
		if err := im.convert(table, r, row); err != nil { // without the base, which is still unknown
			return 0, err
		}
	}
	var base int64
	var added list.ImportedRange
	err = im.write(func(t *tx) error {
		var newest int64
		if err := t.Scan(fmt.Sprintf("SELECT coalesce(max(%s), 0) FROM %s", of.column, of.table), nil, &newest); err != nil {
			return err
		}
		base = newest - reserved
		added = list.ImportedRange{Table: of.table, First: newest + 1, Last: last + base, From: from.Int64, To: to.Int64,
			Ahead: im.ahead.Milliseconds()}
		if err := im.s.lists.Imported.Record(t.Tx, added); err != nil {
			return err
		}
		rows := *r
		rows.all = [][]any{slices.Clone(r.all[0])}
		rows.add(rows.all[0], of.column, base)
		return im.insert(t, table, &rows)
	})
	if err == nil {
		switch of.table {
		case "deliveries":
			im.deliveries = append(im.deliveries, numberedPart{last, base, added})
		case "events":
			im.events = base
		case "incidents":
			im.incidents = base
		}
	}
	return last, err
}

// extend extends the ranges of the earlier parts to those of their deliveries that this part
// contains. They were open, and may be older than all others.
func (im *importer) extend() error {
	before := int64(0)
	for i := range im.deliveries {
		part := &im.deliveries[i]
		var from sql.NullInt64
		err := im.db.QueryRowContext(im.ctx, "SELECT min(created_at) FROM deliveries WHERE num > ? AND num <= ?", before, part.last).Scan(&from)
		if err != nil {
			return err
		}
		if before = part.last; !from.Valid || from.Int64 >= part.here.From {
			continue
		}
		part.here.From = from.Int64
		if err := im.write(func(t *tx) error { return im.s.lists.Imported.Record(t.Tx, part.here) }); err != nil {
			return err
		}
	}
	return nil
}

// convert converts a row to this installation.
func (im *importer) convert(table *programTable, r *importRows, row []any) error {
	offset := im.s.clock.Offset().Milliseconds()
	for _, column := range table.wait {
		r.add(row, column, -offset)
	}
	if err := im.reveal(table, r, row); err != nil {
		return err
	}
	r.add(row, "counted_at", clock.WholeSeconds(im.younger))
	im.renumber(table, r, row)
	return im.convertProbes(r, row)
}

// renumber converts the numbers of records in a row to those here. It knows columns with references
// by their names, which are the same in all tables.
func (im *importer) renumber(table *programTable, r *importRows, row []any) {
	switch table.name {
	case "tokens":
		im.remember(table, r, row)
	case "subscriptions":
		im.ids = append(im.ids, r.text(row, "id"))
		im.remember(table, r, row)
	case "events":
		r.add(row, "rowid", im.events)
	case "deliveries":
		r.convert(row, "num", im.delivery)
	case "incidents":
		r.add(row, "num", im.incidents)
	case "alerts":
		*r.at(row, "num") = nil // the next number
	}
	for _, column := range []string{"delivery", "last_delivery", "newest", "after_num"} {
		r.convert(row, column, im.delivery)
	}
	r.add(row, "incident", im.incidents)
	r.convert(row, "subscription", func(num int64) int64 { return im.subscriptions[num] })
	r.convert(row, "run", func(num int64) int64 { return im.runs[num] })
}

// delivery returns the number here of a delivery in the export.
func (im *importer) delivery(num int64) int64 {
	for _, part := range im.deliveries {
		if num <= part.last {
			return num + part.added
		}
	}
	return num
}

// convertProbes converts the numbers of deliveries in a log of probes.
func (im *importer) convertProbes(r *importRows, row []any) error {
	i, known := r.column["probe_log"]
	if !known {
		return nil
	}
	text, ok := row[i].(string)
	if !ok {
		return nil
	}
	var log []record.ProbeEntry
	if err := json.Unmarshal([]byte(text), &log); err != nil {
		return err
	}
	for i := range log {
		if log[i].Delivery > 0 {
			log[i].Delivery = im.delivery(log[i].Delivery)
		}
	}
	b, err := json.Marshal(log)
	row[i] = string(b)
	return err
}

// secretsOf returns the columns of a table with secrets, and the associated data of each.
func secretsOf(table *programTable, r *importRows, row []any) map[string]string {
	text := func(column string) string { return r.text(row, column) }
	switch table.name {
	case "subscriptions":
		id := text("id")
		return map[string]string{"authorization_header": "authorization_header of " + id, "headers": "headers of " + id,
			"signing_secret": "signing_secret of " + id}
	case "old_signing_secrets":
		return map[string]string{"secret": "signing_secret of " + text("subscription_id")}
	}
	if table.name != "idempotency_keys" {
		return nil
	}
	return map[string]string{"body": responsePlace(&webhook.IdempotencyKey{TokenID: text("token_id"), Key: text("key")})}
}

// reveal decrypts the secrets of a row of the export, and unpacks the JSON of an event.
func (im *importer) reveal(table *programTable, r *importRows, row []any) error {
	if table.name == "events" {
		packed, _ := (*r.at(row, "json")).([]byte)
		plain, err := im.packed.Unpack(r.text(row, "id"), packed)
		if err != nil {
			return fmt.Errorf("%w: %w", datadir.ErrUnusable, err)
		}
		*r.at(row, "json") = plain
		return nil
	}
	for column, place := range secretsOf(table, r, row) {
		encrypted, _ := (*r.at(row, column)).([]byte)
		if len(encrypted) == 0 {
			continue // none
		}
		plain, err := im.keys.Decrypt(encrypted, place)
		if err != nil {
			return fmt.Errorf("%w: %w", datadir.ErrUnusable, err)
		}
		*r.at(row, column) = plain
	}
	return nil
}

// encrypt encrypts the secrets of a row.
func (im *importer) encrypt(table *programTable, r *importRows, row []any) {
	for column, place := range secretsOf(table, r, row) {
		if plain, _ := (*r.at(row, column)).([]byte); len(plain) > 0 {
			*r.at(row, column) = im.s.keys.Encrypt(plain, place)
		}
	}
}
