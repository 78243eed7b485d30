package record

import (
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"service/store/list"
	"service/store/schema"
	"service/store/sqlite"
	"service/store/sqlite/sqlitetest"
	"service/webhook"
)

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDB returns an empty database.
func newDB(t *testing.T) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Config{
		Path: filepath.Join(t.TempDir(), "service.db"), Schema: schema.Current, Logger: slog.New(slog.DiscardHandler),
		Readers:   [...]int{sqlite.Service: 1, sqlite.Lookup: 1, sqlite.List: 1},
		Functions: []sqlite.Function{{Name: "event_matches", Call: func(string, string, []byte) (bool, error) { return true, nil }}},
	})
	must(t, err)
	t.Cleanup(func() { db.Close(nil) })
	return db
}

// queryPlans are the queries of lists and pages.
var queryPlans = []struct {
	query string
	args  int
	want  string // part of the plan
}{
	{selectEventResults, 2, "SEARCH x USING PRIMARY KEY (program_id=? AND seq=?)"},
	{selectEventResults, 2, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectEventSpans, 3, "subscriptions_by_program (program_id=?)"},
	{selectEventSpans, 3, "SEARCH i USING PRIMARY KEY (subscription_id=?)"},
	{selectEventSpans, 3, "SEARCH r USING PRIMARY KEY (subscription_id=?)"},
	{selectManySubscriptions, 2, "subscriptions_of_program (program_id=?)"},
	{"SELECT " + TokenColumns + " FROM tokens WHERE hash = ?", 1, "USING INDEX sqlite_autoindex_tokens_2"},
	{"SELECT " + EventColumns + " FROM events WHERE program_id = ? AND id = ?", 2, "events_by_id"},
	{SelectSubscription, 2, "USING PRIMARY KEY"},
	{"SELECT " + DeliveryColumns + " FROM deliveries d WHERE d.id = ? AND d.subscription_id = ?", 2, "sqlite_autoindex_deliveries_1"},
	{allEvents.Down.Text, len(allEvents.Down.Names), "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{allEvents.Up.Text, len(allEvents.Up.Names), "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{allEventsByName.Down.Text, len(allEventsByName.Down.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{allEventsByName.Up.Text, len(allEventsByName.Up.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{selectSeqRow, 2, "COVERING INDEX events_by_seq (program_id=? AND seq<?)"},
	{selectSeqEnds, 1, "COVERING INDEX events_by_seq (program_id=?)"},
	{allByEvent.set.Text, len(allByEvent.set.Names), "SEARCH x USING PRIMARY KEY (program_id=? AND seq=?)"},
	{allByEvent.set.Text, len(allByEvent.set.Names), "COVERING INDEX events_by_name (program_id=? AND name=?)"},
	{selectSummaries, 2, "deliveries_completed (subscription=?"},
	{selectListedRows, 1, "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectRowFrom, 1, "USING INTEGER PRIMARY KEY (rowid>?)"},
	{selectEventDeliveries, 4, "SEARCH x USING PRIMARY KEY (program_id=? AND seq=? AND delivery<?)"},
	{selectEventWaits, 4, "subscriptions_by_program (program_id=?)"},
	{countSubscribersOfProgram, 2, "subscriptions_by_program (program_id=?)"},
	{selectSubscribersOfProgram, 3, "subscriptions_by_program (program_id=?)"},
	{subscriptionsOfAll + subscriptionsDown, 14, "SEARCH s USING PRIMARY KEY (id<?)"},
	{subscriptionsByHealth + subscriptionsUp, 14, "subscriptions_by_health (status=? AND id>?)"},
	{subscriptionsByProgram + subscriptionsDown, 14, "subscriptions_of_program (program_id=? AND id<?)"},
	{subscriptionsByProgram + subscriptionsDown, 14, "SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=? AND at>?)"},
	{selectAttempts, 1, "SEARCH o USING PRIMARY KEY (subscription_id=? AND number=?)"},
	{selectOldSecrets, 2, "SEARCH old_signing_secrets USING PRIMARY KEY (subscription_id=? AND expires_at>?)"},
	{selectRunningReplays, 1, "replays_running (subscription_id=?)"},
	{selectEndedReplays, 1, "replays_by_subscription (subscription_id=?"},
	{selectNewestNums, 2, "deliveries_of_subscription (subscription=?)"},
	{selectLeft, 3, "SEARCH u USING PRIMARY KEY (subscription=?)"},
	{selectLeft, 3, "SEARCH o USING PRIMARY KEY (subscription=? AND seq=? AND delivery>?)"},
	{findSubscriptions, 3, "USING PRIMARY KEY (id>? AND id<?)"},
	{findDeliveries, 3, "USING INDEX sqlite_autoindex_deliveries_1 (id>? AND id<?)"},
	{findTokens, 3, "USING PRIMARY KEY (id>? AND id<?)"},
	{searchEvents, 2, "SEARCH events USING INTEGER PRIMARY KEY (rowid<?)"},
	{incidentsAll.Down.Text, len(incidentsAll.Down.Names), "SEARCH n USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"},
	{incidentsByProgram.Down.Text, len(incidentsByProgram.Down.Names), "incidents_by_program (program_id=? AND num>? AND num<?)"},
	{incidentsBySubscription.Up.Text, len(incidentsBySubscription.Up.Names),
		"incidents_by_subscription (subscription_id=? AND num>? AND num<?)"},
	{incidentsUnresolved.Down.Text, len(incidentsUnresolved.Down.Names), "incidents_unresolved"},
	{selectIncidents, 2, "SEARCH n USING INTEGER PRIMARY KEY (rowid=?)"},
	{selectIncidents, 2, "deliveries_completed (subscription=?"},
	{selectIncidents, 2, "undelivered_by_incident (incident=?)"},
	{selectIncidents, 2, "events_by_seq (program_id=? AND seq=?)"},
	{selectIncidentRecovered, 4, "deliveries_by_status (status=? AND subscription_id=?)"},
	{selectUnrecovered, 3, "SEARCH n USING INTEGER PRIMARY KEY (rowid>?)"},
	{selectUnrecovered, 3, "undelivered_by_incident (incident=?"},
	{selectIncidentAlerts, 2, "alerts_by_subscription (subscription_id=?)"},
	{selectLog, 1, "events_by_seq (program_id=?)"},
	{selectEpochs, 1, "SEARCH log_epochs USING PRIMARY KEY (program_id=?)"},
	{selectLogEvents, 3, "SEARCH y USING PRIMARY KEY (program_id=? AND seq=? AND delivery<?)"},
	{selectLogEvents, 3, "SEARCH o USING COVERING INDEX deliveries_of_subscription (subscription=? AND num<?)"},
	{selectLogEvents, 3, "SEARCH r USING PRIMARY KEY (subscription_id=? AND name=? AND first_seq<?)"},
	{selectLogEvents, 3, "SEARCH i USING PRIMARY KEY (subscription_id=? AND name=? AND after_seq<?)"},
	{selectOwed, 3, "events_by_seq (program_id=? AND seq=?)"},
	{countOwed, 3, "SEARCH o USING COVERING INDEX deliveries_of_subscription (subscription=? AND num<?)"},
	{owedByName.Down.Text, len(owedByName.Down.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{owedByName.Up.Text, len(owedByName.Up.Names), "USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)"},
	{owedUndelivered.Down.Text, len(owedUndelivered.Down.Names), "SEARCH u USING PRIMARY KEY (subscription=? AND seq>? AND seq<?)"},
	{owedUndelivered.Up.Text, len(owedUndelivered.Up.Names), "SEARCH u USING PRIMARY KEY (subscription=? AND seq>? AND seq<?)"},
	{selectOldestOpen, 2, "deliveries_by_status (status=? AND subscription_id=?)"},
	{selectOldestOpen, 2, "splits_by_subscription (subscription_id=?)"},
	{selectIncidentFrom, 1, "INTEGER PRIMARY KEY (rowid>?)"},
}

// Every query of a list or page uses an index, so its cost does not depend on the number of rows.
func TestQueryPlans(t *testing.T) {
	db := newDB(t)
	for _, c := range queryPlans {
		sqlitetest.CheckPlan(t, db, c.query, c.args, c.want)
	}
}

// query parses the parameters of a list.
func query(t *testing.T, l *webhook.List, raw string) *webhook.ListQuery {
	t.Helper()
	values, err := url.ParseQuery(raw)
	must(t, err)
	q, problem := l.Parse(values)
	if problem != nil {
		t.Fatalf("%s: %v", raw, problem)
	}
	return &q
}

// describe formats the ways to find the rows of a list.
func describe(choices []choice) string {
	index := regexp.MustCompile(`INDEXED BY (\w+)|WHERE (TRUE)`)
	lookups := func(all []lookup) string {
		var parts []string
		for _, l := range all {
			text := l.set.Text
			if l.Access != nil {
				text = l.Up.Text
			}
			m := index.FindStringSubmatch(text)
			parts = append(parts, strings.Join(append([]string{m[1] + m[2]}, l.values[:min(3, len(l.values))]...), " "))
		}
		return strings.Join(parts, " + ")
	}
	var ways []string
	for _, c := range choices {
		var parts []string
		if c.sets != nil {
			parts = append(parts, "few of "+lookups(c.sets))
		}
		if c.walks != nil {
			parts = append(parts, "along "+lookups(c.walks))
		}
		ways = append(ways, strings.Join(parts, " and "))
	}
	return strings.Join(ways, "; ")
}

func TestChoose(t *testing.T) {
	const one, some, all = 1, 2, 0
	for _, tt := range []struct {
		subscriptions int
		raw           string
		want          string
	}{
		{one, "", "along deliveries_of_subscription"},
		{one, "filter[status]=success", "along deliveries_of_subscription"},
		{one, "filter[status]=failed,pending", "along deliveries_by_status failed pending"},
		{one, "filter[response_status]=404,410&filter[status]=failed", "along deliveries_by_response 404 410"},
		{one, "filter[response_status]=404,2xx&filter[status]=failed", "along deliveries_by_status failed"},
		{one, "filter[error]=tls&filter[response_status]=404", "along deliveries_by_error tls"},
		{one, "filter[event]=ping", "few of deliveries_pings; along deliveries_pings"},
		{one, "filter[event]=ping,a", "few of deliveries_pings + events_by_name; along deliveries_of_subscription"},
		{one, "filter[event]=a&filter[status]=failed", "few of events_by_name; along deliveries_by_status failed"},
		{one, "filter[created_at.from]=2026-01-01", "along deliveries_of_subscription"},
		{one, "filter[completed_at.from]=2026-01-01", "few of deliveries_completed; along deliveries_of_subscription"},
		{one, "filter[next_attempt_at.from]=2026-01-01&filter[event]=a",
			"few of deliveries_due; few of events_by_name; along deliveries_of_subscription"},
		{one, "filter[completed_at.to]=2026-01-01&filter[status]=failed", "few of deliveries_completed; along deliveries_by_status failed"},
		{some, "", "along deliveries_of_subscription; along TRUE"},
		{some, "filter[status]=failed", "along deliveries_by_status failed; along deliveries_by_trouble failed"},
		{all, "", "along TRUE"},
		{all, "filter[status]=failed,retryable", "along deliveries_by_trouble failed retryable"},
		{all, "filter[status]=failed,pending", "few of deliveries_by_status and along deliveries_by_trouble failed; along TRUE"},
		{all, "filter[status]=pending", "few of deliveries_by_status and along deliveries_by_trouble; along TRUE"},
		{all, "filter[response_status]=5xx", "along deliveries_by_answer 500 501 502"},
		{all, "filter[response_status]=200", "along TRUE"},
		{all, "filter[error]=tls", "along deliveries_by_fault tls"},
		{all, "filter[attempts_made.from]=1", "along TRUE"},
		{all, "filter[attempts_made.from]=2", "along deliveries_retried"},
		{all, "filter[event]=ping", "few of deliveries_pings; along TRUE"},
		{all, "filter[event]=a", "few of events_by_name; along TRUE"},
		{all, "filter[next_attempt_at.from]=2026-01-01", "few of deliveries_due; along TRUE"},
		{all, "filter[id]=0198f6a3-7c1e-7d4b-9a41-000000000001&filter[status]=failed",
			"along sqlite_autoindex_deliveries_1 -OYqcrkTUJiPFF-------F"},
		{one, "filter[redelivery_of]=0198f6a3-7c1e-7d4b-9a41-000000000001",
			"along deliveries_by_original -OYqcrkTUJiPFF-------F"},
		{all, "filter[replay_id]=0198f6a3-7c1e-7d4b-9a41-000000000001", "along deliveries_by_replay 0198f6a3-7c1e-7d4b-9a41-000000000001"},
	} {
		if got := describe(choose(query(t, webhook.AllDeliveryList, tt.raw), tt.subscriptions)); got != tt.want {
			t.Errorf("%d subscriptions, %s: %s, want %s", tt.subscriptions, tt.raw, got, tt.want)
		}
	}
}

const planOfSubscription = "SEARCH d USING INDEX deliveries_of_subscription (subscription=? AND num>? AND num<?)"

// listPlans are the queries of lists.
var listPlans = []struct {
	query  list.Statement
	search string // how the first table is read
	sorts  string // what is sorted
}{
	{deliveriesOfAll.Up, "SEARCH d USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", ""},
	{deliveriesOfAll.Down, "SEARCH d USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", ""},
	{deliveriesOfOne.Up, planOfSubscription, ""},
	{deliveriesOfOne.Down, planOfSubscription, ""},
	{deliveriesByStatus.Up, "SEARCH d USING INDEX deliveries_by_status (status=? AND subscription_id=? AND num>? AND num<?)", ""},
	{deliveriesByStatus.Down, "SEARCH d USING INDEX deliveries_by_status (status=? AND subscription_id=? AND num>? AND num<?)", ""},
	{deliveriesByResponse.Down,
		"SEARCH d USING INDEX deliveries_by_response (subscription_id=? AND response_status=? AND num>? AND num<?)", ""},
	{deliveriesByError.Down, "SEARCH d USING INDEX deliveries_by_error (subscription_id=? AND error=? AND num>? AND num<?)", ""},
	{deliveriesPings.Up, "SEARCH d USING INDEX deliveries_pings (subscription_id=? AND num>? AND num<?)", ""},
	{deliveriesByResponse.next, "SEARCH d USING COVERING INDEX deliveries_by_response (subscription_id=? AND response_status>?)", ""},
	{deliveriesOfSet, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)", ""},
	{fewPings.set, "SEARCH d USING INDEX deliveries_pings (subscription_id=? AND num>? AND num<?)", ""},
	{deliveriesWithin.set, "SEARCH d USING COVERING INDEX deliveries_completed (subscription=? AND completed_at>? AND completed_at<?)", ""},
	{deliveriesDue.set,
		"SEARCH deliveries USING COVERING INDEX deliveries_due (subscription_id=? AND next_attempt_at>? AND next_attempt_at<?)", ""},

	{allByTrouble.Down, "SEARCH d USING INDEX deliveries_by_trouble (status=? AND num>? AND num<?)", ""},
	{allByTrouble.Up, "SEARCH d USING INDEX deliveries_by_trouble (status=? AND num>? AND num<?)", ""},
	{allByResponse.Down, "SEARCH d USING INDEX deliveries_by_answer (response_status=? AND num>? AND num<?)", ""},
	{allByError.Down, "SEARCH d USING INDEX deliveries_by_fault (error=? AND num>? AND num<?)", ""},
	{allRetried.Down, "SEARCH d USING INDEX deliveries_retried (num>? AND num<?)", ""},
	{allByOriginal.Down, "SEARCH d USING INDEX deliveries_by_original (redelivery_of=? AND num>? AND num<?)", ""},
	{allByReplay.Down, "SEARCH d USING INDEX deliveries_by_replay (replay_id=? AND num>? AND num<?)", ""},
	{allByBulkRun.Down, "SEARCH x USING PRIMARY KEY (run=? AND delivery>? AND delivery<?)", ""},
	{allByID.Down, "SEARCH d USING INDEX sqlite_autoindex_deliveries_1 (id=? AND rowid>? AND rowid<?)", ""},
	{allByEvent.set, "SEARCH e USING COVERING INDEX events_by_name (program_id=? AND name=?)", ""},
	{allPending.set, "SEARCH deliveries USING COVERING INDEX deliveries_by_status (status=?)", ""},
	{allPings.set, "SEARCH deliveries USING INDEX deliveries_pings (subscription_id>?)", ""},
	{allDue.set, "SEARCH deliveries USING COVERING INDEX deliveries_due (subscription_id>?)", ""},
	{allByResponse.next, "SEARCH d USING COVERING INDEX deliveries_by_answer (response_status>?)", ""},
	{selectProgramSubscriptions, "SEARCH subscriptions USING COVERING INDEX subscriptions_of_program (program_id=?)", ""},
	{selectSubscriptionPrograms, "SEARCH s USING PRIMARY KEY (id=?)", "DISTINCT"},

	{eventsBySeq.Up, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq>? AND seq<?)", ""},
	{eventsBySeq.Down, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq>? AND seq<?)", ""},
	{eventsByName.Down, "SEARCH e USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)", ""},
	{eventsByFilter.Up, "SEARCH e USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)", ""},
	{eventsByID.Down, "SEARCH e USING INDEX events_by_id (program_id=? AND id=?)", "ORDER BY"},

	{allEvents.Down, "SEARCH e USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)", ""},
	{allEventsByName.Down, "SEARCH e USING INDEX events_by_name (program_id=? AND name=? AND seq>? AND seq<?)", ""},

	{selectSubscriptions.Ordered(webhook.SubscriptionList.Default), "SEARCH subscriptions USING INDEX subscriptions_by_program (program_id=?)",
		""},
	{selectSubscriptions.Ordered([]webhook.SortField{{Name: "url"}}),
		"SEARCH subscriptions USING INDEX subscriptions_by_program (program_id=?)",
		"ORDER BY"},
	{countSubscriptions, "SEARCH subscriptions USING INDEX subscriptions_by_program (program_id=?)", ""},
}

// Every query of a list finds its rows by the intended index, in order, and sorts only bounded
// sets: a page, a set, the rows of one millisecond, or the subscriptions of one program.
func TestListPlans(t *testing.T) {
	db := newDB(t)
	known := knownParameters()
	for _, tt := range listPlans {
		checkListPlan(t, db, tt.query, tt.search, tt.sorts)
		for _, name := range tt.query.Names {
			if !known[name] {
				t.Errorf("%s: the parameter %q is never bound", tt.query.Text, name)
			}
		}
	}
}

// knownParameters returns the names of parameters that are bound. Any other name would be NULL,
// which means no filter.
func knownParameters() map[string]bool {
	known := make(map[string]bool)
	for _, name := range strings.Fields("limit low high value subscription program programs from to nums open at num earliest latest " +
		"size offset attempts_made unlisted filter") {
		known[name] = true
	}
	for _, list := range []*webhook.List{webhook.AllDeliveryList, webhook.EventList, webhook.SubscriptionList} {
		for _, f := range list.Filters {
			known[f.Name], known[f.Name+"_from"], known[f.Name+"_to"] = true, true, true
		}
	}
	return known
}

// The same for queries with numbered parameters.
func TestPlainListPlans(t *testing.T) {
	db := newDB(t)
	const none = ""
	for _, tt := range []struct{ query, search, sorts string }{
		{selectFromNum, "SEARCH deliveries USING INTEGER PRIMARY KEY (rowid>?)", none},
		{selectListedDeliveries, "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)", "ORDER BY"},
		{selectNumOf, "SEARCH deliveries USING COVERING INDEX sqlite_autoindex_deliveries_1 (id=?)", none},
		{selectListedEvents, "SEARCH e USING INDEX events_by_seq (program_id=? AND seq=?)", "ORDER BY"},
	} {
		checkListPlan(t, db, plain(tt.query), tt.search, tt.sorts)
	}
}

// plain returns the statement of a query with numbered parameters or none.
func plain(query string) list.Statement {
	n := strings.Count(query, "?")
	for strings.Contains(query, "?1") && !strings.Contains(query, fmt.Sprint("?", n)) {
		n--
	}
	return list.Statement{Text: query, Names: make([]string, n)}
}

// checkListPlan compares how a query finds its rows, and what it sorts ("" for nothing), with
// the expected plan.
func checkListPlan(t *testing.T, db *sqlite.DB, query list.Statement, search, sorting string) {
	t.Helper()
	var plan []string
	outer, sorts := -1, ""
	err := db.Each(t.Context(), "EXPLAIN QUERY PLAN "+query.Text, query.Args(nil), func(scan func(...any) error) error {
		var id, parent, unused int
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		plan = append(plan, detail)
		// Only of the query itself, not of subqueries per row.
		if what, ok := strings.CutPrefix(detail, "USE TEMP B-TREE FOR "); ok && parent == 0 {
			sorts = what
		}
		if outer < 0 && strings.HasPrefix(detail, "SEARCH ") {
			outer = len(plan) - 1
		}
		return err
	})
	if err != nil {
		t.Errorf("%s: %v", query.Text, err)
		return
	}
	// The events of a delivery are looked up, not scanned.
	wholeLog := slices.ContainsFunc(plan, func(step string) bool {
		return strings.HasPrefix(step, "SEARCH e ") && strings.HasSuffix(step, "(program_id=?)")
	})
	if outer < 0 || plan[outer] != search || sorts != sorting || sqlitetest.ScansATable(plan) || wholeLog {
		t.Errorf("%s\n\t%s\nwant %s, sorting %q", query.Text, strings.Join(plan, "\n\t"), search, sorting)
	}
}

// planOfHidden reports whether a step of a plan belongs to the condition list.CanBeUsed.
func planOfHidden(step string) bool {
	return step == "USING INDEX sqlite_autoindex_program_states_1 FOR IN-OPERATOR"
}

// TestBoundedPlans checks that these queries use indexes, and scan only their own results up
// to a limit.
func TestBoundedPlans(t *testing.T) {
	db := newDB(t)
	for _, tt := range []struct {
		query string
		args  int
		want  []string // the steps, in their order
	}{
		{selectSubscriptionTotal, 1, []string{
			"CO-ROUTINE (subquery-2)", "SCAN subscriptions USING INDEX subscriptions_by_program", "SCAN (subquery-2)"}},
		{SelectWaitingTotal, 1, []string{
			"CO-ROUTINE (subquery-2)", "SCAN deliveries USING INDEX deliveries_due", "SCAN (subquery-2)"}},
		{SelectNewestRow, 0, []string{"SEARCH events"}},
		{SelectEventFrom, 1, []string{"SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"}},
		{selectLosses, 2, []string{
			"CO-ROUTINE (subquery-4)", "CO-ROUTINE l", "SCAN losses USING INDEX losses_by_time", "SCAN l",
			"SEARCH s USING PRIMARY KEY (id=?)", "SCAN (subquery-4)", "USE TEMP B-TREE FOR ORDER BY",
		}},
		{selectLastAlerts, 1, []string{"SCAN a", "CORRELATED SCALAR SUBQUERY 1", "SEARCH s USING INDEX alert_sends_by_alert (alert=?)",
			"CORRELATED SCALAR SUBQUERY 2", "SEARCH n USING INTEGER PRIMARY KEY (rowid=?)",
			"CORRELATED SCALAR SUBQUERY 3", "SEARCH s USING COVERING INDEX alert_sends_by_alert (alert=?)",
			"CORRELATED SCALAR SUBQUERY 4", "SEARCH s USING INDEX alert_sends_by_alert (alert=?)"}},
		{selectSubscriptionLabels, 1, []string{
			"SCAN i VIRTUAL TABLE INDEX 1:", "SEARCH s USING PRIMARY KEY (id=?)"}},
		{selectLastAttempts, 1, []string{
			"SCAN i VIRTUAL TABLE INDEX 1:", "SEARCH d USING INDEX sqlite_autoindex_deliveries_1 (id=?)",
			"SEARCH a USING INDEX sqlite_autoindex_attempts_1 (delivery=? AND number=?) LEFT-JOIN", "CORRELATED SCALAR SUBQUERY 1",
			"SEARCH attempts USING COVERING INDEX sqlite_autoindex_attempts_1 (delivery=?)"}},
	} {
		var got []string
		args := []any{math.MaxInt32, math.MaxInt32}[:tt.args]
		err := db.Each(t.Context(), "EXPLAIN QUERY PLAN "+tt.query, args, func(scan func(...any) error) error {
			var id, parent, unused int
			var detail string
			err := scan(&id, &parent, &unused, &detail)
			if !planOfHidden(detail) {
				got = append(got, detail)
			}
			return err
		})
		must(t, err)
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.query, diff)
		}
	}
}

// All data of a subscription on a page is found by an index, or its scan is bounded.
func TestSubscriptionPlans(t *testing.T) {
	db := newDB(t)
	for query, c := range map[string]struct {
		args int
		want []string
	}{
		selectSummaries: {2, []string{
			"deliveries_completed (subscription=?", "deliveries_due (subscription_id=?",
			"events_by_name (program_id=? AND name=? AND seq>? AND seq<?)",
			"SEARCH t USING PRIMARY KEY (program_id=? AND subscription_id=? AND span=?)",
			"SEARCH l USING PRIMARY KEY", "SEARCH f USING PRIMARY KEY", "SEARCH c USING PRIMARY KEY",
		}},
		selectLastSuccess: {1, []string{"deliveries_completed (subscription=?", "SEARCH a USING INDEX sqlite_autoindex_attempts_1 (delivery=?)"}},
		selectLastFailure: {1, []string{
			"deliveries_of_subscription (subscription=?)", "deliveries_by_status (status=? AND subscription_id=?)",
			"SEARCH a USING INDEX sqlite_autoindex_attempts_1 (delivery=?)",
		}},
	} {
		rows, err := db.Readers().QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query, make([]any, c.args)...)
		must(t, err)
		var plan []string
		err = sqlite.Drain(rows, func(scan func(...any) error) error {
			var id, parent, unused int
			var detail string
			err := scan(&id, &parent, &unused, &detail)
			if plan = append(plan, detail); strings.HasPrefix(detail, "SCAN ") && !strings.Contains(detail, "VIRTUAL TABLE") &&
				!strings.Contains(detail, "subquery") && detail != "SCAN d" && detail != "SCAN n" {
				t.Errorf("%s\n\t%s", query, detail)
			}
			return err
		})
		must(t, err)
		for _, part := range c.want {
			if text := strings.Join(plan, "\n\t"); !strings.Contains(text, part) {
				t.Errorf("%s\n\t%s\nwant %s", query, text, part)
			}
		}
	}
}
