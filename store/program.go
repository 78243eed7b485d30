package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"service/store/list"
	"service/store/pending"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const (
	programColumns = "id, name, max_subscriptions, rate_limit, max_in_flight, portal_origins, created_at, updated_at"
	selectProgram  = "SELECT " + programColumns + " FROM programs WHERE id = ?"
)

// ensureProgram creates a program unless it exists.
func (t *tx) ensureProgram(id string, now time.Time) error {
	if err := t.use(id, ""); err != nil {
		return err
	}
	return t.Exec("INSERT INTO programs (id, created_at, updated_at) VALUES (?1, ?2, ?2) ON CONFLICT DO NOTHING", id, now.UnixMilli())
}

// scanProgram reads a row of programColumns.
func scanProgram(scan func(...any) error) (p webhook.Program, err error) {
	var origins string
	err = scan(&p.ID, &p.Name, &p.Limits.MaxSubscriptions, &p.Limits.RateLimit, &p.Limits.MaxInFlight, &origins,
		(*sqlite.Time)(&p.CreatedAt), (*sqlite.Time)(&p.UpdatedAt))
	p.PortalOrigins = append([]string{}, strings.Fields(origins)...)
	return p, err
}

// List returns all programs, ordered by ID.
func (s Programs) List(ctx context.Context) (all []webhook.Program, err error) {
	err = s.db.Each(ctx, "SELECT "+programColumns+" FROM programs ORDER BY id", nil, func(scan func(...any) error) error {
		p, err := scanProgram(scan)
		if s.programStates.describe(&p); p.ImportingSince.IsZero() {
			all = append(all, p)
		}
		return err
	})
	return all, err
}

// Get returns a program. It is usually cached, since every request needs one; the caller must
// not change it. The error is a *webhook.Error if there is no such program.
func (s Programs) Get(ctx context.Context, id string) (*webhook.Program, error) {
	p, generation := s.programs.get(id)
	if p != nil {
		return p, nil
	}
	p, err := s.Lookup(ctx, id)
	if err == nil && !p.ImportingSince.IsZero() {
		err = webhook.NoProgram(id)
	}
	if err != nil {
		return nil, err
	}
	s.programs.put(p.ID, p, generation)
	return p, nil
}

// MaxInFlight returns a program's own limit of deliveries in flight, 0 if there is none or no such
// program.
func (s Programs) MaxInFlight(ctx context.Context, id string) (limit int, err error) {
	err = s.db.Scan(ctx, "SELECT coalesce(max_in_flight, 0) FROM programs WHERE id = ?", []any{id}, &limit)
	return limit, sqlite.NoRows(err, nil)
}

// AllMaxInFlight returns MaxInFlight of all programs that have one. unreadable is why the limits of
// some programs are missing, nil if none is.
func (s Programs) AllMaxInFlight(ctx context.Context) (limits map[string]int, unreadable, err error) {
	limits = make(map[string]int)
	err = s.db.Each(ctx, "SELECT id, max_in_flight FROM programs WHERE max_in_flight IS NOT NULL", nil, func(scan func(...any) error) error {
		var id string
		var limit int
		if err := scan(&id, &limit); err != nil {
			unreadable = errors.Join(unreadable, fmt.Errorf("program %s: %w", id, err))
			return nil
		}
		limits[id] = limit
		return nil
	})
	return limits, unreadable, err
}

// Get returns a program as of this write.
func (w ProgramWrites) Get(id string) (webhook.Program, error) {
	p, err := scanProgram(w.t.Row(selectProgram, id))
	return p, sqlite.NoRows(err, webhook.NoProgram(id))
}

// Put sets fields of a program, and creates it if it is new. before is nil in that case.
// A change takes effect with the commit.
func (w ProgramWrites) Put(id string, f *webhook.ProgramFields,
	by webhook.AuditEntry) (p webhook.Program, before *webhook.Program, err error) {
	if err := w.t.use(id, ""); err != nil {
		return p, nil, err
	}
	now := w.t.s.clock.Now().UTC().Truncate(time.Millisecond)
	p, err = w.Get(id)
	var e *webhook.Error
	var old webhook.Program
	action := webhook.ActionProgramUpdate
	switch {
	case err == nil:
		old = p
		before = &old
		if !f.Apply(&p) {
			return p, before, nil
		}
	case errors.As(err, &e):
		p = webhook.Program{ID: id, PortalOrigins: []string{}, CreatedAt: now}
		f.Apply(&p)
		action = webhook.ActionProgramCreate
	default:
		return p, nil, err
	}
	p.UpdatedAt = now
	err = w.t.Exec(`INSERT INTO programs (id, name, max_subscriptions, rate_limit, max_in_flight, created_at, updated_at, portal_origins)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
		ON CONFLICT DO UPDATE SET name = ?2, max_subscriptions = ?3, rate_limit = ?4, max_in_flight = ?5, updated_at = ?7, portal_origins = ?8`,
		id, p.Name, p.Limits.MaxSubscriptions, p.Limits.RateLimit, p.Limits.MaxInFlight,
		p.CreatedAt.UnixMilli(), now.UnixMilli(), strings.Join(p.PortalOrigins, " "))
	w.t.programChanged(id)
	if err == nil {
		err = w.t.people.Record(by, action, id, id, webhook.ProgramChanges(&old, &p))
	}
	return p, before, err
}

// programChanged drops a program from the cache, and notifies watchers, after the commit.
func (t *tx) programChanged(id string) {
	t.AfterCommit(func() {
		t.s.programs.drop(id)
		t.s.watchers.ProgramChanged(id)
	})
}

// Page returns a page of the programs, and how many match the filters.
func (s Programs) Page(ctx context.Context, q *webhook.ListQuery) (programs []webhook.Program, total int, err error) {
	return s.page(ctx, q, list.Binds{"unlisted": sqlite.JSON(s.programStates.in(phaseImporting))})
}

// page reads a page of programs. b contains values in addition to those of q.
func (s Programs) page(ctx context.Context, q *webhook.ListQuery, b list.Binds) (programs []webhook.Program, total int, err error) {
	maps.Copy(b, list.BindsOf(q))
	b["failing"] = sqlite.JSON(list.Truths(q.Filters["failing"]))
	if texts := q.Filters["program_name"]; texts != nil {
		patterns := make([]string, len(texts))
		for i, text := range texts {
			patterns[i] = record.Containing(text)
		}
		b["program_name"] = sqlite.JSON(patterns)
	}
	return list.NumberedPage(ctx, s.db, q, b, countPrograms, selectPrograms, func(scan func(...any) error) (webhook.Program, error) {
		p, err := scanProgram(scan)
		s.programStates.describe(&p)
		return p, err
	})
}

// listedPrograms selects programs by [webhook.ProgramList] and [webhook.AllProgramList]. LIKE
// ignores the case of ASCII letters.
var (
	listedPrograms = " FROM programs WHERE " + list.AllOf(list.IsIn("id"), list.IsIn("name"),
		":unlisted IS NULL OR id NOT IN (SELECT value FROM json_each(:unlisted))",
		list.IsWithin("created_at", "created_at"), list.IsWithin("updated_at", "updated_at"),
		`:program_name IS NULL OR EXISTS (SELECT 1 FROM json_each(:program_name) t WHERE programs.name LIKE t.value ESCAPE '\'
			OR programs.id LIKE t.value ESCAPE '\')`,
		`:failing IS NULL OR (id IN (SELECT s.program_id FROM subscriptions s INDEXED BY subscriptions_by_health
			WHERE s.status = 'failing' AND s.status <> 'healthy' AND s.deleted_at IS NULL)) IN (SELECT value FROM json_each(:failing))`)
	countPrograms  = list.Statement{}.With("SELECT count(*)" + listedPrograms)
	selectPrograms = list.Statement{}.With("SELECT " + programColumns + listedPrograms)
)

// The statistics of the programs whose IDs are a JSON array: each row contains the ID and
// four numbers.
const (
	countProgramSubscriptions = `SELECT s.program_id, count(*), sum(s.active), sum(s.status = 'failing'), sum(s.status = 'disabled')
		FROM json_each(?1) i CROSS JOIN subscriptions s INDEXED BY subscriptions_by_program
		WHERE s.program_id = i.value AND s.deleted_at IS NULL GROUP BY i.key`
	countProgramIncidents = `SELECT n.program_id, count(*), 0, 0, 0 FROM incidents n INDEXED BY incidents_unresolved
		WHERE n.closed_at IS NULL AND n.num > 0 AND n.program_id IN (SELECT value FROM json_each(?1)) GROUP BY n.program_id`
	countProgramTokens = `SELECT t.program_id, count(*), 0, 0, 0 FROM json_each(?1) i CROSS JOIN tokens t INDEXED BY tokens_by_program
		WHERE t.program_id = i.value AND t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?2) GROUP BY i.key`
	selectProgramHeads = `SELECT e.program_id, e.seq, e.received_at, 0, 0 FROM json_each(?1) i
		CROSS JOIN events e INDEXED BY events_by_seq
		WHERE e.program_id = i.value AND e.seq = (SELECT max(seq) FROM events WHERE program_id = i.value)`
	countProgramAttempts = `SELECT t.program_id, sum(t.success), sum(t.failed), sum(t.retryable), 0
		FROM json_each(?1) i CROSS JOIN stats t
		WHERE t.program_id = i.value AND t.subscription_id = '' AND t.span = ?2 AND t.at >= ?3 GROUP BY i.key`
)

// Statistics returns the statistics of programs, with the same number of queries for one program
// as for a hundred.
func (s Programs) Statistics(ctx context.Context, ids []string) (map[string]*webhook.ProgramStatistics, error) {
	now := s.clock.Now()
	from := now.Truncate(record.StatHour).Add(-23 * record.StatHour)
	all := make(map[string]*webhook.ProgramStatistics, len(ids))
	for _, id := range ids {
		all[id] = new(webhook.ProgramStatistics)
	}
	// Memory before the database, see [Figures.Stats].
	s.stats.Each(func(key pending.Key, stat *webhook.Stat) {
		if p := all[key.ProgramID]; p != nil && key.SubscriptionID == "" && key.At(record.StatHour) >= from.UnixMilli() {
			p.Attempts.Success += stat.Success
			p.Attempts.Failed += stat.Failed
			p.Attempts.Retryable += stat.Retryable
		}
	})
	parts := []struct {
		query string
		args  []any
		add   func(p *webhook.ProgramStatistics, n [4]int64)
	}{
		{countProgramSubscriptions, nil, func(p *webhook.ProgramStatistics, n [4]int64) {
			p.Subscriptions, p.ActiveSubscriptions, p.FailingSubscriptions, p.DisabledSubscriptions = int(n[0]), int(n[1]), int(n[2]), int(n[3])
		}},
		{countProgramIncidents, nil, func(p *webhook.ProgramStatistics, n [4]int64) { p.OpenIncidents = int(n[0]) }},
		{countProgramTokens, []any{now.UnixMilli()}, func(p *webhook.ProgramStatistics, n [4]int64) { p.Tokens = int(n[0]) }},
		{selectProgramHeads, nil, func(p *webhook.ProgramStatistics, n [4]int64) {
			p.Events, p.LastEventAt = n[0], time.UnixMilli(n[1]).UTC()
		}},
		{countProgramAttempts, []any{record.StatHour.Milliseconds(), from.UnixMilli()}, func(p *webhook.ProgramStatistics, n [4]int64) {
			p.Attempts.Success += n[0]
			p.Attempts.Failed += n[1]
			p.Attempts.Retryable += n[2]
		}},
	}
	return all, s.db.View(ctx, func(v *sqlite.View) error {
		for _, part := range parts {
			err := v.Each(part.query, append([]any{sqlite.JSON(ids)}, part.args...), func(scan func(...any) error) error {
				var id string
				var n [4]int64
				err := scan(&id, &n[0], &n[1], &n[2], &n[3])
				if p := all[id]; p != nil && err == nil {
					part.add(p, n)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// CreatePortalLink creates a link to a program's portal, see [people.Writes.CreatePortalLink].
// The error is a *webhook.Error if n is invalid, or the program does not exist or cannot be used.
func (w ProgramWrites) CreatePortalLink(n webhook.NewPortalLink, by webhook.AuditEntry) (l webhook.PortalLink, code string, err error) {
	if err := webhook.Invalid(n.Check(w.t.s.clock.Now())...); err != nil {
		return l, "", err
	}
	if err := w.t.use(n.ProgramID, ""); err != nil {
		return l, "", err
	}
	if _, err := w.Get(n.ProgramID); err != nil {
		return l, "", err
	}
	return w.t.people.CreatePortalLink(n, by)
}
