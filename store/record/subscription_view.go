package record

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

// SubscriptionSummary is a subscription of any program and its state, for admins. The
// subscription may be deleted.
type SubscriptionSummary struct {
	webhook.Subscription
	CreatedBy string // ID of a user, or [AdminUser] of an admin
	Failures  webhook.Failures

	// LastSuccess is the time of the last successful delivery or ping, or zero if none is known.
	// If it is not among the last deliveries, only its hour is known, and LastSuccess is the
	// beginning of that hour.
	LastSuccess time.Time

	WaitingEvents     int       // events in the log, at most CountLimit
	WaitingMore       bool      // more may wait: the count ended at CountLimit, or a filter was not tried on all
	OldestEvent       time.Time // when the oldest waiting event was accepted; zero without waiting events
	WaitingDeliveries int       // deliveries with a next attempt, at most CountLimit

	Lost       int64 // events that retention removed before they were delivered
	LostLastAt time.Time
}

// AdminUser returns the user of records that were created by an admin. User IDs never contain a
// colon.
func AdminUser(email string) string { return "admin:" + email }

// PortalUser returns the user of records that were created in the portal, opened by a link.
func PortalUser(linkID string) string { return "portal:" + linkID }

// completedAmong is the number of completed deliveries of a subscription, newest first, among
// which the last success is searched.
const completedAmong = "100"

// lastCompleted returns the query of the last completed deliveries of a subscription.
func lastCompleted(subscriptionID string) string {
	return "SELECT d.num, d.status, d.completed_at " + CompletedOf(subscriptionID) + " ORDER BY 3 DESC, 1 DESC LIMIT " + completedAmong
}

var (
	// lastSuccessAt is the time of the last success of a subscription x.
	lastSuccessAt = `coalesce(
		(SELECT n.completed_at FROM (` + lastCompleted("x.id") + `) n WHERE n.status = 'success' LIMIT 1),
		(SELECT max(t.at) FROM stats t
			WHERE t.program_id = x.program_id AND t.subscription_id = x.id AND t.span = 3600000 AND t.success > 0))`

	summaryColumns = `x.id, x.program_id, x.url, x.active, x.description, x.events, x.ordered, x.max_in_flight,
		x.authorization_header IS NOT NULL, x.header_names, x.filters, x.status, x.disabled_reason, x.revision, x.created_at, x.updated_at, x.deleted_at,
		x.max_per_second, coalesce(x.max_events, 0), f.failing_reason, f.failing_since, f.next_probe_at,
		x.created_by, f.count, f.rejected, f.first_at, f.failing_since, f.failing_reason, l.events, l.last_at,
		` + waitingCount + ", " + waitingMore + ", " + waitingSince + `,
		(SELECT count(*) FROM (
			SELECT 1 FROM deliveries d INDEXED BY deliveries_due
			WHERE d.subscription_id = x.id AND d.next_attempt_at IS NOT NULL LIMIT ?2)),
		` + lastSuccessAt

	summaryTables = `CROSS JOIN subscriptions x ON x.id = j.value LEFT JOIN cursors c ON c.subscription_id = x.id
		LEFT JOIN failures f ON f.subscription_id = x.id LEFT JOIN losses l ON l.subscription_id = x.id`

	// ?1 is an array of IDs, ?2 is CountLimit.
	selectSummaries = "SELECT " + summaryColumns + " FROM json_each(?1) j " + summaryTables + " ORDER BY j.key"
)

func scanSummary(scan func(...any) error) (u SubscriptionSummary, err error) {
	f := &u.Failures
	u.Subscription, err = ScanSubscription(func(dest ...any) error {
		return scan(append(dest, &u.CreatedBy, sqlite.OrZero(&f.Count), sqlite.OrZero(&f.Rejected), (*sqlite.Time)(&f.First),
			(*sqlite.Time)(&f.Since), sqlite.OrZero(&f.Reason), sqlite.OrZero(&u.Lost), (*sqlite.Time)(&u.LostLastAt),
			&u.WaitingEvents, &u.WaitingMore, (*sqlite.Time)(&u.OldestEvent), &u.WaitingDeliveries, (*sqlite.Time)(&u.LastSuccess))...)
	})
	u.WaitingMore = u.WaitingMore || u.WaitingEvents >= CountLimit
	return u, err
}

// PageAll returns a page of the subscriptions of a program, or of all programs if programID is "",
// for a query of [webhook.AllSubscriptionList]. next is the cursor of the next page, "" on the last.
// PageAll examines a bounded number of subscriptions, so a page may be short or even empty although
// it has a cursor.
func (s Subscriptions) PageAll(ctx context.Context, programID string,
	q *webhook.ListQuery) (page []SubscriptionSummary, next string, err error) {
	l, scope := newSubscriptionWalk(s.Reads, programID, q), subscriptionScope(programID, q)
	keys := s.byKeys(l, scope, q)
	if keys == nil && q.Cursor != "" {
		if l.at, err = s.lists.Key.ParseIDCursor(scope, q.Cursor); err != nil {
			return nil, "", err
		}
	}
	err = s.view(ctx, func(v *view) error {
		var ids []string
		var more bool
		if keys != nil {
			ids, next, err = keys.Page(v.View)
		} else if ids, l.at, more, err = l.walk(v); more {
			next = s.lists.Key.IDCursor(scope, l.at)
		}
		if err != nil {
			return err
		}
		return v.Each(selectSummaries, []any{sqlite.JSON(ids), CountLimit}, sqlite.ScanInto(&page, scanSummary))
	})
	return page, next, err
}

func subscriptionScope(programID string, q *webhook.ListQuery) list.Scope {
	return list.Scope{List: "subscriptions", ProgramID: programID, Selection: webhook.AllSubscriptionList.Selection(q)}
}

// Newer returns the cursor of the page before the page at the cursor of a query of
// [webhook.AllSubscriptionList], or "" if that page is the first. It walks in the opposite direction
// from the cursor, which is the last position of the previous page.
func (s Subscriptions) Newer(ctx context.Context, programID string, q *webhook.ListQuery) (cursor string, err error) {
	scope := subscriptionScope(programID, q)
	if keys := s.byKeys(newSubscriptionWalk(s.Reads, programID, q), scope, q); keys != nil {
		err = s.view(ctx, func(v *view) error {
			cursor, err = keys.Newer(v.View)
			return err
		})
		return cursor, err
	}
	at, err := s.lists.Key.ParseIDCursor(scope, q.Cursor)
	if err != nil {
		return "", err
	}
	descending := q.Sort[0].Descending
	back := *q
	back.Sort = []webhook.SortField{{Name: q.Sort[0].Name, Descending: !descending}}
	l := newSubscriptionWalk(s.Reads, programID, &back)
	l.at = list.AdjacentID(at, descending)
	err = s.view(ctx, func(v *view) error {
		_, last, more, err := l.walk(v)
		if err == nil && more {
			cursor = s.lists.Key.IDCursor(scope, list.AdjacentID(last, !descending))
		}
		return err
	})
	return cursor, err
}

// subscriptionWalk finds the IDs of a page. IDs increase in the order of creation.
type subscriptionWalk struct {
	limits     list.Limits
	size       int
	descending bool
	at         string // the page begins after this ID
	query      string
	values     []any // values of ?3; the query runs once for each, with disjoint results
	args       []any // arguments from ?4 on
}

// Queries of a subscriptionWalk. ?1 is the maximum number of rows, ?2 the ID after which they begin,
// ?3 the value for the index. From ?4 on there are filters; NULL means no filter.
var (
	subscriptionsOfAll    = "SELECT s.id, " + subscriptionMatches + " FROM subscriptions s WHERE ?3 IS NULL"
	subscriptionsByHealth = "SELECT s.id, " + subscriptionMatches + " FROM subscriptions s INDEXED BY subscriptions_by_health " +
		"WHERE s.status = ?3 AND s.status <> 'healthy' AND s.deleted_at IS NULL"
	subscriptionsByProgram = "SELECT s.id, " + subscriptionMatches + " FROM subscriptions s INDEXED BY subscriptions_of_program " +
		"WHERE s.program_id = ?3"

	subscriptionsUp, subscriptionsDown = " AND s.id > ?2 ORDER BY s.id LIMIT ?1", " AND s.id < ?2 ORDER BY s.id DESC LIMIT ?1"

	subscriptionMatches = `((?4 = '' OR s.program_id = ?4)
		AND s.program_id` + list.CanBeUsed + `
		AND (?5 IS NULL OR iif(` + subscriptionDegraded + `, 'degraded', s.status) IN (SELECT value FROM json_each(?5)))
		AND (?6 IS NULL OR s.active IN (SELECT value FROM json_each(?6)))
		AND (?7 IS NULL OR (s.deleted_at IS NOT NULL) IN (SELECT value FROM json_each(?7)))
		AND (?8 IS NULL OR EXISTS (SELECT 1 FROM losses l WHERE l.subscription_id = s.id) IN (SELECT value FROM json_each(?8)))
		AND (?9 IS NULL OR s.created_at >= ?9) AND (?10 IS NULL OR s.created_at < ?10)
		AND (?11 IS NULL OR EXISTS (SELECT 1 FROM json_each(?11) t
			WHERE ` + matchesText("s", "(t.value ->> 0)") + ` OR instr(lower(s.url), t.value ->> 2) > 0 OR s.id >= (t.value ->> 1) AND s.id < (t.value ->> 1) || 'g'))
		AND (?12 IS NULL OR EXISTS (SELECT 1 FROM json_each(?12) n WHERE instr(s.events, json_quote(n.value)) > 0))) IS TRUE`

	// ?13 is the beginning of the last hour, ?14 an array of the subscriptions with failed attempts in
	// statistics that are not written yet. The rows of at most two hours decide whether the rows of
	// the minutes must be read.
	subscriptionDegraded = `s.status = 'healthy' AND s.active = 1 AND s.deleted_at IS NULL
		AND (s.id IN (SELECT value FROM json_each(?14)) OR EXISTS (
			SELECT 1 FROM stats t WHERE t.program_id = s.program_id AND t.subscription_id = s.id
				AND t.span = 3600000 AND t.at > ?13 - 3600000 AND t.failed + t.retryable > 0) AND EXISTS (
			SELECT 1 FROM stats t WHERE t.program_id = s.program_id AND t.subscription_id = s.id
				AND t.span = 60000 AND t.at >= ?13 AND t.failed + t.retryable > 0))`
)

func newSubscriptionWalk(s *Reads, programID string, q *webhook.ListQuery) *subscriptionWalk {
	f, created := q.Filters, q.Ranges["created_at"]
	deleted := list.Truths(f["deleted"])
	if deleted == nil {
		deleted = []int{0}
	}
	var texts [][3]any // a pattern of names and URLs and the beginning of an ID, or a part of a URL
	for _, text := range f["search"] {
		text = strings.TrimSpace(text)
		texts = append(texts, [3]any{Containing(text), strings.ToLower(text), nil})
	}
	for _, text := range f["url"] { // of a list of deliveries
		texts = append(texts, [3]any{nil, nil, strings.ToLower(text)})
	}
	lastHour, _ := LastHour(s.clock.Now())
	w := &subscriptionWalk{
		limits: s.lists.Limits, size: q.Size, descending: q.Sort[0].Descending,
		args: []any{programID, sqlite.JSON(f["status"]), sqlite.JSON(list.Truths(f["active"])), sqlite.JSON(deleted),
			sqlite.JSON(list.Truths(f["losses"])),
			sqlite.Millis(created.From), sqlite.Millis(created.To), sqlite.JSON(texts), sqlite.JSON(f["event"]), lastHour.UnixMilli(), "[]"},
	}
	if f["status"] != nil || q.Sort[0].Name == "status" {
		w.args[len(w.args)-1] = sqlite.JSON(s.failedSince(lastHour))
	}
	if w.descending {
		w.at = "~" // greater than all IDs
	}
	w.query, w.values = subscriptionsOfAll, []any{nil}
	switch status := f["status"]; {
	case status != nil && !slices.Contains(status, string(webhook.HealthHealthy)) &&
		!slices.Contains(status, string(webhook.HealthDegraded)) && !slices.Contains(deleted, 1):
		w.query, w.values = subscriptionsByHealth, nil
		for _, one := range status {
			w.values = append(w.values, one)
		}
	case programID != "":
		w.query, w.values = subscriptionsByProgram, []any{programID}
	}
	if w.descending {
		w.query += subscriptionsDown
	} else {
		w.query += subscriptionsUp
	}
	return w
}

// compare returns a negative number if a comes before b on a page.
func (w *subscriptionWalk) compare(a, b string) int {
	if w.descending {
		a, b = b, a
	}
	return strings.Compare(a, b)
}

// walk returns the IDs of the page, and if there is more, the ID after which the next page begins.
func (w *subscriptionWalk) walk(v *view) (ids []string, at string, more bool, err error) {
	ids = []string{}
	want := w.size + 1
	examined, over := 0, w.limits.Deadline(time.Now())
	budget := max(w.limits.Scan/len(w.values), want)
	for _, value := range w.values {
		last, late := "", false
		seen, matched := 0, 0
		err := v.Each(w.query, append([]any{budget, w.at, value}, w.args...), func(scan func(...any) error) error {
			var ok bool
			if err := scan(&last, &ok); err != nil {
				return err
			}
			if seen++; ok {
				ids = append(ids, last)
				matched++
			}
			examined++
			if late = w.limits.Late(examined, over); matched == want || late {
				return sqlite.ErrStop
			}
			return nil
		})
		if err != nil {
			return nil, "", false, err
		}
		// The queries are complete only up to the ID at which the first of them stopped.
		if (seen == budget || matched == want || late) && (!more || w.compare(last, at) < 0) {
			at, more = last, true
		}
	}
	slices.SortFunc(ids, w.compare)
	if more {
		ids = slices.DeleteFunc(ids, func(id string) bool { return w.compare(id, at) > 0 })
	}
	if len(ids) > w.size {
		ids = ids[:w.size]
		at, more = ids[w.size-1], true
	}
	return ids, at, more, nil
}

// maxHealth is the maximum count of CountHealth.
const maxHealth = 100

// CountHealth counts the subscriptions of a program, or of all programs if programID is "", with a
// health, up to 100. more reports that there may be more, because it examines a bounded number of
// subscriptions.
func (s Subscriptions) CountHealth(ctx context.Context, programID string, health webhook.Health) (n int, more bool, err error) {
	q := webhook.ListQuery{
		Sort: []webhook.SortField{{Name: "created_at"}}, Size: maxHealth,
		Filters: map[string][]string{"status": {string(health)}},
	}
	err = s.view(ctx, func(v *view) error {
		ids, _, beyond, err := newSubscriptionWalk(s.Reads, programID, &q).walk(v)
		n, more = len(ids), beyond
		return err
	})
	return n, more, err
}

// SubscriptionView is the data of an admin's page about a subscription.
type SubscriptionView struct {
	SubscriptionSummary
	Success    DeliveryEnd // last success among the newest deliveries; see also LastSuccess
	Failure    DeliveryEnd // last failed attempt among the newest, waiting and failed deliveries
	OldSecrets []time.Time // expiry of each replaced signing secret that still signs
	Replays    []webhook.Replay
	Recent     []webhook.Delivery // newest first
	SizeBound  webhook.SizeBound  // zero for none
	Left       Left
}

// DeliveryEnd is an attempt of a delivery with the status of its response, but without the response.
// It is zero if there is none.
type DeliveryEnd struct {
	DeliveryID string
	Ping, Test bool // a ping, or a test event
	Attempt    webhook.Attempt
}

var (
	selectLastSuccess = "SELECT d.id, d.ping, " + lastAttemptColumns + `
		FROM (SELECT num FROM (` + lastCompleted("?1") + `)
			WHERE status = 'success' ORDER BY completed_at DESC, num DESC LIMIT 1) n
		CROSS JOIN deliveries d ON d.num = n.num LEFT JOIN attempts a ON a.delivery = d.num
		WHERE a.delivery IS NOT NULL OR d.duration_ms IS NOT NULL ORDER BY a.number DESC LIMIT 1`

	// Among the newest deliveries, the newest waiting ones and the newest failed ones.
	selectLastFailure = `SELECT d.id, d.ping, a.number, a.started_at, a.duration_ms, a.result, a.response_status, a.error
		FROM (SELECT num FROM (SELECT d.num ` + CreatedOf("?1") + ` ORDER BY 1 DESC LIMIT ` + lastAttemptAmong + `)
			UNION SELECT num FROM (
				SELECT num FROM deliveries INDEXED BY deliveries_by_status
				WHERE status = 'retryable' AND status <> 'success' AND subscription_id = ?1 ORDER BY num DESC LIMIT ` + lastAttemptAmong + `)
			UNION SELECT num FROM (
				SELECT num FROM deliveries INDEXED BY deliveries_by_status
				WHERE status = 'failed' AND status <> 'success' AND subscription_id = ?1 ORDER BY num DESC LIMIT ` + lastAttemptAmong + `)) n
		CROSS JOIN deliveries d ON d.num = n.num CROSS JOIN attempts a ON a.delivery = n.num
		WHERE a.result <> 'success' ORDER BY a.started_at DESC, n.num DESC LIMIT 1`

	selectOldSecrets     = "SELECT expires_at FROM old_signing_secrets WHERE subscription_id = ? AND expires_at > ? ORDER BY expires_at"
	selectRunningReplays = "SELECT " + ReplayColumns + " FROM replays WHERE subscription_id = ? AND status = 'running' ORDER BY created_at, id"
	selectEndedReplays   = "SELECT " + ReplayColumns + " FROM replays INDEXED BY replays_by_subscription " +
		"WHERE subscription_id = ? AND completed_at IS NOT NULL ORDER BY completed_at DESC LIMIT 5"
	selectNewestNums = "SELECT d.num " + CreatedOf("?1") + " ORDER BY 1 DESC LIMIT ?2"
)

// View returns a subscription of any program by its ID, with at most recent of its newest deliveries.
// The subscription may be deleted, until retention removes it.
func (s Subscriptions) View(ctx context.Context, id string, recent int) (u SubscriptionView, err error) {
	err = s.view(ctx, func(v *view) error {
		err := sql.ErrNoRows
		if err := v.Each(selectSummaries, []any{sqlite.JSON([]string{id}), CountLimit}, func(scan func(...any) error) (bad error) {
			u.SubscriptionSummary, bad = scanSummary(scan)
			err = nil
			return bad
		}); err != nil {
			return err
		}
		if err == nil {
			err = s.use(u.ProgramID, "subscription")
		}
		if err != nil {
			return sqlite.NoRows(err, webhook.NotFound("subscription"))
		}
		var learned sql.NullInt64
		if err := sqlite.NoRows(v.Scan(SelectSizeBound, []any{id}, &u.SizeBound.Bytes, &learned), nil); err != nil {
			return err
		}
		u.SizeBound.LearnedAt = s.clock.Shown(learned)
		if u.Left, err = v.left(u.ProgramID, id); err != nil {
			return err
		}
		if u.Success, err = v.deliveryEnd(selectLastSuccess, id); err != nil {
			return err
		}
		if u.Failure, err = v.deliveryEnd(selectLastFailure, id); err != nil {
			return err
		}
		err = v.Each(selectOldSecrets, []any{id, s.clock.Wait(s.clock.Now())}, func(scan func(...any) error) error {
			var ends sql.NullInt64
			err := scan(&ends)
			u.OldSecrets = append(u.OldSecrets, s.clock.Shown(ends))
			return err
		})
		if err != nil {
			return err
		}
		for _, query := range []string{selectRunningReplays, selectEndedReplays} {
			err := v.Each(query, []any{id}, func(scan func(...any) error) error {
				r, err := ScanReplay(scan)
				u.Replays = append(u.Replays, r.Replay)
				return err
			})
			if err != nil {
				return err
			}
		}
		var nums []int64
		err = v.Each(selectNewestNums, []any{id, recent}, sqlite.Into(&nums))
		if err != nil {
			return err
		}
		return v.Each(selectListedDeliveries, []any{sqlite.JSON(nums)}, func(scan func(...any) error) error {
			d, _, err := ScanDelivery(s.clock, scan)
			u.Recent = append(u.Recent, d)
			return err
		})
	})
	return u, err
}

// deliveryEnd reads the row of a query, or returns a zero DeliveryEnd if there is none.
func (v *view) deliveryEnd(query, id string) (e DeliveryEnd, err error) {
	var duration int64
	var own []byte
	a := &e.Attempt
	err = v.Scan(query, []any{id}, (*DeliveryID)(&e.DeliveryID), &own, &a.Number, (*sqlite.Time)(&a.StartedAt), &duration, &a.Result,
		sqlite.OrZero(&a.ResponseStatus), sqlite.OrZero(&a.Error))
	if errors.Is(err, sql.ErrNoRows) {
		return DeliveryEnd{}, nil
	}
	e.Test = webhook.IsTestEvent(own)
	e.Ping = own != nil && !e.Test
	a.Duration = time.Duration(duration) * time.Millisecond
	return e, err
}

// Page returns a page of a program's subscriptions, and how many match the filters.
func (s Subscriptions) Page(ctx context.Context, programID string,
	q *webhook.ListQuery) (subs []webhook.Subscription, total int, err error) {
	b := list.BindsOf(q)
	b["program"], b["active"] = programID, sqlite.JSON(list.Truths(q.Filters["active"]))
	return list.NumberedPage(ctx, s.lists.DB, q, b, countSubscriptions, selectSubscriptions, ScanSubscription)
}

var (
	listedSubscriptions = " FROM subscriptions INDEXED BY subscriptions_by_program WHERE program_id = :program AND deleted_at IS NULL AND " +
		list.AllOf(list.IsIn("active"), list.IsIn("status"), list.IsIn("url"), list.IsWithin("created_at", "created_at"),
			list.IsWithin("updated_at", "updated_at"),
			":event IS NULL OR EXISTS (SELECT 1 FROM json_each(events) WHERE value IN (SELECT value FROM json_each(:event)))")
	countSubscriptions  = list.Statement{}.With("SELECT count(*)" + listedSubscriptions)
	selectSubscriptions = list.Statement{}.With("SELECT " + SubscriptionColumns + listedSubscriptions)
)

// Get returns one subscription of a program.
func (s Subscriptions) Get(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	return s.Subscription(ctx, programID, id)
}

// Subscription is [store.Subscriptions.Get] for other handles.
func (s *Reads) Subscription(ctx context.Context, programID, id string) (webhook.Subscription, error) {
	if err := s.use(programID, "subscription"); err != nil {
		return webhook.Subscription{}, err
	}
	sub, err := ScanSubscription(s.lists.DB.Row(ctx, SelectSubscription, id, programID))
	return sub, sqlite.NoRows(err, webhook.NotFound("subscription"))
}

const SelectSubscription = "SELECT " + SubscriptionColumns + " FROM subscriptions WHERE id = ? AND program_id = ? AND deleted_at IS NULL"
