package store

import (
	"context"
	"maps"
	"slices"

	"service/webhook"
)

// The list over all programs looks for a few rows among many in the same way as
// that of one subscription: by an index of what is exceptional, or in a set
// that is known to be small, or along the order of the list, judging each row.

const (
	// listSubscriptions bounds the subscriptions that a page reads one by one,
	// and listPrograms the programs whose events it looks for by name.
	listSubscriptions = 100
	listPrograms      = 1000

	// maxNamed is how many subscriptions a part of their URLs may name, and
	// namedAmong how many of a program, or of all, are looked at for it.
	maxNamed   = 1000
	namedAmong = 10_000
)

// The queries over all subscriptions, with the arguments of those of one.
const (
	allByTrouble  = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_trouble WHERE d.status = ?5 AND d.status IN ('failed', 'retryable')" + withinNums
	allByResponse = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_answer WHERE d.response_status = ?5 AND d.response_status NOT BETWEEN 200 AND 299" + withinNums
	allByError    = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_fault WHERE d.error = ?5 AND d.error IS NOT NULL" + withinNums
	allRetried    = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_retried WHERE d.attempts_made > 1" + withinNums
	allByOriginal = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_original WHERE d.redelivery_of = ?5 AND d.redelivery_of IS NOT NULL" + withinNums
	allByReplay   = "SELECT d.num, " + deliveryMatches + " FROM deliveries d INDEXED BY deliveries_by_replay WHERE d.replay_id = ?5 AND d.replay_id IS NOT NULL" + withinNums

	allOfSet = "SELECT d.num FROM json_each(?5) i CROSS JOIN deliveries d ON d.num = i.value WHERE " + deliveryMatches + withinNums

	// Rows that may be few, in no order. Up to so many, whatever their number.
	setOfIDs       = "SELECT num FROM deliveries WHERE id IN (SELECT value FROM json_each(?))"
	setOfPending   = "SELECT num FROM deliveries INDEXED BY deliveries_by_status WHERE status = 'pending' AND status <> 'success' LIMIT ?1"
	setOfAllPings  = "SELECT num FROM deliveries INDEXED BY deliveries_pings WHERE subscription_id > '' AND ping IS NOT NULL LIMIT ?1"
	setOfAllEvents = "SELECT x.delivery FROM json_each(?1) p CROSS JOIN json_each(?3) n CROSS JOIN events e INDEXED BY events_by_name ON e.program_id = p.value AND e.name = n.value" +
		" CROSS JOIN delivery_events x ON x.program_id = e.program_id AND x.seq = e.seq LIMIT ?2"
	setOfWaiting = "SELECT num FROM deliveries INDEXED BY deliveries_due WHERE subscription_id > '' AND next_attempt_at IS NOT NULL LIMIT ?1"

	nextResponseOfAll = "SELECT coalesce(min(response_status), 1000) FROM deliveries INDEXED BY deliveries_by_answer WHERE response_status > ? AND response_status NOT BETWEEN 200 AND 299"

	selectProgramSubscriptions = "SELECT id FROM subscriptions INDEXED BY subscriptions_of_program WHERE program_id = ? ORDER BY id LIMIT ?"
	selectSubscriptionProgram  = "SELECT program_id FROM subscriptions WHERE id = ?"
)

// across returns what has all that the filters may let through when the list
// is not of one subscription: streams to walk along, and rows that were judged.
func (l *deliveryList) across() (streams []stream, judged []int64, err error) {
	f := l.q.Filters
	switch {
	case f["id"] != nil:
		nums, err := l.nums(setOfIDs, jsonOf(f["id"]))
		if err != nil {
			return nil, nil, err
		}
		judged, err = l.judge(nums, f["event"])
		return nil, judged, err
	case f["redelivery_of"] != nil:
		return l.alongEach(allByOriginal, f["redelivery_of"]), nil, nil
	case f["replay_id"] != nil:
		return l.alongEach(allByReplay, f["replay_id"]), nil, nil
	}
	if f["event"] != nil {
		if judged, ok, err := l.eventSet(); err != nil || ok {
			return nil, judged, err
		}
	}
	if l.q.Ranges["next_attempt_at"] != (webhook.TimeRange{}) {
		if judged, ok, err := l.judgedSet(setOfWaiting); err != nil || ok {
			return nil, judged, err
		}
	}
	if streams, ok, err := l.eachSubscription(); err != nil || ok {
		return streams, nil, err
	}
	return l.exceptions()
}

// eachSubscription returns the streams of the subscriptions that the filters ask
// for if those are known and few.
func (l *deliveryList) eachSubscription() (streams []stream, ok bool, err error) {
	subs, err := l.subscriptions()
	if err != nil || subs == nil {
		return nil, false, err
	}
	for _, id := range subs {
		one := *l
		one.subscriptionID = id
		of, err := one.streams()
		if err != nil {
			return nil, false, err
		}
		if streams = append(streams, of...); len(streams) > listSubscriptions {
			return nil, false, nil
		}
	}
	return streams, true, nil
}

// exceptions returns the streams of all subscriptions together, by an index of
// what is exceptional if there is one, and the rows that were judged besides.
func (l *deliveryList) exceptions() (streams []stream, judged []int64, err error) {
	f := l.q.Filters
	statuses := f["status"]
	switch responses := l.responses(); {
	case f["error"] != nil:
		return l.alongEach(allByError, f["error"]), nil, nil
	case responses != nil && !slices.ContainsFunc(responses, isSuccess):
		streams, err = l.alongResponses(allByResponse, responses, nextResponseOfAll)
		return streams, nil, err
	case statuses != nil && !slices.Contains(statuses, string(webhook.StatusSuccess)):
		pending := string(webhook.StatusPending)
		if slices.Contains(statuses, pending) {
			var ok bool
			if judged, ok, err = l.judgedSet(setOfPending); err != nil {
				return nil, nil, err
			} else if !ok {
				break // they are many, so that a walk finds them
			}
		}
		others := slices.DeleteFunc(slices.Clone(statuses), func(s string) bool { return s == pending })
		return l.alongEach(allByTrouble, others), judged, nil
	case slices.ContainsFunc(f["attempts_made.from"], func(n string) bool { return n != "1" }):
		return []stream{l.along(allRetried, "")}, nil, nil
	}
	return []stream{l.along(deliveriesOfAll, "")}, nil, nil
}

// subscriptions returns those that the filters ask for, of a program all that
// it ever had; nil when they are not known, or too many to read one by one.
func (l *deliveryList) subscriptions() ([]string, error) {
	if ids := l.q.Filters["subscription_id"]; ids != nil {
		if len(ids) > listSubscriptions {
			return nil, nil
		}
		return ids, nil
	}
	var ids []string
	for _, program := range l.q.Filters["program_id"] {
		err := l.Each(selectProgramSubscriptions, []any{program, listSubscriptions + 1}, func(scan func(...any) error) error {
			var id string
			err := scan(&id)
			ids = append(ids, id)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(ids) > listSubscriptions {
			return nil, nil
		}
	}
	if l.q.Filters["program_id"] != nil && ids == nil {
		return []string{}, nil
	}
	return ids, nil
}

// named puts the subscriptions that are meant by parts of their URLs into the
// filter by subscription, of which that is a narrower one. The error is one of
// the caller when they are too many to be looked for: a list of only some of
// them would hide the others.
func (l *deliveryList) named() error {
	texts := l.q.Filters["subscription_url"]
	if texts == nil {
		return nil
	}
	programs := l.q.Filters["program_id"]
	if programs == nil {
		programs = []string{""}
	}
	given := l.q.Filters["subscription_id"]
	ids := []string{}
	looked := 0
	for _, program := range programs {
		w := newSubscriptionWalk(l.s, program, &webhook.ListQuery{Sort: webhook.AllSubscriptionList.Default, Size: maxNamed, Filters: map[string][]string{
			"url": texts, "deleted": {"false", "true"},
		}})
		err := l.Each(w.query, append([]any{namedAmong + 1 - looked, w.at, w.values[0]}, w.args...), func(scan func(...any) error) error {
			var id string
			var ok bool
			if err := scan(&id, &ok); err != nil {
				return err
			}
			if looked++; looked > namedAmong {
				return unnamed("cannot be looked for among more than " + webhook.Count(namedAmong, "subscription") + "; choose a program, or give filter[subscription_id]")
			}
			if !ok || given != nil && !slices.Contains(given, id) {
				return nil
			}
			if ids = append(ids, id); len(ids) > maxNamed {
				return unnamed("is in the URLs of more than " + webhook.Count(maxNamed, "subscription") + "; give more of the URL, or choose a program")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	query := *l.q
	query.Filters = maps.Clone(query.Filters)
	delete(query.Filters, "subscription_url")
	query.Filters["subscription_id"] = ids
	l.q = &query
	return nil
}

func unnamed(detail string) error {
	return webhook.Invalid(webhook.Validation{Code: webhook.InvalidTooMany, Parameter: "filter[subscription_url]", Detail: detail})
}

// one makes the list that of a subscription, if its filters ask for one alone.
func (l *deliveryList) one() error {
	ids := l.q.Filters["subscription_id"]
	if len(ids) != 1 || l.q.Filters["id"] != nil {
		return nil
	}
	if err := l.Scan(selectSubscriptionProgram, []any{ids[0]}, &l.programID); err != nil {
		return ignoreNoRows(err)
	}
	l.subscriptionID = ids[0]
	return nil
}

// eventSet returns the deliveries with the events of a filter if those are few.
func (l *deliveryList) eventSet() (judged []int64, ok bool, err error) {
	names, programs := l.q.Filters["event"], l.q.Filters["program_id"]
	var nums []int64
	limit := min(l.s.lists.set, l.budget())
	if slices.Contains(names, webhook.EventPing) {
		if nums, err = l.nums(setOfAllPings, limit+1); err != nil {
			return nil, false, err
		}
	}
	if !slices.Equal(names, []string{webhook.EventPing}) {
		if programs == nil {
			if programs, err = l.programs(); err != nil || programs == nil {
				return nil, false, err
			}
		}
		more, err := l.nums(setOfAllEvents, jsonOf(programs), limit+1, jsonOf(names))
		if err != nil {
			return nil, false, err
		}
		nums = append(nums, more...)
	}
	if len(nums) > limit {
		return nil, false, nil
	}
	judged, err = l.judge(nums, nil) // they have the events
	return judged, true, err
}

// programs returns the ids of all programs, nil when they are more than
// listPrograms.
func (v *view) programs() ([]string, error) {
	ids := []string{}
	err := v.Each(selectProgramIDs, []any{listPrograms + 1}, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	if err != nil || len(ids) > listPrograms {
		return nil, err
	}
	return ids, nil
}

// judgedSet returns what the filters let through of the rows of a query if
// those are few.
func (l *deliveryList) judgedSet(query string, args ...any) (judged []int64, ok bool, err error) {
	limit := min(l.s.lists.set, l.budget())
	nums, err := l.nums(query, append([]any{limit + 1}, args...)...)
	if err != nil || len(nums) > limit {
		return nil, false, err
	}
	judged, err = l.judge(nums, l.q.Filters["event"])
	return judged, true, err
}

func (l *deliveryList) nums(query string, args ...any) (nums []int64, err error) {
	err = l.Each(query, args, func(scan func(...any) error) error {
		var num int64
		err := scan(&num)
		nums = append(nums, num)
		return err
	})
	return nums, err
}

// judge returns the rows that the filters let through, each once; of the events
// of their filter, these alone are looked for.
func (l *deliveryList) judge(nums []int64, events []string) ([]int64, error) {
	slices.Sort(nums)
	args := l.args(jsonOf(append([]int64{}, slices.Compact(nums)...)), 0, 0)
	args[argEvent] = jsonOf(events)
	return l.nums(allOfSet, append([]any{0, l.low, l.high}, args...)...)
}

// acrossByCreation is byCreation of a list that is not of one subscription,
// between low and high: at most want rows, and the place to go on from, nil at
// the end.
func (l *deliveryList) acrossByCreation(descending bool, size int) ([]int64, []int64, error) {
	streams, judged, err := l.across()
	if err != nil {
		return nil, nil, err
	}
	nums, at, more, err := l.walk(streams, descending, l.low, l.high, size+1, l.budget())
	if err != nil {
		return nil, nil, err
	}
	if more {
		// Of what was judged, that which lies behind the place comes later.
		judged = slices.DeleteFunc(judged, func(num int64) bool { return num != at && descending == (num < at) })
	}
	nums = append(nums, judged...)
	slices.Sort(nums)
	if descending {
		slices.Reverse(nums)
	}
	if len(nums) > size {
		nums = nums[:size]
		at, more = nums[size-1], true
	}
	if !more {
		return nums, nil, nil
	}
	return nums, []int64{at}, nil
}

// Newest returns the place of the newest delivery there is, 0 for none.
func (s Deliveries) Newest(ctx context.Context) (num int64, err error) {
	return num, s.db.Scan(ctx, selectNewestNum, nil, &num)
}

// After returns what a query of webhook.AllDeliveryList lets through of
// the deliveries behind a place, newest first, whatever the query's page: at
// most so many; the place of the newest there is; and whether there are more in
// between.
func (s Deliveries) After(ctx context.Context, q *webhook.ListQuery, after int64, most int) (page []webhook.Delivery, newest int64, more bool, err error) {
	query := *q
	query.Sort, query.Cursor, query.Size = webhook.AllDeliveryList.Default, "", most
	low, high, err := s.between(ctx, q.Ranges["created_at"], s.numBefore)
	if err != nil {
		return nil, after, false, err
	}
	err = s.view(ctx, func(v *view) error {
		if err := v.Scan(selectNewestNum, nil, &newest); err != nil || newest <= after {
			newest = max(newest, after)
			return err
		}
		l := deliveryList{view: v, q: &query, low: max(low, after), high: min(high, newest+1)}
		nums, rest, err := l.byCreation(nil)
		if err != nil {
			return err
		}
		more = rest != nil
		page, err = v.deliveries(nums)
		return err
	})
	return page, newest, more, err
}

// At returns the deliveries of any program at these places, in their
// order, without those that are gone.
func (s Deliveries) At(ctx context.Context, nums []int64) (all []webhook.Delivery, err error) {
	err = s.view(ctx, func(v *view) error {
		all, err = v.deliveries(nums)
		return err
	})
	return all, err
}

func (v *view) deliveries(nums []int64) (all []webhook.Delivery, err error) {
	err = v.Each(selectListedDeliveries, []any{jsonOf(append([]int64{}, nums...))}, func(scan func(...any) error) error {
		d, _, err := v.s.scanDelivery(scan)
		all = append(all, d)
		return err
	})
	return all, err
}

// Newer returns the cursor of the page before the one that a query of
// webhook.AllDeliveryList asks for by its cursor, "" when that is the first.
func (s Deliveries) Newer(ctx context.Context, q *webhook.ListQuery) (cursor string, err error) {
	low, high, err := s.between(ctx, q.Ranges["created_at"], s.numBefore)
	if err != nil {
		return "", err
	}
	scope := cursorScope{"deliveries", "", "", webhook.AllDeliveryList.Selection(q)}
	place := []int64{0}
	if err := s.place(scope, q.Cursor, place); err != nil {
		return "", err
	}
	// The same list the other way round, from the place on, which is on that page.
	descending := q.Sort[0].Descending
	query := *q
	query.Sort, query.Cursor = []webhook.SortField{{Name: q.Sort[0].Name, Descending: !descending}}, ""
	step := int64(1)
	if !descending {
		step = -1
	}
	l := deliveryList{q: &query}
	l.low, l.high = beyond(place[0]-step, !descending, low, high)
	err = s.view(ctx, func(v *view) error {
		l.view = v
		_, after, err := l.byCreation(nil)
		if err == nil && after != nil {
			cursor = s.cursor(scope, []int64{after[0] + step})
		}
		return err
	})
	return cursor, err
}
