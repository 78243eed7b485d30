package record

import (
	"fmt"

	"service/store/list"
	"service/webhook"
)

// The orders of [webhook.AllSubscriptionList] other than that of creation have no index, because their
// keys change with every delivery; see BenchmarkSubscriptionOrders for what a page costs, and
// docs/decisions/0079-subscriptions-by-urgency.md.

// unknownKey is the key of a subscription without a value, which follows all others in both directions.
const unknownKey = "9223372036854775807"

var (
	// stateKey is the rank of the state that a page shows, most urgent first.
	stateKey = `CASE WHEN x.deleted_at IS NOT NULL THEN 5 WHEN x.status = 'disabled' THEN 1 WHEN NOT x.active THEN 3
		WHEN x.status = 'failing' THEN 0 WHEN x.degraded THEN 2 ELSE 4 END`

	// The count of each is at most [CountLimit], which is ?2.
	waitingKey = "(" + waitingCount + ` + (SELECT count(*) FROM (
		SELECT 1 FROM deliveries d INDEXED BY deliveries_due
		WHERE d.subscription_id = x.id AND d.next_attempt_at IS NOT NULL LIMIT ?2)))`

	// rateKey is the share of the attempts since ?3 that succeeded, in millionths. Unwritten
	// statistics, those of the last seconds, are left out.
	rateKey = `(SELECT sum(t.success) * 1000000 / sum(t.success + t.failed + t.retryable) FROM stats t
		WHERE t.program_id = x.program_id AND t.subscription_id = x.id AND t.span = 3600000 AND t.at >= ?3)`

	// nameKey is the beginning of the name of a subscription: the first line of its description, or its
	// host. The rest of a URL may be secret, but a cursor is not.
	nameKey = `substr(CAST(lower(coalesce(nullif(
		trim(substr(x.named, 1, instr(x.named || char(10), char(10)) - 1), char(9, 10, 13, 32)), ''),
		substr(x.url, instr(x.url, '://') + 3, instr(substr(x.url, instr(x.url, '://') + 3) || '/', '/') - 1))) AS BLOB), 1, 32)`

	// The positions of the matching subscriptions, for [list.Keyed], which uses ?1. The other parameters
	// are those of subscriptionMatches and of the keys.
	keyedSubscriptions = `WITH x AS MATERIALIZED (
		SELECT s.id, s.program_id, s.status, s.active, s.deleted_at, s.url, ltrim(s.description, char(9, 10, 13, 32)) AS named,
			%s AS degraded
		FROM subscriptions s WHERE ` + subscriptionMatches + `)
	SELECT x.id AS id, %s AS first, %s AS second, ` + nameKey + ` AS name
	FROM x LEFT JOIN cursors c ON c.subscription_id = x.id`
)

// byKeys returns the list in an order by keys, nil for the order of creation.
func (s Subscriptions) byKeys(w *subscriptionWalk, scope list.Scope, q *webhook.ListQuery) *list.Keyed {
	down := q.Sort[0].Descending
	key := func(expression string) string { // of a number: NULLs last
		if down {
			expression = "-" + expression
		}
		return "coalesce(" + expression + ", " + unknownKey + ")"
	}
	first, second, degraded := "0", "0", "0"
	switch q.Sort[0].Name {
	case "created_at":
		return nil
	case "status":
		first, second, degraded = key("("+stateKey+")"), "-"+waitingKey, subscriptionDegraded
	case "success_rate":
		first = key(rateKey)
	case "waiting":
		first = key(waitingKey)
	case "last_success_at":
		first = key(lastSuccessAt)
	}
	day := s.clock.Now().Truncate(StatHour).Add(-23 * StatHour).UnixMilli()
	return &list.Keyed{
		Key: s.lists.Key, Scope: scope, Query: q, Reverse: down && q.Sort[0].Name == "name",
		Rows: fmt.Sprintf(keyedSubscriptions, degraded, first, second), Args: append([]any{CountLimit, day}, w.args...),
	}
}
