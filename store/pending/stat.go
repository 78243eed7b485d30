package pending

import (
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

// MinutesFor is how long statistics by minute are kept.
const MinutesFor = 48 * time.Hour

// Statistics are a chore, written with other commits. Reads add the unwritten ones from memory. A
// crash loses them, which is hardly visible in a chart.
const (
	StatKeys = 8               // maximum number of keys per commit; each is two rows
	statRest = 5 * time.Second // pause after all are written
)

// Key identifies a row of the statistics by minute. The row of its hour follows from it.
type Key struct {
	ProgramID, SubscriptionID string
	minute                    int64 // its beginning in Unix milliseconds
}

// At returns the beginning of the span that contains the minute, in Unix milliseconds.
func (k Key) At(span time.Duration) int64 {
	return k.minute / span.Milliseconds() * span.Milliseconds()
}

// Stats are the statistics that are not written yet.
type Stats struct {
	values[Key, *webhook.Stat]
}

// Count adds an attempt to the statistics of its subscription, of its program and of all programs.
func (s *Stats) Count(programID, subscriptionID string, a *webhook.Attempt, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending == nil {
		s.pending = make(map[Key]*webhook.Stat)
	}
	minute := now.Truncate(record.StatMinute).UnixMilli()
	for _, key := range [...]Key{{programID, subscriptionID, minute}, {programID, "", minute}, {"", "", minute}} {
		stat := s.pending[key]
		if stat == nil {
			stat = new(webhook.Stat)
			s.pending[key] = stat
		}
		stat.Count(a)
	}
}

// FailedSince returns the IDs of the subscriptions with a failed attempt since a time, according to
// statistics that are not written yet.
func (s *Stats) FailedSince(from time.Time) []string {
	ids := []string{}
	s.Each(func(key Key, stat *webhook.Stat) {
		if key.SubscriptionID != "" && key.minute >= from.UnixMilli() && stat.FailedAttempts() > 0 {
			ids = append(ids, key.SubscriptionID)
		}
	})
	return ids
}

const (
	statColumns = "at, success, failed, retryable, answers, durations"
	selectStat  = "SELECT " + statColumns + " FROM stats WHERE program_id = ? AND subscription_id = ? AND span = ? AND at = ?"
	writeStat   = `INSERT INTO stats (program_id, subscription_id, span, at, success, failed, retryable, answers, durations, counted_at)
		VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
		ON CONFLICT DO UPDATE SET success = ?5, failed = ?6, retryable = ?7, answers = ?8, durations = ?9`
)

// scanStat reads a row of statColumns.
func scanStat(scan func(...any) error, span time.Duration) (webhook.Stat, error) {
	s := webhook.Stat{Span: span}
	var answers, durations []byte
	if err := scan((*sqlite.Time)(&s.At), &s.Success, &s.Failed, &s.Retryable, &answers, &durations); err != nil {
		return s, err
	}
	return s, errors.Join(json.Unmarshal(answers, &s.Answers), json.Unmarshal(durations, &s.Durations))
}

// Write adds up to n keys of the statistics in memory to the stored rows. counted is their counted_at.
func (s *Stats) Write(t *sqlite.Tx, n int, counted int64) error {
	for _, values := range s.some(n, t.Number()) {
		for key, stat := range values {
			for _, span := range [...]time.Duration{record.StatMinute, record.StatHour} {
				if err := addStat(t, key, span, stat, counted); err != nil {
					return err
				}
			}
		}
	}
	t.AfterCommit(func() { s.written(statRest) })
	return nil
}

// addStat adds counts to the row of a span.
func addStat(t *sqlite.Tx, key Key, span time.Duration, stat *webhook.Stat, counted int64) error {
	at := key.At(span)
	stored, err := scanStat(t.Row(selectStat, key.ProgramID, key.SubscriptionID, span.Milliseconds(), at), span)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	stored.Add(stat)
	return t.Exec(writeStat, key.ProgramID, key.SubscriptionID, span.Milliseconds(), at,
		stored.Success, stored.Failed, stored.Retryable, sqlite.JSONText(stored.Answers), sqlite.JSONText(stored.Durations), counted)
}

// Forget drops the statistics of a program that are not written yet.
func (s *Stats) Forget(programID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, values := range append(slices.Clip(s.writing), s.pending) {
		for key := range values {
			if key.ProgramID == programID {
				delete(values, key)
			}
		}
	}
}
