package store

import (
	"context"
	"database/sql"

	"service/store/record"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// quotas bound the data that a program can make the service store.
type quotas struct {
	successes    int   // responses of successful attempts kept per subscription, the newest
	responses    int64 // bytes of other responses kept per program
	redeliveries int   // open redeliveries per subscription
}

// defaultQuotas are the production values. Tests may lower them.
var defaultQuotas = quotas{successes: 100, responses: 64 << 20, redeliveries: webhook.MaxOpenRedeliveries}

const (
	// A subscription's responses are trimmed after this many new ones or bytes, and a program's
	// after this many bytes. Quotas can be exceeded by this much.
	successesAtOnce = 400
	responsesAtOnce = 1 << 20
)

// stored counts the responses stored since the last check.
type stored struct {
	responses int
	bytes     int64
}

// recorded counts the response of a stored attempt.
func (h *housekeeping) recorded(c *Claim, a *webhook.Attempt) {
	size := responseBytes(a)
	if size == 0 {
		return
	}
	of, id, due := h.successes, c.SubscriptionID, h.trim
	if a.Result != webhook.ResultSuccess {
		of, id, due = h.others, c.ProgramID, h.prune
	}
	h.mu.Lock()
	is := of[id]
	is.responses++
	is.bytes += size
	enough := is.bytes >= responsesAtOnce || is.responses >= successesAtOnce && a.Result == webhook.ResultSuccess
	if enough {
		delete(of, id)
		due[id] = struct{}{}
	} else {
		of[id] = is
	}
	h.mu.Unlock()
	if enough {
		wake(h.responses)
	}
}

// forget removes the count of a deleted subscription.
func (h *housekeeping) forget(subscriptionID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.successes, subscriptionID)
}

// responseBytes returns the stored size of the response to an attempt: header and body, or
// the detail of its error.
func responseBytes(a *webhook.Attempt) int64 {
	return int64(len(storedHeader(a)) + len(a.ResponseBody))
}

// countResponse records the size of the response of an unsuccessful attempt.
func (t *tx) countResponse(c *Claim, a *webhook.Attempt) error {
	size := responseBytes(a)
	if size == 0 || a.Result == webhook.ResultSuccess {
		return nil
	}
	return t.Exec(insertStored, c.ProgramID, c.num, a.Number, size)
}

var (
	insertStored = "INSERT INTO stored_responses (program_id, delivery, number, bytes) VALUES (?, ?, ?, ?)"

	removeResponse = "UPDATE attempts SET response_header = '', response_body = x'', response_removed = 1 WHERE response_removed = 0 " +
		"AND (response_header <> '' OR response_body <> x'') AND "

	// Subscriptions that were never trimmed and may exceed their quota.
	selectUnmarked = "SELECT id FROM subscriptions s WHERE NOT EXISTS (SELECT 1 FROM response_marks m WHERE m.subscription_id = s.id) " +
		"AND EXISTS (SELECT 1 " + record.CreatedOf("s.id") + " LIMIT 1 OFFSET ?)"
	selectMark     = "SELECT coalesce(max(completed_at), 0) FROM response_marks WHERE subscription_id = ?"
	selectKeptFrom = successesAfter("d.completed_at", "", " ORDER BY 1 DESC LIMIT 1 OFFSET ?3")
	selectNextTrim = "SELECT max(completed_at), count(*) FROM (" + successesAfter("d.completed_at", " AND d.completed_at < ?3",
		" ORDER BY 1 LIMIT ?4") + ")"
	selectSuccesses = successesAfter("d.num", " AND d.completed_at <= ?3", "")
	removeSuccesses = removeResponse + "result = 'success' AND delivery IN (" + selectSuccesses + ")"
	removeFirst     = "DELETE FROM responses WHERE delivery IN (" + selectSuccesses + ")"
	moveMark        = "INSERT INTO response_marks (subscription_id, completed_at) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET completed_at = ?2"
	selectOverQuota = "SELECT program_id FROM response_use WHERE bytes > ?"
	selectUse       = "SELECT coalesce(max(bytes), 0) FROM response_use WHERE program_id = ?"
	selectOldest    = "SELECT delivery, number, bytes FROM stored_responses WHERE program_id = ? ORDER BY delivery, number LIMIT ?"
	removeResponses = removeResponse + "(delivery, number) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))"
	removeStored    = "DELETE FROM stored_responses WHERE program_id = ?1 AND (delivery, number) IN (SELECT value ->> 0, value ->> 1 " +
		"FROM json_each(?2))"

	trimmingSetting = "responses_trimming"
	selectTrimming  = "SELECT CAST(value AS TEXT) FROM settings WHERE name = '" + trimmingSetting + "'"
)

// successesAfter returns a query of a subscription's successful deliveries that completed after
// ?2, by completed_at.
func successesAfter(columns, where, tail string) string {
	return "SELECT " + columns + " " + record.CompletedOf("?1") + " AND d.completed_at > ?2 AND d.status = 'success'" + where + tail
}

// trimSuccesses removes the responses of all but the newest successful attempts of a
// subscription.
func (w *steps) trimSuccesses(subscriptionID string) error {
	s, ctx := w.s, w.ctx
	var mark int64
	if err := s.db.Scan(ctx, selectMark, []any{subscriptionID}, &mark); err != nil {
		return err
	}
	var kept int64 // completed_at of the oldest delivery whose response is kept
	if err := s.db.Scan(ctx, selectKeptFrom, []any{subscriptionID, mark, s.quotas.successes - 1}, &kept); err != nil {
		return sqlite.NoRows(err, nil)
	}
	for first, more := true, true; more; first = false {
		var to sql.NullInt64
		var n int
		if err := s.db.Scan(ctx, selectNextTrim, []any{subscriptionID, mark, kept, w.size}, &to, &n); err != nil {
			return err
		}
		if first && n == 0 {
			return nil
		}
		more = n >= w.size
		err := w.write(func(t *tx) error {
			if err := t.noteTrimming(subscriptionID, more); err != nil || n == 0 {
				return err
			}
			for _, query := range []string{removeSuccesses, removeFirst} {
				if err := t.Exec(query, subscriptionID, mark, to.Int64); err != nil {
					return err
				}
			}
			t.deliveryChanged(0)
			return t.Exec(moveMark, subscriptionID, to.Int64)
		})
		if err != nil {
			return err
		}
		mark = to.Int64
	}
	return nil
}

// noteTrimming stores, for the next process, whether trimming a subscription is in progress.
func (t *tx) noteTrimming(subscriptionID string, half bool) error {
	if !half {
		return t.Exec("DELETE FROM settings WHERE name = '" + trimmingSetting + "'")
	}
	return t.Exec(schema.Set, trimmingSetting,
		[]byte(subscriptionID))
}

// pruneResponses removes the oldest other responses of a program until it is within its quota.
func (w *steps) pruneResponses(programID string) error {
	s, ctx := w.s, w.ctx
	for {
		var use int64
		if err := s.db.Scan(ctx, selectUse, []any{programID}, &use); err != nil || use <= s.quotas.responses {
			return err
		}
		var oldest [][2]int64
		err := s.db.Each(ctx, selectOldest, []any{programID, w.size}, func(scan func(...any) error) error {
			var delivery, number, bytes int64
			err := scan(&delivery, &number, &bytes)
			if use > s.quotas.responses {
				oldest = append(oldest, [2]int64{delivery, number})
			}
			use -= bytes
			return err
		})
		if err != nil || len(oldest) == 0 {
			return err
		}
		list := sqlite.JSON(oldest)
		err = w.write(func(t *tx) error {
			if err := t.Exec(removeResponses, list); err != nil {
				return err
			}
			t.deliveryChanged(0)
			return t.Exec(removeStored, programID, list)
		})
		if err != nil {
			return err
		}
	}
}

// openRedeliveries counts the open redeliveries of a subscription, up to quota.
func (t *tx) openRedeliveries(subscriptionID string, quota int) (n int, err error) {
	return n, t.Scan(countOpenRedeliveries, []any{subscriptionID, quota}, &n)
}

const countOpenRedeliveries = `SELECT count(*) FROM (SELECT 1 FROM deliveries INDEXED BY deliveries_open_redeliveries
	WHERE subscription_id = ? AND redelivery_of IS NOT NULL AND completed_at IS NULL LIMIT ?)`

// ids returns the IDs that a query selects.
func (s *core) ids(ctx context.Context, query string, args ...any) (ids []string, err error) {
	err = s.db.Each(ctx, query, args, sqlite.Into(&ids))
	return ids, err
}

// nums returns the numbers that a query selects.
func (s *core) nums(ctx context.Context, query string, args ...any) (nums []int64, err error) {
	err = s.db.Each(ctx, query, args, sqlite.Into(&nums))
	return nums, err
}
