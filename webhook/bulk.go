package webhook

import (
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// BulkAction is what a bulk run does with deliveries.
type BulkAction string

// The actions of bulk runs.
const (
	BulkRedeliver BulkAction = "redeliver"
	BulkCancel    BulkAction = "cancel"
)

// Audited returns the action's name in the audit log.
func (a BulkAction) Audited() Action {
	if a == BulkCancel {
		return ActionDeliveryCancel
	}
	return ActionDeliveryRedeliver
}

// BulkStatus is the state of a bulk run.
type BulkStatus string

// The statuses of a bulk run.
const (
	BulkRunning   BulkStatus = "running"
	BulkDone      BulkStatus = "done"
	BulkCancelled BulkStatus = "cancelled"
)

// BulkRun redelivers or cancels all deliveries that match a query and are not newer
// than the run. It runs in the background, oldest first, and continues after a
// restart.
type BulkRun struct {
	ID          string
	ProgramID   string // the program that it is limited to, "" for all
	Action      BulkAction
	Query       ListQuery // of AllDeliveryList; only its filters and ranges are used
	Newest      int64     // num of the newest delivery that it includes
	Status      BulkStatus
	Stopped     string // why the service stopped it, "" if it did not
	Total       int    // matching deliveries, -1 while they are counted
	Done        int    // redelivered or cancelled so far
	Skipped     map[BulkSkip]int
	Waiting     int            // subscriptions that have MaxOpenRedeliveries open redeliveries
	Results     map[Status]int // redeliveries that it created, by status
	Admin       string         // the admin who started it, "" for a token
	CreatedAt   time.Time
	CompletedAt time.Time // zero while it is running
}

// bulkRunSubject is the prefix of bulk runs as subjects in the audit log, which
// lists them under the actions of deliveries.
const bulkRunSubject = "run-"

// BulkRunSubject returns the audit log's subject for a bulk run.
func BulkRunSubject(id string) string { return bulkRunSubject + id }

// BulkRunOfSubject returns the ID of the bulk run from its subject in the audit log.
func BulkRunOfSubject(subject string) (id string, ok bool) {
	return strings.CutPrefix(subject, bulkRunSubject)
}

// Processed returns how many deliveries were done or skipped.
func (r *BulkRun) Processed() int {
	n := r.Done
	for _, skipped := range r.Skipped {
		n += skipped
	}
	return n
}

// BulkFields are the fields of a request that starts a bulk run.
type BulkFields struct {
	Action BulkAction
	Query  ListQuery // of ProgramDeliveryList
	DryRun bool      // only count
}

// ParseBulkRun parses the body of a request that starts a bulk run in a program,
// and reports all errors at once.
func ParseBulkRun(raw []byte, programID string) (f BulkFields, err *Error) {
	b, err := parseBody(raw, "")
	if err != nil {
		return f, err
	}
	filters, given := make(url.Values), false
	for name, value := range b.fields() {
		switch name {
		case "action":
			given = true
			if !b.isString(value) {
				b.fail(InvalidType, name, "must be a string: redeliver or cancel")
			} else if f.Action = BulkAction(b.text(value)); f.Action != BulkRedeliver && f.Action != BulkCancel {
				b.fail(InvalidValue, name, "must be redeliver or cancel")
			}
		case "filter":
			b.filters(value, filters)
		case "dry_run":
			if dry := b.boolean(name, value); dry != nil {
				f.DryRun = *dry
			}
		default:
			b.unknown(name, "a bulk run", "action, filter, dry_run")
		}
	}
	if !given {
		b.fail(InvalidRequired, "action", "is required: redeliver or cancel")
	}
	query, faults := ProgramDeliveryList.ParseFilters(filters)
	if faults != nil {
		b.faults = append(b.faults, faults.Validations...)
	}
	if query.Filters == nil {
		query.Filters = make(map[string][]string)
	}
	query.Filters["program_id"] = []string{programID}
	f.Query = query
	return f, invalid(b.faults)
}

// filters converts an object of filters, each a string or an array of strings, into
// list parameters.
func (b *body) filters(object int32, into url.Values) {
	if b.nodes[object].kind != jsontext.KindBeginObject {
		b.fail(InvalidType, "filter", "must be an object of filters")
	}
	for name, value := range b.members(object) {
		parameter, odd := "filter["+quotedName(string(b.text(name)))+"]", false
		switch {
		case b.isString(value):
			into.Set(parameter, string(b.text(value)))
		case b.nodes[value].kind == jsontext.KindBeginArray:
			for _, element := range b.elements(value) {
				if odd = !b.isString(element); odd {
					break
				}
				into.Add(parameter+"[]", string(b.text(element)))
			}
		default:
			odd = true
		}
		if odd {
			b.fail(InvalidType, parameter, "must be a string or an array of strings")
		}
	}
}

// BulkSkip is why a bulk run skips a delivery.
type BulkSkip string

const (
	SkipPing                BulkSkip = "ping"      // pings are not resent; send a new one
	SkipNotEnded            BulkSkip = "not_ended" // it is being sent, or will be
	SkipSubscriptionDeleted BulkSkip = "subscription_deleted"
	SkipSubscriptionPaused  BulkSkip = "subscription_paused"
	SkipRedelivered         BulkSkip = "redelivered"  // a newer delivery has the same events
	SkipErased              BulkSkip = "erased"       // the payloads of all its events were erased
	SkipUnsubscribed        BulkSkip = "unsubscribed" // the subscription no longer requests one of its event types
	SkipRecovered           BulkSkip = "recovered"    // it failed, and its events have been delivered since
	SkipSplitting           BulkSkip = "splitting"    // it failed, and its events are being sent again in deliveries of their own
	SkipSentAgain           BulkSkip = "sent_again"   // it failed, and newer deliveries contain its events: a split or a replay
	SkipEnded               BulkSkip = "ended"        // already completed
	SkipInFlight            BulkSkip = "in_flight"    // an attempt is in flight
	SkipGone                BulkSkip = "gone"         // retention has removed it since
)

// bulkSkips are the reasons in display order, each in a few words.
var bulkSkips = [...]struct {
	skip BulkSkip
	text string
}{
	{SkipNotEnded, "not completed: it is sent or retried automatically"},
	{SkipInFlight, "attempt in flight"},
	{SkipEnded, "already completed"},
	{SkipRecovered, "already delivered another way"},
	{SkipSplitting, "being sent again one event at a time"},
	{SkipSentAgain, "sent again in newer deliveries, which are resent if they failed"},
	{SkipRedelivered, "already redelivered"},
	{SkipErased, "events erased"},
	{SkipUnsubscribed, "event type no longer requested by the subscription"},
	{SkipSubscriptionPaused, "subscription paused or disabled"},
	{SkipSubscriptionDeleted, "subscription deleted"},
	{SkipPing, "pings are not resent; send a new one"},
	{SkipGone, "removed by retention"},
}

// BulkSkips returns every reason in display order.
func BulkSkips() (all []BulkSkip) {
	for _, s := range bulkSkips {
		all = append(all, s.skip)
	}
	return all
}

// Text describes the reason in a few words.
func (s BulkSkip) Text() string {
	for _, known := range bulkSkips {
		if known.skip == s {
			return known.text
		}
	}
	return string(s)
}
