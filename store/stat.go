package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"service/webhook"
)

// Statistics are kept per minute, for minutesFor, and per hour.
const (
	StatMinute = time.Minute
	StatHour   = time.Hour
	minutesFor = 48 * time.Hour
)

// Statistics are a chore, written with other commits. Reads add what is not written yet from memory.
// A crash loses that, which is hardly visible in a chart.
const (
	statRows = 16              // maximum number of rows with one commit
	statRest = 5 * time.Second // pause after all are written
)

// LastHour returns the 60 minutes up to and including the minute of now.
func LastHour(now time.Time) (from, to time.Time) {
	to = now.Truncate(StatMinute).Add(StatMinute)
	return to.Add(-time.Hour), to
}

// statKey identifies a row of the statistics.
type statKey struct {
	programID, subscriptionID string
	span                      time.Duration
	at                        int64 // beginning of the span in Unix milliseconds
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
	for _, span := range [...]time.Duration{StatMinute, StatHour} {
		at := now.UnixMilli() / span.Milliseconds() * span.Milliseconds()
		for _, of := range [...][2]string{{c.ProgramID, c.SubscriptionID}, {c.ProgramID, ""}, {"", ""}} {
			key := statKey{of[0], of[1], span, at}
			if s.pending[key] == nil {
				s.pending[key] = new(webhook.Stat)
			}
			s.pending[key].Count(a)
		}
	}
}

// failedSince returns the ids of the subscriptions with a failed attempt since a time, according to
// statistics that are not written yet.
func (s *stats) failedSince(from time.Time) []string {
	ids := []string{}
	s.each(func(key statKey, stat *webhook.Stat) {
		if key.subscriptionID != "" && key.span == StatMinute && key.at >= from.UnixMilli() && stat.FailedAttempts() > 0 {
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
	writeStat = `INSERT INTO stats (program_id, subscription_id, span, at, success, failed, retryable, answers, durations)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
		ON CONFLICT DO UPDATE SET success = ?5, failed = ?6, retryable = ?7, answers = ?8, durations = ?9`
	removeStats = "DELETE FROM stats WHERE (program_id, subscription_id, span, at) IN " +
		"(SELECT program_id, subscription_id, span, at FROM stats WHERE span = ? AND at < ? ORDER BY at LIMIT ?)"
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

// writeStats adds up to n rows of the statistics in memory to the stored ones.
func (s *core) writeStats(t *tx, n int) error {
	for key, stat := range s.stats.some(n) {
		stored, err := scanStat(func(dest ...any) error {
			return t.Scan(selectStat, []any{key.programID, key.subscriptionID, key.span.Milliseconds(), key.at}, dest...)
		}, key.span)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		stored.Add(stat)
		answers, err := json.Marshal(stored.Answers)
		if err != nil {
			return err
		}
		durations, err := json.Marshal(stored.Durations)
		if err != nil {
			return err
		}
		err = t.Exec(writeStat, key.programID, key.subscriptionID, key.span.Milliseconds(), key.at,
			stored.Success, stored.Failed, stored.Retryable, string(answers), string(durations))
		if err != nil {
			return err
		}
	}
	t.AfterCommit(func() { s.stats.written(statRest) })
	return nil
}

// Stats returns the statistics of attempts between two times, in spans of StatMinute or StatHour, oldest
// first, without empty spans. If subscriptionID is "", they are of the whole program, and if programID is
// "" too, of all programs.
func (s Figures) Stats(ctx context.Context, programID, subscriptionID string, span time.Duration,
	from, to time.Time) ([]webhook.Stat, error) {
	// Memory first: attempts that are written in between then count twice for a moment, instead of being
	// missing.
	var fresh []webhook.Stat
	s.stats.each(func(key statKey, stat *webhook.Stat) {
		at := time.UnixMilli(key.at).UTC()
		wanted := key.programID == programID && key.subscriptionID == subscriptionID && key.span == span
		if wanted && !at.Before(from) && at.Before(to) {
			c := webhook.Stat{At: at, Span: span}
			c.Add(stat)
			fresh = append(fresh, c)
		}
	})
	var all []webhook.Stat
	args := []any{programID, subscriptionID, span.Milliseconds(), from.UnixMilli(), to.UnixMilli()}
	err := s.db.Each(ctx, selectStats, args, func(scan func(...any) error) error {
		stat, err := scanStat(scan, span)
		all = append(all, stat)
		return err
	})
	for i := range fresh {
		at, found := slices.BinarySearchFunc(all, fresh[i].At, func(s webhook.Stat, t time.Time) int { return s.At.Compare(t) })
		if found {
			all[at].Add(&fresh[i])
		} else {
			all = slices.Insert(all, at, fresh[i])
		}
	}
	return all, err
}
