package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// minutesFor is how long the statistics of minutes are kept.
const minutesFor = 48 * time.Hour

// Statistics are a chore, written with other commits. Reads add what is not written yet from memory.
// A crash loses that, which is hardly visible in a chart.
const (
	statKeys = 8               // maximum number of keys with one commit; each has two rows
	statRest = 5 * time.Second // pause after all are written
)

// statKey identifies a row of the minutes. The row of its hour follows from it.
type statKey struct {
	programID, subscriptionID string
	minute                    int64 // its beginning in Unix milliseconds
}

// at returns the beginning of the span that has the minute, in Unix milliseconds.
func (k statKey) at(span time.Duration) int64 {
	return k.minute / span.Milliseconds() * span.Milliseconds()
}

// stats are the statistics that are not written yet.
type stats struct {
	writeBehind[statKey, *webhook.Stat]
}

// count adds an attempt to the statistics of its subscription, of its program and of all programs.
func (s *stats) count(c *Claim, a *webhook.Attempt, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = make(map[statKey]*webhook.Stat)
	}
	minute := now.Truncate(record.StatMinute).UnixMilli()
	for _, key := range [...]statKey{{c.ProgramID, c.SubscriptionID, minute}, {c.ProgramID, "", minute}, {"", "", minute}} {
		stat := s.pending[key]
		if stat == nil {
			stat = new(webhook.Stat)
			s.pending[key] = stat
		}
		stat.Count(a)
	}
}

// failedSince returns the ids of the subscriptions with a failed attempt since a time, according to
// statistics that are not written yet.
func (s *stats) failedSince(from time.Time) []string {
	ids := []string{}
	s.each(func(key statKey, stat *webhook.Stat) {
		if key.subscriptionID != "" && key.minute >= from.UnixMilli() && stat.FailedAttempts() > 0 {
			ids = append(ids, key.subscriptionID)
		}
	})
	return ids
}

const (
	statColumns = "at, success, failed, retryable, answers, durations"
	selectStat  = "SELECT " + statColumns + " FROM stats WHERE program_id = ? AND subscription_id = ? AND span = ? AND at = ?"
	selectStats = "SELECT " + statColumns + " FROM stats " +
		"WHERE program_id = ? AND subscription_id = ? AND span = ? AND at >= ? AND at < ? ORDER BY at"
	writeStat = `INSERT INTO stats (program_id, subscription_id, span, at, success, failed, retryable, answers, durations, counted_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
		ON CONFLICT DO UPDATE SET success = ?5, failed = ?6, retryable = ?7, answers = ?8, durations = ?9`
	removeStats = "DELETE FROM stats WHERE (program_id, subscription_id, span, at) IN " +
		"(SELECT program_id, subscription_id, span, at FROM stats WHERE span = ? AND counted_at <= ? ORDER BY counted_at LIMIT ?)"
)

func scanStat(scan func(...any) error, span time.Duration) (webhook.Stat, error) {
	s := webhook.Stat{Span: span}
	var at int64
	var answers, durations []byte
	if err := scan(&at, &s.Success, &s.Failed, &s.Retryable, &answers, &durations); err != nil {
		return s, err
	}
	s.At = time.UnixMilli(at).UTC()
	return s, errors.Join(json.Unmarshal(answers, &s.Answers), json.Unmarshal(durations, &s.Durations))
}

// writeStats adds up to n keys of the statistics in memory to the stored rows.
func (s *core) writeStats(t *tx, n int) error {
	for _, values := range s.stats.some(n, t.Number()) {
		for key, stat := range values {
			for _, span := range [...]time.Duration{record.StatMinute, record.StatHour} {
				if err := t.addStat(key, span, stat); err != nil {
					return err
				}
			}
		}
	}
	t.AfterCommit(func() { s.stats.written(statRest) })
	return nil
}

// addStat adds counts to the row of a span.
func (t *tx) addStat(key statKey, span time.Duration, stat *webhook.Stat) error {
	at := key.at(span)
	stored, err := scanStat(func(dest ...any) error {
		return t.Scan(selectStat, []any{key.programID, key.subscriptionID, span.Milliseconds(), at}, dest...)
	}, span)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	stored.Add(stat)
	return t.Exec(writeStat, key.programID, key.subscriptionID, span.Milliseconds(), at,
		stored.Success, stored.Failed, stored.Retryable, jsonText(stored.Answers), jsonText(stored.Durations), t.counted())
}

// Stats returns the statistics of attempts between two times, in spans of StatMinute or StatHour, oldest
// first, without empty spans. If subscriptionID is "", they are of the whole program, and if programID is
// "" too, of all programs.
func (s Figures) Stats(ctx context.Context, programID, subscriptionID string, span time.Duration,
	from, to time.Time) ([]webhook.Stat, error) {
	// Memory first: attempts that are written in between then count twice for a moment, instead of being
	// missing.
	fresh := make(map[time.Time]*webhook.Stat)
	s.stats.each(func(key statKey, stat *webhook.Stat) {
		at := time.UnixMilli(key.at(span)).UTC()
		if key.programID == programID && key.subscriptionID == subscriptionID && !at.Before(from) && at.Before(to) {
			if fresh[at] == nil {
				fresh[at] = &webhook.Stat{At: at, Span: span}
			}
			fresh[at].Add(stat)
		}
	})
	var all []webhook.Stat
	args := []any{programID, subscriptionID, span.Milliseconds(), from.UnixMilli(), to.UnixMilli()}
	err := s.db.Each(ctx, selectStats, args, func(scan func(...any) error) error {
		stat, err := scanStat(scan, span)
		all = append(all, stat)
		return err
	})
	for _, stat := range fresh {
		at, found := slices.BinarySearchFunc(all, stat.At, func(s webhook.Stat, t time.Time) int { return s.At.Compare(t) })
		if found {
			all[at].Add(stat)
		} else {
			all = slices.Insert(all, at, *stat)
		}
	}
	return all, err
}

const selectStatCounts = `SELECT t.subscription_id, t.at, t.success, t.failed, t.retryable
	FROM json_each(?1) i CROSS JOIN stats t ON t.program_id = i.value ->> 0 AND t.subscription_id = i.value ->> 1
		AND t.span = ?2 AND t.at >= ?3 AND t.at < ?4
	ORDER BY i.key, t.at`

// Stats returns statistics like [Figures.Stats] for each of the subscriptions, by id, without
// response codes and durations.
func (s Subscriptions) Stats(ctx context.Context, subs []webhook.Subscription, span time.Duration,
	from, to time.Time) (map[string][]webhook.Stat, error) {
	pairs := make([][2]string, len(subs))
	asked := make(map[string]bool, len(subs))
	for i := range subs {
		pairs[i] = [2]string{subs[i].ProgramID, subs[i].ID}
		asked[subs[i].ID] = true
	}
	all := make(map[string][]webhook.Stat, len(subs))
	add := func(id string, one *webhook.Stat) {
		at, found := slices.BinarySearchFunc(all[id], one.At, func(s webhook.Stat, t time.Time) int { return s.At.Compare(t) })
		if !found {
			all[id] = slices.Insert(all[id], at, webhook.Stat{At: one.At, Span: span})
		}
		sum := &all[id][at]
		sum.Success, sum.Failed, sum.Retryable = sum.Success+one.Success, sum.Failed+one.Failed, sum.Retryable+one.Retryable
	}
	// Memory first, see [Figures.Stats].
	s.stats.each(func(key statKey, stat *webhook.Stat) {
		at := time.UnixMilli(key.at(span)).UTC()
		if key.subscriptionID != "" && asked[key.subscriptionID] && !at.Before(from) && at.Before(to) {
			add(key.subscriptionID, &webhook.Stat{At: at, Success: stat.Success, Failed: stat.Failed, Retryable: stat.Retryable})
		}
	})
	args := []any{sqlite.JSON(pairs), span.Milliseconds(), from.UnixMilli(), to.UnixMilli()}
	err := s.db.Each(ctx, selectStatCounts, args, func(scan func(...any) error) error {
		var id string
		var at int64
		var stat webhook.Stat
		if err := scan(&id, &at, &stat.Success, &stat.Failed, &stat.Retryable); err != nil {
			return err
		}
		stat.At = time.UnixMilli(at).UTC()
		add(id, &stat)
		return nil
	})
	return all, err
}
