package record

import (
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

const (
	// listSubscriptions bounds the subscriptions that a page reads individually, and
	// listPrograms the programs in which it looks up events.
	listSubscriptions = 100
	listPrograms      = 1000

	// maxNamed bounds the subscriptions whose URL matches a part, and namedAmong the
	// subscriptions that are searched.
	maxNamed   = 1000
	namedAmong = 10_000
)

// The conditions of the filters of deliveries. A range of created_at is a range of num, with
// which it never decreases, except among imported deliveries.
var (
	deliveryMatches = list.AllOf(":status IS NULL OR iif("+ofDeleted+", 'failed', d.status) IN (SELECT value FROM json_each(:status))",
		list.IsIn("d.response_status"), list.IsIn("d.error"), list.IsWithin("created_at", "d.created_at"), list.IsWithin("completed_at",
			"d.completed_at"),
		list.IsWithin("next_attempt_at", "d.next_attempt_at"), ":next_attempt_at_from IS NULL AND :next_attempt_at_to IS NULL OR NOT "+ofDeleted,
		`:event IS NULL OR d.ping IS NOT NULL AND 'ping' IN (SELECT value FROM json_each(:event))
			OR EXISTS (SELECT 1 FROM json_each(d.seqs) x CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = x.value
			WHERE e.name IN (SELECT value FROM json_each(:event)))`,
		":event_id IS NULL OR EXISTS (SELECT 1 FROM json_each(d.seqs) x CROSS JOIN events e ON e.program_id = d.program_id AND e.seq = x.value"+
			" WHERE e.id IN (SELECT value FROM json_each(:event_id)))",
		":failure_reason IS NULL OR iif("+ofDeleted+", 'subscription_deleted', d.failure_reason) IN (SELECT value "+
			"FROM json_each(:failure_reason))",
		`:recovered IS NULL OR d.status = 'failed' AND CASE WHEN EXISTS (SELECT 1 FROM recovered r WHERE r.delivery = d.num) THEN 'true'
			WHEN `+isLeft+` THEN 'false' ELSE '' END IN (SELECT value FROM json_each(:recovered))`,
		list.IsIn("d.program_id"), list.IsIn("d.subscription_id"), "d.program_id"+list.CanBeUsed, "d.program_id <> ''", // see blankNewest
		":attempts_made IS NULL OR d.attempts_made >= :attempts_made",
		list.IsIn("d.id"), list.IsIn("d.redelivery_of"), list.IsIn("d.split_of"), list.IsIn("d.replay_id"),
		":bulk_run_id IS NULL OR EXISTS (SELECT 1 FROM bulk_runs r CROSS JOIN bulk_run_deliveries x ON x.run = r.num AND x.delivery = d.num "+
			"WHERE r.id IN (SELECT value FROM json_each(:bulk_run_id)))")

	deliveriesOfSet = list.Statement{}.With("SELECT d.num FROM json_each(:nums) i " +
		"CROSS JOIN deliveries d ON d.num = i.value WHERE " + list.TruthOf(deliveryMatches) + withinNums)
)

// ofDeleted is the condition of pending deliveries of a deleted subscription, which count as
// failed.
const ofDeleted = "(d.next_attempt_at IS NOT NULL AND EXISTS (SELECT 1 FROM subscriptions z WHERE z.id = d.subscription_id " +
	"AND z.deleted_at IS NOT NULL))"

const ofPings = "d.subscription_id = :subscription AND d.ping IS NOT NULL"

const withinNums = " AND d.num > :low AND d.num < :high"

// deliveryAccess reads deliveries through an index.
type deliveryAccess struct {
	*list.Access                // in the order of num; nil if the index has another order
	set          list.Statement // the nums of at most :limit rows, unordered; the zero value if only the access is used
	next         list.Statement // the lowest existing response status above :value
}

// orderedBy returns the access through an index in the order of num.
func orderedBy(index, where string) *deliveryAccess {
	return &deliveryAccess{Access: list.Along("d.num", "d.num", deliveryMatches, "FROM deliveries d "+index+" WHERE "+where)}
}

// linkedBy returns the access to the deliveries that a table x links to something.
func linkedBy(table, where string) *deliveryAccess {
	return &deliveryAccess{Access: list.Along("x.delivery", "x.delivery", deliveryMatches,
		"FROM "+table+" x CROSS JOIN deliveries d ON d.num = x.delivery WHERE "+where)}
}

// byResponse returns the access through an index with response_status before num.
func byResponse(index, where string) *deliveryAccess {
	const exceptions = " AND d.response_status NOT BETWEEN 200 AND 299"
	a := orderedBy(index, where+"d.response_status = :value"+exceptions)
	a.next = list.Statement{}.With("SELECT coalesce(min(d.response_status), 1000) " +
		"FROM deliveries d " + index + " WHERE " + where + "d.response_status > :value" + exceptions)
	return a
}

// setOf returns the access through an index with another order.
func setOf(from string) *deliveryAccess {
	return &deliveryAccess{set: list.Statement{}.With("SELECT " + from + " LIMIT :limit")}
}

var (
	// For one subscription.
	deliveriesOfOne    = &deliveryAccess{Access: list.Along("d.num", "1", deliveryMatches, CreatedOf(":subscription"))}
	deliveriesByStatus = orderedBy("INDEXED BY deliveries_by_status",
		"d.status = :value AND d.status <> 'success' AND d.subscription_id = :subscription")
	deliveriesByResponse = byResponse("INDEXED BY deliveries_by_response", "d.subscription_id = :subscription AND ")
	deliveriesByError    = orderedBy("INDEXED BY deliveries_by_error",
		"d.subscription_id = :subscription AND d.error = :value AND d.error IS NOT NULL")
	deliveriesPings = orderedBy("INDEXED BY deliveries_pings", ofPings)
	fewPings        = setOf("d.num FROM deliveries d INDEXED BY deliveries_pings WHERE " + ofPings + withinNums)
	deliveriesDue   = setOf("num FROM deliveries INDEXED BY deliveries_due WHERE subscription_id = :subscription " +
		"AND next_attempt_at IS NOT NULL" +
		" AND next_attempt_at >= coalesce(:next_attempt_at_from, -9223372036854775808) " +
		"AND next_attempt_at < coalesce(:next_attempt_at_to, 9223372036854775807)")
	// For all subscriptions as well. :value is an array of the event's program and seq.
	deliveriesOfEvent = linkedBy("delivery_events", "x.program_id = :value ->> 0 AND x.seq = :value ->> 1")
	deliveriesWithin  = setOf("d.num " + CompletedOf(":subscription") +
		" AND d.completed_at >= coalesce(:completed_at_from, 0) AND d.completed_at < coalesce(:completed_at_to, 9223372036854775807)")

	// For all subscriptions.
	deliveriesOfAll = orderedBy("", "TRUE")
	allByTrouble    = orderedBy("INDEXED BY deliveries_by_trouble", "d.status = :value AND d.status IN ('failed', 'retryable')")
	allByResponse   = byResponse("INDEXED BY deliveries_by_answer", "")
	allByError      = orderedBy("INDEXED BY deliveries_by_fault", "d.error = :value AND d.error IS NOT NULL")
	allRetried      = orderedBy("INDEXED BY deliveries_retried", "d.attempts_made > 1")
	allByOriginal   = orderedBy("INDEXED BY deliveries_by_original", "d.redelivery_of = :value AND d.redelivery_of IS NOT NULL")
	allBySplit      = setOf("num FROM deliveries INDEXED BY deliveries_by_split WHERE split_of = :value AND split_of IS NOT NULL")
	allByReplay     = orderedBy("INDEXED BY deliveries_by_replay", "d.replay_id = :value AND d.replay_id IS NOT NULL")
	allByBulkRun    = linkedBy("bulk_run_deliveries", "x.run = (SELECT num FROM bulk_runs WHERE id = :value)")
	allByID         = orderedBy("INDEXED BY sqlite_autoindex_deliveries_1", "d.id = :value")
	allPending      = setOf("num FROM deliveries INDEXED BY deliveries_by_status WHERE status = 'pending' AND status <> 'success'")
	allPings        = setOf("num FROM deliveries INDEXED BY deliveries_pings WHERE subscription_id > '' AND ping IS NOT NULL")
	allDue          = setOf("num FROM deliveries INDEXED BY deliveries_due WHERE subscription_id > '' AND next_attempt_at IS NOT NULL")
	allByEvent      = setOf("x.delivery FROM json_each(:programs) p CROSS JOIN json_each(:event) n " +
		"CROSS JOIN events e INDEXED BY events_by_name ON e.program_id = p.value AND e.name = n.value" +
		" CROSS JOIN delivery_events x ON x.program_id = e.program_id AND x.seq = e.seq")
)

// has reports whether an access has a parameter.
func (a *deliveryAccess) has(parameter string) bool {
	return slices.Contains(a.set.Names, parameter) || a.Access != nil && slices.Contains(a.Up.Names, parameter)
}

// lookup is an access with the values to look up in its index.
type lookup struct {
	*deliveryAccess
	values []string // nil if it has no :value
}

// choice is one way to find the rows of a page: sets, which are read completely and sorted, and
// walks along an order. If the sets have too many rows, or there are too many walks, the next
// choice is tried.
type choice struct {
	sets, walks []lookup
	settled     string // the filter that all rows of the choice match
}

// choose returns the ways to find the rows of a query, best first. The last way is taken
// whatever it costs. subscriptions is the number of subscriptions that the list is limited to,
// 0 for all.
func choose(q *webhook.ListQuery, subscriptions int) []choice {
	switch f := q.Filters; {
	case f["id"] != nil:
		return []choice{{walks: []lookup{{allByID, shortIDs(f["id"])}}, settled: "id"}}
	case f["event_id"] != nil:
		return []choice{{walks: []lookup{{deliveriesOfEvent, nil}}, settled: "event_id"}}
	case f["redelivery_of"] != nil:
		return []choice{{walks: []lookup{{allByOriginal, shortIDs(f["redelivery_of"])}}, settled: "redelivery_of"}}
	case f["split_of"] != nil:
		return []choice{{sets: []lookup{{allBySplit, shortIDs(f["split_of"])}}, settled: "split_of"}}
	case f["replay_id"] != nil:
		return []choice{{walks: []lookup{{allByReplay, f["replay_id"]}}, settled: "replay_id"}}
	case f["bulk_run_id"] != nil:
		return []choice{{walks: []lookup{{allByBulkRun, f["bulk_run_id"]}}, settled: "bulk_run_id"}}
	}
	choices := chooseSets(q, subscriptions == 1)
	if subscriptions > 0 {
		walk := lookup{deliveriesOfOne, nil}
		if rare := exceptions(q, deliveriesByError, deliveriesByResponse, deliveriesByStatus); rare != nil {
			walk = rare[0]
		} else if slices.Equal(q.Filters["event"], []string{webhook.EventPing}) {
			walk = lookup{deliveriesPings, nil}
		}
		choices = append(choices, choice{walks: []lookup{walk}})
	}
	if subscriptions != 1 {
		choices = append(choices, chooseOfAll(q)...)
	}
	return choices
}

// chooseSets returns the sets that may have few rows.
func chooseSets(q *webhook.ListQuery, one bool) (choices []choice) {
	ranged := func(name string) bool { return q.Ranges[name] != (webhook.TimeRange{}) }
	add := func(a *deliveryAccess, values []string) {
		choices = append(choices, choice{sets: []lookup{{a, values}}})
	}
	due, pings := allDue, allPings
	if one {
		due, pings = deliveriesDue, fewPings
	}
	if ranged("next_attempt_at") {
		add(due, nil)
	}
	if names := q.Filters["event"]; names != nil {
		c := choice{settled: "event"}
		if slices.Contains(names, webhook.EventPing) {
			c.sets = append(c.sets, lookup{pings, nil})
		}
		if !slices.Equal(names, []string{webhook.EventPing}) {
			c.sets = append(c.sets, lookup{allByEvent, nil})
		}
		choices = append(choices, c)
	}
	if one && ranged("completed_at") {
		add(deliveriesWithin, nil)
	}
	return choices
}

// chooseOfAll returns the ways to the rows of all subscriptions.
func chooseOfAll(q *webhook.ListQuery) []choice {
	all := choice{walks: []lookup{{deliveriesOfAll, nil}}}
	rare := exceptions(q, allByError, allByResponse, allByTrouble)
	pending := string(webhook.StatusPending)
	if rare != nil && rare[0].deliveryAccess == allByTrouble && slices.Contains(rare[0].values, pending) {
		// Pending deliveries have no index in the order of num: they are few, or a walk finds them.
		others := slices.DeleteFunc(slices.Clone(rare[0].values), func(s string) bool { return s == pending })
		return []choice{{sets: []lookup{{allPending, nil}}, walks: []lookup{{allByTrouble, others}}}, all}
	}
	if rare != nil {
		all.walks = rare[:1]
	} else if least := q.Filters["attempts_made.from"]; least != nil && least[0] != "1" {
		all.walks = []lookup{{allRetried, nil}}
	}
	return []choice{all}
}

// exceptions returns the lookups by exceptional values, rarest first.
func exceptions(q *webhook.ListQuery, errors, responses, statuses *deliveryAccess) (rare []lookup) {
	if values := q.Filters["error"]; values != nil {
		rare = append(rare, lookup{errors, values})
	}
	if values := responsesOf(q); values != nil && !slices.ContainsFunc(values, func(s string) bool { return s[0] == '2' }) {
		rare = append(rare, lookup{responses, values})
	}
	if values := q.Filters["status"]; values != nil && !slices.Contains(values, string(webhook.StatusSuccess)) {
		rare = append(rare, lookup{statuses, values})
	} else if q.Filters["failure_reason"] != nil || q.Filters["recovered"] != nil {
		rare = append(rare, lookup{statuses, []string{string(webhook.StatusFailed)}})
	}
	return rare
}

// responsesOf returns the HTTP statuses in the filter of a query, with classes expanded.
func responsesOf(q *webhook.ListQuery) (statuses []string) {
	for _, word := range q.Filters["response_status"] {
		if class, ok := strings.CutSuffix(word, "xx"); ok {
			for status := range 100 {
				statuses = append(statuses, class+strconv.Itoa(100 + status)[1:])
			}
		} else {
			statuses = append(statuses, word)
		}
	}
	slices.Sort(statuses)
	return slices.Compact(statuses)
}

// deliveryList finds the rows of a page.
type deliveryList struct {
	*view
	f             *list.Feed
	subscriptions []string // the subscriptions of the list, nil for all
	programs      []string // the programs of the list, nil for all
	events        []string // program and seq of each event of the filter event_id
}

// DeliveryFeed returns the deliveries of one subscription, "" for all, as a feed in the order
// of num.
func (s *Reads) DeliveryFeed(ctx context.Context, programID, subscriptionID string, of *webhook.List,
	q *webhook.ListQuery) (*list.Feed, error) {
	low, high, err := s.lists.Between(ctx, "deliveries", q.Ranges["created_at"], s.numBefore)
	f := &list.Feed{Reader: s.lists, Query: q, Scope: list.Scope{List: "deliveries", ProgramID: programID, Parent: subscriptionID,
		Selection: of.Selection(q)}, Low: low, High: high,
		Budget: s.lists.Limits.Scan}
	if q.Filters["event"] != nil || q.Filters["event_id"] != nil {
		f.Budget = s.lists.Limits.CostlyScan
	}
	f.Binds = list.BindsOf(q)
	for _, name := range []string{"id", "redelivery_of", "split_of"} {
		f.Binds[name] = sqlite.JSON(shortIDs(q.Filters[name]))
	}
	due := q.Ranges["next_attempt_at"]
	f.Binds["next_attempt_at_from"], f.Binds["next_attempt_at_to"] = s.clock.WaitOrNull(due.From), s.clock.WaitOrNull(due.To)
	if responses := responsesOf(q); responses != nil {
		f.Binds["response_status"] = "[" + strings.Join(responses, ",") + "]"
	}
	if least := q.Filters["attempts_made.from"]; least != nil {
		f.Binds["attempts_made"] = least[0]
	}
	f.Find = func(lv *sqlite.View, descending bool, from int64) ([]list.Stream, error) {
		v := &view{lv, s}
		f.Binds["low"], f.Binds["high"] = list.Beyond(from, descending, f.Low, f.High)
		l := &deliveryList{view: v, f: f}
		if subscriptionID != "" {
			l.subscriptions, l.programs = []string{subscriptionID}, []string{programID}
		}
		return l.streams()
	}
	return f, err
}

// streams returns the streams of the first choice that is cheap enough. A stream of a set
// contains only its matching rows.
func (l *deliveryList) streams() ([]list.Stream, error) {
	if err := l.narrow(); err != nil {
		return nil, err
	}
	if l.subscriptions != nil && len(l.subscriptions) == 0 {
		return nil, nil
	}
	choices := choose(l.f.Query, len(l.subscriptions))
	for i, c := range choices {
		streams, ok, err := l.take(&c, i == len(choices)-1)
		if err != nil || ok {
			return streams, err
		}
	}
	return nil, nil
}

// take returns the streams of a choice. It returns false if there are too many of them or of
// their rows, unless the choice is the last.
func (l *deliveryList) take(c *choice, last bool) (streams []list.Stream, ok bool, err error) {
	maxRows, maxStreams := min(l.s.lists.Limits.Set, l.f.Budget), listSubscriptions
	if last {
		maxRows, maxStreams = math.MaxInt32, math.MaxInt
	}
	if c.sets != nil {
		rows, ok, err := l.set(c, maxRows)
		if err != nil || !ok {
			return nil, false, err
		}
		streams = append(streams, list.Stream{Rows: rows})
	}
	for _, walk := range c.walks {
		all, err := l.bindsOf(walk, maxStreams)
		if err != nil {
			return nil, false, err
		}
		for _, b := range all {
			b[c.settled] = nil
			streams = append(streams, list.Stream{Access: walk.Access, Binds: b})
		}
	}
	return streams, len(streams) <= maxStreams, nil
}

// set returns the matching rows of a choice's sets. It returns false if the sets have more than
// limit rows.
func (l *deliveryList) set(c *choice, limit int) (rows []list.Row, ok bool, err error) {
	nums := []int64{}
	for _, of := range c.sets {
		if of.has("programs") && l.programs == nil {
			return nil, false, nil
		}
		all, err := l.bindsOf(of, limit)
		if err != nil {
			return nil, false, err
		}
		for _, b := range all {
			b["limit"] = limit + 1 - len(nums)
			more, err := list.Column[int64](l.View, of.set, b, l.f.Binds)
			if nums = append(nums, more...); err != nil || len(nums) > limit {
				return nil, false, err
			}
		}
	}
	if len(nums) == 0 {
		return nil, true, nil
	}
	slices.Sort(nums)
	b := list.Binds{"nums": sqlite.JSON(slices.Compact(nums)), c.settled: nil}
	if !slices.ContainsFunc(c.sets, func(of lookup) bool { return !of.has("subscription") }) {
		b["subscription_id"] = nil // the sets select it already
	}
	err = l.Each(deliveriesOfSet.Text, deliveriesOfSet.Args(b, l.f.Binds), func(scan func(...any) error) error {
		r := list.Row{OK: true}
		err := scan(&r.Key)
		rows = append(rows, r)
		return err
	})
	return rows, true, err
}

// bindsOf returns the binds of a lookup for each subscription and value. It stops above limit.
func (l *deliveryList) bindsOf(of lookup, limit int) (all []list.Binds, err error) {
	ids, each := []string{""}, of.has("subscription")
	if each {
		ids = l.subscriptions
	}
	for _, id := range ids {
		values, err := l.valuesOf(of, id)
		if err != nil {
			return nil, err
		}
		for _, value := range values {
			b := list.Binds{"value": value}
			if each {
				b["subscription"], b["subscription_id"] = id, nil
			}
			all = append(all, b)
		}
		if len(all) > limit {
			break
		}
	}
	return all, nil
}

// valuesOf returns the values of a lookup; of many response statuses only the existing ones. If
// the lookup has no values, it returns one empty string.
func (l *deliveryList) valuesOf(of lookup, subscriptionID string) (values []string, err error) {
	switch {
	case of.deliveryAccess == deliveriesOfEvent:
		return l.events, nil
	case of.values == nil:
		return []string{""}, nil
	case of.next.Text == "" || len(of.values) <= 3:
		return of.values, nil
	}
	for status := 0; status < 1000; {
		if err := l.Scan(of.next.Text, of.next.Args(list.Binds{"subscription": subscriptionID, "value": status}), &status); err != nil {
			return nil, err
		}
		if value := strconv.Itoa(status); slices.Contains(of.values, value) {
			values = append(values, value)
		}
	}
	return values, nil
}

var (
	selectProgramSubscriptions = list.Statement{}.With("SELECT id FROM subscriptions INDEXED BY subscriptions_of_program " +
		"WHERE program_id = :program ORDER BY id LIMIT :limit")
	selectEventPlaces = list.Statement{}.With("SELECT json_array(e.program_id, e.seq) FROM json_each(:programs) p " +
		"CROSS JOIN json_each(:event_id) i" +
		" CROSS JOIN events e INDEXED BY events_by_id ON e.program_id = p.value AND e.id = i.value")
	selectSubscriptionPrograms = list.Statement{}.With("SELECT DISTINCT s.program_id FROM json_each(:subscription_id) i " +
		"CROSS JOIN subscriptions s ON s.id = i.value")
)

// narrow determines the subscriptions and programs of the list, if its filters limit them to
// few.
func (l *deliveryList) narrow() (err error) {
	f := l.f.Query.Filters
	ids := l.subscriptions
	switch {
	case ids != nil:
	case f["subscription_url"] != nil:
		ids, err = l.named(f["subscription_url"])
	case f["subscription_id"] != nil:
		ids = f["subscription_id"]
	case f["program_id"] != nil:
		ids, err = l.ofPrograms(f["program_id"])
	}
	if err != nil {
		return err
	}
	if l.f.Binds["subscription_id"] = sqlite.JSON(ids); len(ids) <= listSubscriptions {
		l.subscriptions = ids
	}
	named := f["event"] != nil && !slices.Equal(f["event"], []string{webhook.EventPing})
	switch {
	case l.programs != nil || !named && f["event_id"] == nil:
	case f["program_id"] != nil:
		l.programs = f["program_id"]
	case l.subscriptions != nil:
		l.programs, err = list.Column[string](l.View, selectSubscriptionPrograms, l.f.Binds)
		l.programs = append([]string{}, l.programs...) // nil would mean all
	default:
		l.programs, err = l.allPrograms()
	}
	if l.f.Binds["programs"] = sqlite.JSON(l.programs); err != nil || f["event_id"] == nil {
		return err
	}
	if l.programs == nil {
		return webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidTooMany, Parameter: "filter[event_id]",
			Detail: "cannot be looked up in more than " + webhook.Count(listPrograms, "program") + "; add filter[program_id]",
		})
	}
	l.events, err = list.Column[string](l.View, selectEventPlaces, l.f.Binds)
	return err
}

// ofPrograms returns all subscriptions of programs, including deleted ones, nil for more than
// listSubscriptions.
func (l *deliveryList) ofPrograms(programs []string) ([]string, error) {
	ids := []string{}
	for _, program := range programs {
		more, err := list.Column[string](l.View, selectProgramSubscriptions, list.Binds{"program": program, "limit": listSubscriptions + 1})
		if ids = append(ids, more...); err != nil || len(ids) > listSubscriptions {
			return nil, err
		}
	}
	return ids, nil
}

// allPrograms returns the IDs of all programs, nil for more than listPrograms.
func (v *view) allPrograms() ([]string, error) {
	ids, err := list.Column[string](v.View, list.Statement{Text: selectProgramIDs, Names: []string{"limit"}},
		list.Binds{"limit": listPrograms + 1})
	if err != nil || len(ids) > listPrograms {
		return nil, err
	}
	return append([]string{}, ids...), nil
}

// named returns the subscriptions whose URL contains one of the texts. If there are too many to
// find all, the error is a *webhook.Error, since a partial result would hide the others.
func (l *deliveryList) named(texts []string) ([]string, error) {
	programs, given := l.f.Query.Filters["program_id"], l.f.Query.Filters["subscription_id"]
	if programs == nil {
		programs = []string{""}
	}
	narrow, orNarrow := "add filter[program_id] or filter[subscription_id]", ", or add filter[program_id]"
	if l.f.Query.Filters["program_id"] != nil { // given, or that of the token or portal
		narrow, orNarrow = "add filter[subscription_id]", ""
	}
	ids, looked := []string{}, 0
	for _, program := range programs {
		w := newSubscriptionWalk(l.s, program, &webhook.ListQuery{Sort: []webhook.SortField{{Name: "created_at"}}, Size: maxNamed,
			Filters: map[string][]string{
				"url": texts, "deleted": {"false", "true"},
			}})
		err := l.Each(w.query, append([]any{namedAmong + 1 - looked, w.at, w.values[0]}, w.args...), func(scan func(...any) error) error {
			var id string
			var ok bool
			if err := scan(&id, &ok); err != nil {
				return err
			}
			if looked++; looked > namedAmong {
				return tooManyNamed("cannot be searched in more than " + webhook.Count(namedAmong,
					"subscription") + "; " + narrow)
			}
			if ok && (given == nil || slices.Contains(given, id)) {
				ids = append(ids, id)
			}
			if len(ids) > maxNamed {
				return tooManyNamed("matches more than " + webhook.Count(maxNamed,
					"subscription") + "; use a longer part of the URL" + orNarrow)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func tooManyNamed(detail string) error {
	return webhook.Invalid(webhook.Validation{Code: webhook.InvalidTooMany, Parameter: "filter[subscription_url]", Detail: detail})
}

// Page returns a page of a subscription's deliveries, and the cursor of the next page, "" on
// the last. A page with filters reads a bounded number of deliveries, so it may be short or
// empty although more follow.
func (s Deliveries) Page(ctx context.Context, programID, subscriptionID string,
	q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	if _, err := s.Subscription(ctx, programID, subscriptionID); err != nil {
		return nil, "", err
	}
	return s.list(ctx, programID, subscriptionID, webhook.DeliveryList, q)
}

// PageProgram is [store.Deliveries.Page] over all subscriptions of a program, for a query of
// webhook.ProgramDeliveryList.
func (s Deliveries) PageProgram(ctx context.Context, programID string,
	q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	own := *q
	own.Filters = maps.Clone(q.Filters)
	if own.Filters == nil {
		own.Filters = make(map[string][]string, 1)
	}
	own.Filters["program_id"] = []string{programID}
	return s.list(ctx, programID, "", webhook.ProgramDeliveryList, &own)
}

// PageAll is [store.Deliveries.Page] over all programs, for a query of webhook.AllDeliveryList.
func (s Deliveries) PageAll(ctx context.Context, q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	return s.list(ctx, "", "", webhook.AllDeliveryList, q)
}

// list returns a page of the deliveries of one subscription, "" for all.
func (s Deliveries) list(ctx context.Context, programID, subscriptionID string, of *webhook.List,
	q *webhook.ListQuery) (page []webhook.Delivery, next string, err error) {
	f, err := s.DeliveryFeed(ctx, programID, subscriptionID, of, q)
	if err != nil {
		return nil, "", err
	}
	return list.Rows(ctx, f, selectListedDeliveries, nil, func(scan func(...any) error) (d webhook.Delivery, err error) {
		d, _, err = ScanDelivery(s.clock, scan)
		return d, err
	})
}

// numBefore returns the highest num of a delivery that was created before a time, 0 if there is
// none.
func (s *Reads) numBefore(ctx context.Context, at time.Time) (int64, error) {
	return s.lists.LastBefore(ctx, "deliveries", selectNumEnds, selectFromNum, at)
}

const (
	selectNumEnds          = "SELECT coalesce((SELECT min(num) FROM deliveries), 1) - 1, coalesce((SELECT max(num) FROM deliveries), 0) + 1"
	selectFromNum          = "SELECT num, created_at FROM deliveries WHERE num >= ? ORDER BY num LIMIT 1"
	SelectNewestNum        = "SELECT coalesce(max(num), 0) FROM deliveries"
	selectListedDeliveries = "SELECT " + DeliveryColumns + " FROM json_each(?) i CROSS JOIN deliveries d ON d.num = i.value ORDER BY i.key"
)

// Newest returns the num of the newest delivery, 0 if there is none.
func (s Deliveries) Newest(ctx context.Context) (num int64, err error) {
	return num, s.lists.DB.Scan(ctx, SelectNewestNum, nil, &num)
}

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first.
func (s Deliveries) Newer(ctx context.Context, q *webhook.ListQuery) (cursor string, err error) {
	f, err := s.DeliveryFeed(ctx, "", "", webhook.AllDeliveryList, q)
	if err != nil {
		return "", err
	}
	return f.Newer(ctx)
}

// deliveries returns the deliveries with these nums, in their order, and their nums. Removed
// ones are omitted.
func (v *view) deliveries(nums []int64) (all []webhook.Delivery, found []int64, err error) {
	err = v.Each(selectListedDeliveries, []any{sqlite.JSON(append([]int64{}, nums...))}, func(scan func(...any) error) error {
		d, num, err := ScanDelivery(v.s.clock, scan)
		all, found = append(all, d), append(found, num)
		return err
	})
	return all, found, err
}

// Get returns a delivery of a subscription with its attempts.
func (s Deliveries) Get(ctx context.Context, programID, subscriptionID, id string) (webhook.Delivery, error) {
	if _, err := s.Subscription(ctx, programID, subscriptionID); err != nil {
		return webhook.Delivery{}, err
	}
	const query = "SELECT " + DeliveryColumns + " FROM deliveries d WHERE d.id = ? AND d.subscription_id = ?"
	d, num, err := ScanDelivery(s.clock, s.lists.DB.Row(ctx, query, ShortID(id), subscriptionID))
	if err != nil {
		return d, sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	_, each := s.lists.DB.Reads(ctx)
	d.Attempts, err = AttemptsOf(each, num)
	return d, err
}
