package pending

import (
	"context"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const selectStats = "SELECT " + statColumns + " FROM stats " +
	"WHERE program_id = ? AND subscription_id = ? AND span = ? AND at >= ? AND at < ? ORDER BY at"

// Read returns the statistics of attempts between two times, in spans of record.StatMinute or
// record.StatHour, oldest first, without empty spans. If subscriptionID is "", they cover the whole
// program, and if programID is "" as well, all programs.
func (s *Stats) Read(ctx context.Context, db *sqlite.DB, programID, subscriptionID string, span time.Duration,
	from, to time.Time) ([]webhook.Stat, error) {
	// Memory before the database: attempts that are written in between then count twice for a moment,
	// instead of being missing.
	fresh := make(map[time.Time]*webhook.Stat)
	s.Each(func(key Key, stat *webhook.Stat) {
		at := time.UnixMilli(key.At(span)).UTC()
		if key.ProgramID == programID && key.SubscriptionID == subscriptionID && !at.Before(from) && at.Before(to) {
			if fresh[at] == nil {
				fresh[at] = &webhook.Stat{At: at, Span: span}
			}
			fresh[at].Add(stat)
		}
	})
	var all []webhook.Stat
	args := []any{programID, subscriptionID, span.Milliseconds(), from.UnixMilli(), to.UnixMilli()}
	err := db.Each(ctx, selectStats, args, func(scan func(...any) error) error {
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

// ReadEach returns statistics like Read for each of the subscriptions, by ID, without response codes
// and durations.
func (s *Stats) ReadEach(ctx context.Context, db *sqlite.DB, subs []webhook.Subscription, span time.Duration,
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
	// Memory before the database, see Read.
	s.Each(func(key Key, stat *webhook.Stat) {
		at := time.UnixMilli(key.At(span)).UTC()
		if key.SubscriptionID != "" && asked[key.SubscriptionID] && !at.Before(from) && at.Before(to) {
			add(key.SubscriptionID, &webhook.Stat{At: at, Success: stat.Success, Failed: stat.Failed, Retryable: stat.Retryable})
		}
	})
	args := []any{sqlite.JSON(pairs), span.Milliseconds(), from.UnixMilli(), to.UnixMilli()}
	err := db.Each(ctx, selectStatCounts, args, func(scan func(...any) error) error {
		var id string
		var stat webhook.Stat
		if err := scan(&id, (*sqlite.Time)(&stat.At), &stat.Success, &stat.Failed, &stat.Retryable); err != nil {
			return err
		}
		add(id, &stat)
		return nil
	})
	return all, err
}
