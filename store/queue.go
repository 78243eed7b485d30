package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"service/store/keyring"
	"service/store/list"
	"service/store/record"
	"service/store/sqlite"
	"service/store/tail"
	"service/store/watch"
	"service/webhook"
)

// ErrStale reports that the subscription has changed since its queue was read: read it again.
var ErrStale = errors.New("store: the queue is stale")

// Queue is a copy of the stored state of a subscription queue: the data with which the
// dispatcher forms and sends its deliveries. [Store.Watch] reports changes.
type Queue struct {
	SubscriptionID string
	ProgramID      string
	URL            string
	URLNumber      int64 // incremented by every change of URL
	Headers        []webhook.Header
	Authorization  string                  // the Authorization header, "" for none
	Secrets        []webhook.SigningSecret // the current secret, then replaced ones that have not expired
	Expiry         []time.Time             // of Secrets[1:]; monotonic
	Active         bool
	Status         webhook.Health
	Failing        bool // Status is failing: only probes are formed
	Ordered        bool
	MaxInFlight    int               // 0 for the operator's default
	MaxPerSecond   float64           // 0 for no limit
	MaxEvents      int               // in one delivery; 0 for the operator's batch size
	SizeBound      webhook.SizeBound // LearnedAt is monotonic
	Revision       int64             // incremented by every change of the subscription

	Rejected     bool      // an attempt was rejected since the last success
	RejectedName string    // name of the last rejected event
	NextProbe    time.Time // while failing; monotonic
	Rejecting    bool      // failing because of rejections: a ping precedes the probe
	Pinged       bool      // that ping has succeeded

	Cursor    int64      // every event up to it is in a delivery or did not match
	Seen      int64      // no event after Cursor up to it matches; advanced while reading
	Interests []Interest // the ranges of the log that the subscription selects
	Wanted    int64      // the newest seq that may match; nothing waits unless it is after Seen
	NextDue   time.Time  // when the next queued or retryable delivery is due; monotonic, zero for none
	NextPing  time.Time  // the same for pings
	Replaying bool       // a replay is running
	Splitting bool       // a split is open

	// Unusable is why the record cannot be used, for example a secret that no key decrypts. In
	// that case only SubscriptionID is set. [Queues.All] sets it.
	Unusable error
}

// Interest is a range of the log: the events with this name and After < seq <= Until.
type Interest struct {
	Name         string
	After, Until int64                // Until is math.MaxInt64 while the range is open
	Filter       *webhook.EventFilter // nil for all events of the range
}

// Interest returns the interest in an event, nil if the subscription does not select it.
func (q *Queue) Interest(name string, seq int64) *Interest {
	for i := range q.Interests {
		in := &q.Interests[i]
		if in.Name == name && in.After < seq && seq <= in.Until {
			return in
		}
	}
	return nil
}

// Filtered reports whether an interest has a filter.
func (q *Queue) Filtered() bool {
	return slices.ContainsFunc(q.Interests, func(in Interest) bool { return in.Filter != nil })
}

const queueColumns = "s.id, s.program_id, s.url, s.authorization_header, s.headers, s.signing_secret, s.active, s.status, s.ordered, " +
	"s.max_in_flight, coalesce(s.max_events, 0), s.revision, c.seq, " +
	"s.max_per_second, coalesce(f.rejected, 0) > 0, coalesce(f.rejected_name, ''), f.next_probe_at, coalesce(f.failing_reason, '') = " +
	"'rejecting', coalesce(f.pinged, 0), coalesce(b.bytes, 0), b.learned_at, s.url_number"

const queueTables = " FROM subscriptions s JOIN cursors c ON c.subscription_id = s.id LEFT JOIN failures f ON f.subscription_id = s.id " +
	"LEFT JOIN size_bounds b ON b.subscription_id = s.id"

// selectDueTimes returns the subscriptions that have a scheduled delivery or ping, and when the
// next of each is due. It costs a few index lookups per subscription, however many deliveries
// are scheduled.
const selectDueTimes = `WITH RECURSIVE o(id) AS (
		SELECT min(subscription_id) FROM deliveries INDEXED BY deliveries_due WHERE next_attempt_at IS NOT NULL AND subscription_id > ''
		UNION ALL SELECT (SELECT min(subscription_id) FROM deliveries INDEXED BY deliveries_due WHERE next_attempt_at IS NOT NULL
		AND subscription_id > o.id) FROM o WHERE o.id IS NOT NULL)
	SELECT id, (` + nextDelivery + "o.id), (" + nextPing + "o.id) FROM o WHERE id IS NOT NULL"

// All returns the queue of every subscription. A subscription whose record is unusable is
// returned with Unusable set; the others are unaffected.
func (s Queues) All(ctx context.Context) ([]*Queue, error) {
	var queues []*Queue
	err := s.db.Each(ctx, "SELECT "+queueColumns+queueTables+" WHERE s.program_id"+list.CanBeUsed, nil, func(scan func(...any) error) error {
		q, err := s.scanQueue(scan)
		if errors.Is(err, keyring.ErrDecrypt) {
			q, err = &Queue{SubscriptionID: q.SubscriptionID, Unusable: err}, nil
		}
		queues = append(queues, q)
		return err
	})
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*Queue, len(queues))
	for _, q := range queues {
		if q.Unusable == nil {
			byID[q.SubscriptionID] = q
		}
	}
	err = s.db.Each(ctx, selectDueTimes, nil, func(scan func(...any) error) error {
		var id string
		var due, ping sql.NullInt64
		err := scan(&id, &due, &ping)
		if q := byID[id]; q != nil {
			q.NextDue, q.NextPing = s.clock.Process(due), s.clock.Process(ping)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.fillQueues(ctx, byID, "TRUE"); err != nil {
		return nil, err
	}
	for i, q := range queues {
		if q.Unusable != nil {
			queues[i] = &Queue{SubscriptionID: q.SubscriptionID, Unusable: q.Unusable}
		}
	}
	return queues, nil
}

// Get returns the queue of one subscription. The error is a *webhook.Error with CodeNotFound if
// it was deleted.
func (s Queues) Get(ctx context.Context, subscriptionID string) (*Queue, error) {
	q, err := s.scanQueue(s.db.Row(ctx, "SELECT "+queueColumns+queueTables+" WHERE s.id = ? AND s.program_id"+list.CanBeUsed, subscriptionID))
	if err != nil {
		return nil, sqlite.NoRows(err, webhook.NotFound("subscription"))
	}
	if q.NextDue, err = s.nextDue(ctx, selectNextDelivery, subscriptionID); err != nil {
		return q, err
	}
	if q.NextPing, err = s.nextDue(ctx, selectNextPing, subscriptionID); err != nil {
		return q, err
	}
	if err := s.fillQueues(ctx, map[string]*Queue{subscriptionID: q}, "subscription_id = ?", subscriptionID); err != nil {
		return q, err
	}
	return q, q.Unusable
}

// scanQueue reads a row of queueColumns. If a secret cannot be decrypted, it returns the queue
// with the error, so that the caller knows which subscription is unusable.
func (s Queues) scanQueue(scan func(...any) error) (*Queue, error) {
	q := &Queue{}
	var authorization, headers, secret []byte
	var rate sql.NullFloat64
	var probe, learned sql.NullInt64
	err := scan(&q.SubscriptionID, &q.ProgramID, &q.URL, &authorization, &headers, &secret, &q.Active, &q.Status, &q.Ordered, &q.MaxInFlight,
		&q.MaxEvents, &q.Revision, &q.Cursor,
		&rate, &q.Rejected, &q.RejectedName, &probe, &q.Rejecting, &q.Pinged,
		&q.SizeBound.Bytes, &learned, &q.URLNumber)
	if err != nil {
		return nil, err
	}
	q.SizeBound.LearnedAt = s.clock.Process(learned)
	q.Seen, q.MaxPerSecond, q.Failing = q.Cursor, rate.Float64, q.Status == webhook.HealthFailing
	if q.Failing && probe.Valid {
		// The next commit shifts the stored time by this jump.
		q.NextProbe = s.clock.ProcessAt(sqlite.FromMillis(probe).Add(s.clock.Jump()))
	}
	if authorization != nil {
		plain, err := s.keys.Decrypt(authorization, "authorization_header of "+q.SubscriptionID)
		if err != nil {
			return q, err
		}
		q.Authorization = string(plain)
	}
	if headers != nil {
		plain, err := s.keys.Decrypt(headers, "headers of "+q.SubscriptionID)
		if err != nil {
			return q, err
		}
		if err := json.Unmarshal(plain, &q.Headers); err != nil {
			return q, err
		}
	}
	plain, err := s.keys.Decrypt(secret, "signing_secret of "+q.SubscriptionID)
	q.Secrets = []webhook.SigningSecret{plain}
	return q, err
}

// fillQueues reads the data that is in neither the subscriptions' nor the deliveries' rows, with
// one query for all queues, so that startup stays fast with very many. The condition which must
// select the rows of these queues in the other tables. Subscriptions created or deleted since
// their rows were read are ignored.
func (s Queues) fillQueues(ctx context.Context, queues map[string]*Queue, which string, args ...any) error {
	if err := s.fillInterests(ctx, queues, which, args); err != nil {
		return err
	}
	if err := s.fillWanted(ctx, queues); err != nil {
		return err
	}
	mark := func(query string, set func(*Queue)) error {
		ids, err := s.ids(ctx, query+which, args...)
		for _, id := range ids {
			if q := queues[id]; q != nil {
				set(q)
			}
		}
		return err
	}
	if err := mark("SELECT DISTINCT subscription_id FROM replays WHERE status = 'running' AND ",
		func(q *Queue) { q.Replaying = true }); err != nil {
		return err
	}
	if err := mark("SELECT DISTINCT subscription_id FROM splits WHERE ", func(q *Queue) { q.Splitting = true }); err != nil {
		return err
	}
	return s.fillOldSecrets(ctx, queues, which, args)
}

// fillInterests reads the interests of the queues.
func (s Queues) fillInterests(ctx context.Context, queues map[string]*Queue, which string, args []any) error {
	return s.db.Each(ctx,
		"SELECT subscription_id, name, after_seq, until_seq, filter FROM interests WHERE "+which+
			" ORDER BY subscription_id, name, after_seq", args,
		func(scan func(...any) error) error {
			var id string
			in := Interest{Until: math.MaxInt64}
			var until sql.NullInt64
			var filter sql.NullString
			if err := scan(&id, &in.Name, &in.After, &until, &filter); err != nil {
				return err
			}
			if until.Valid {
				in.Until = until.Int64
			}
			q := queues[id]
			if q == nil {
				return nil
			}
			if filter.Valid {
				var err error
				if in.Filter, err = record.ParseFilter(filter.String); err != nil {
					q.Unusable = fmt.Errorf("the filter of %s: %w", in.Name, err)
				}
			}
			q.Interests = append(q.Interests, in)
			return nil
		})
}

// fillWanted reads the newest event of each name that the queues select.
func (s Queues) fillWanted(ctx context.Context, queues map[string]*Queue) error {
	newest := make(map[watch.EventKey]int64)
	for _, q := range queues {
		for _, in := range q.Interests {
			key := watch.EventKey{ProgramID: q.ProgramID, Name: in.Name}
			seq, ok := newest[key]
			if !ok {
				err := s.db.Scan(ctx, "SELECT coalesce(max(seq), 0) FROM events WHERE program_id = ? AND name = ?", []any{key.ProgramID, key.Name},
					&seq)
				if err != nil {
					return err
				}
				newest[key] = seq
			}
			// A closed range may have no such event; reading it shows that.
			if seq = min(seq, in.Until); seq > in.After {
				q.Wanted = max(q.Wanted, seq)
			}
		}
	}
	return nil
}

// fillOldSecrets reads the replaced secrets that have not expired. A queue with a secret that
// cannot be decrypted becomes unusable.
func (s Queues) fillOldSecrets(ctx context.Context, queues map[string]*Queue, which string, args []any) error {
	args = append(args[:len(args):len(args)], s.clock.Wait(s.clock.Now()))
	return s.db.Each(ctx,
		"SELECT subscription_id, secret, expires_at FROM old_signing_secrets WHERE "+which+" AND expires_at > ? "+
			"ORDER BY subscription_id, expires_at DESC", args, func(scan func(...any) error) error {
			var id string
			var encrypted []byte
			var expires sql.NullInt64
			if err := scan(&id, &encrypted, &expires); err != nil {
				return err
			}
			q := queues[id]
			if q == nil || q.Unusable != nil {
				return nil
			}
			plain, err := s.keys.Decrypt(encrypted, "signing_secret of "+id)
			if errors.Is(err, keyring.ErrDecrypt) {
				q.Unusable = err
				return nil
			}
			q.Secrets, q.Expiry = append(q.Secrets, plain), append(q.Expiry, s.clock.Process(expires))
			return err
		})
}

// SigningSecrets returns the secrets that sign at a monotonic time.
func (q *Queue) SigningSecrets(now time.Time) []webhook.SigningSecret {
	n := 1
	for n < len(q.Secrets) && now.Before(q.Expiry[n-1]) {
		n++
	}
	return q.Secrets[:min(n, len(q.Secrets))]
}

func (s Queues) nextDue(ctx context.Context, query, subscriptionID string) (time.Time, error) {
	var next sql.NullInt64
	err := s.db.Scan(ctx, query, []any{subscriptionID}, &next)
	return s.clock.Process(next), err
}

// logRun is a part of the log that one delivery can carry.
type logRun struct {
	To     int64         // the log was read up to this seq
	Seqs   []int64       // the events up to To that the queue selects
	Bodies [][]byte      // the JSON of each; read-only
	Oldest int64         // when the first event was accepted, in Unix milliseconds
	Trace  webhook.Trace // of the first event that has one

	Erasures int64 // core.erasures before the log was read
}

// waiting reads the events that wait for a queue after Seen: at most count, and as many as fit
// into size bytes, but at least one. If none waits, the log was read at least up to newest,
// which was committed before the call, or a filter let none of examinedEvents pass.
func (s Queues) waiting(ctx context.Context, q *Queue, newest int64, count, size int) (logRun, error) {
	g := newGathering(q, count, size)
	defer g.release()
	g.Erasures = s.erasures.Load()
	if s.tail.Scan(q.ProgramID, q.Seen, g.visit) {
		return g.logRun, nil
	}
	limit := count
	if g.fields != nil {
		limit = examinedEvents
	}
	wanted, err := s.wanted(ctx, q, newest, limit)
	if err != nil {
		return g.logRun, err
	}
	if err := s.eventsAt(ctx, q.ProgramID, wanted, g.visitWanted); err != nil {
		return g.logRun, err
	}
	if len(g.Seqs) == 0 && g.examined == len(wanted) && len(wanted) < limit {
		g.To = max(g.To, newest)
	}
	return g.logRun, nil
}

// eventsAt calls take for the events at some seqs of a log, in order, until it returns false.
// The body of an erased event is nil. It reads adjacent seqs with one query. The error is ErrStale if retention removed an event.
func (s Queues) eventsAt(ctx context.Context, programID string, seqs []int64,
	take func(seq, received int64, name string, body []byte, trace webhook.Trace) bool) error {
	for len(seqs) > 0 {
		near := 1
		for near < len(seqs) && seqs[near]-seqs[near-1] <= 2 {
			near++
		}
		run := seqs[:near]
		seqs = seqs[near:]
		err := s.db.Each(ctx,
			"SELECT seq, id, name, received_at, json, traceparent, erased_at IS NOT NULL FROM events WHERE program_id = ? "+
				"AND seq BETWEEN ? AND ? ORDER BY seq",
			[]any{programID, run[0], run[near-1]}, func(scan func(...any) error) error {
				var seq, received int64
				var id, name string
				var body []byte
				var trace sql.NullString
				var erased bool
				err := scan(&seq, &id, &name, &received, &body, &trace, &erased)
				if erased {
					body = nil
				} else if err == nil {
					body, err = s.dictionaries.Unpack(id, body)
				}
				switch {
				case err != nil || seq < run[0]:
					return err
				case seq > run[0]:
					return ErrStale
				case !take(seq, received, name, body, webhook.Trace(trace.String)):
					return sqlite.ErrStop
				}
				run = run[1:]
				return nil
			})
		switch {
		case err == sqlite.ErrStop:
			return nil
		case err != nil:
			return err
		case len(run) > 0:
			return ErrStale
		}
	}
	return nil
}

// gathering collects a logRun: at most count events of size bytes together, but at least one.
type gathering struct {
	logRun
	queue       *Queue
	count, size int

	// If the queue has a filter:
	fields   *webhook.Fields // to parse events into
	examined int             // events
	budget   int             // bytes of events that may still be examined
}

// newGathering returns a gathering for a queue, starting at its Seen. The caller must release it.
func newGathering(q *Queue, count, size int) gathering {
	g := gathering{logRun: logRun{To: q.Seen}, queue: q, count: count, size: size, budget: examinedBytes}
	if q.Filtered() {
		g.fields = parsed.Get().(*webhook.Fields)
	}
	return g
}

func (g *gathering) release() {
	if g.fields != nil {
		parsed.Put(g.fields)
	}
}

// visit examines the next event of the log, and reports whether another may fit.
func (g *gathering) visit(seq int64, e *tail.Event) bool {
	if in := g.queue.Interest(e.Name, seq); in != nil && !e.Erased && g.passes(in, e.Json) {
		return g.take(seq, e.Received, e.Json, e.Trace)
	}
	return g.skip(seq)
}

// visitWanted is visit for an event with a name that the queue selects.
func (g *gathering) visitWanted(seq, received int64, name string, body []byte, trace webhook.Trace) bool {
	if body == nil { // erased
		g.examined++
	} else if in := g.queue.Interest(name, seq); in != nil && g.passes(in, body) {
		return g.take(seq, received, body, trace)
	}
	return g.skip(seq)
}

// passes reports whether an event passes the filter of the interest in it.
func (g *gathering) passes(in *Interest, event []byte) bool {
	g.examined++
	if in.Filter == nil {
		return true
	}
	g.budget -= len(event)
	g.fields.Parse(event)
	return in.Filter.Match(g.fields)
}

// skip skips an event that is not taken, and reports whether another may be examined.
func (g *gathering) skip(seq int64) bool {
	if len(g.Seqs) == 0 {
		g.To = seq
	}
	return g.fields == nil || g.examined < examinedEvents && g.budget > 0
}

// take adds an event if it fits, and reports whether it did.
func (g *gathering) take(seq, received int64, body []byte, trace webhook.Trace) bool {
	if len(g.Seqs) == g.count || len(g.Seqs) > 0 && len(body) > g.size {
		return false
	}
	if len(g.Seqs) == 0 {
		g.Oldest = received
	}
	if g.Trace == "" {
		g.Trace = trace
	}
	g.size -= len(body)
	g.Seqs = append(g.Seqs, seq)
	g.Bodies = append(g.Bodies, body)
	g.To = seq
	return true
}

// wanted returns the first seqs after Seen that a queue selects. It costs one index lookup per
// range, regardless of the backlog and of other events in the log. It must not look beyond
// newest: of events published between two lookups, only the second would see some, and the
// cursor would skip the others.
func (s Queues) wanted(ctx context.Context, q *Queue, newest int64, count int) ([]int64, error) {
	var seqs []int64
	for _, in := range q.Interests {
		err := s.db.Each(ctx, "SELECT seq FROM events WHERE program_id = ? AND name = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
			[]any{q.ProgramID, in.Name, max(q.Seen, in.After), min(in.Until, newest), count}, sqlite.Into(&seqs))
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(seqs)
	return seqs[:min(len(seqs), count)], nil
}

// Claim is a delivery whose next attempt has been counted durably, and must now be made and
// recorded by the caller.
type Claim struct {
	ID             string
	SubscriptionID string
	ProgramID      string
	Number         int   // of the attempt
	Interruptions  int   // attempts of the delivery that were interrupted
	Revision       int64 // of the subscription when the attempt was counted
	// URLNumber is the number of the URL that the attempt is sent to: the subscription's when the
	// attempt was counted, unless the caller sets the number of a later URL.
	URLNumber int64
	Events    [][]byte      // the JSON of the events; read-only
	Trace     webhook.Trace // of the first event that has one
	Ping      bool
	Probe     bool // the attempt is a probe of a failing subscription
	Split     bool // the events were sent before, in a delivery that failed
	// AcceptedAt is when the oldest event was accepted; zero for a ping, a redelivery or
	// a delivery of a replay.
	AcceptedAt time.Time

	num      int64
	firstURL int64 // the subscription's URLNumber when the delivery was created
}

// newClaim returns a claim on the first attempt of a new delivery.
func (q *Queue) newClaim(events [][]byte, trace webhook.Trace) Claim {
	return Claim{ID: webhook.NewID(), SubscriptionID: q.SubscriptionID, ProgramID: q.ProgramID, Number: 1, Revision: q.Revision,
		URLNumber: q.URLNumber, Events: events, Trace: trace, Probe: q.Failing}
}

// Forming is a credit being spent: a delivery that is being stored.
type Forming struct {
	Queue   *Queue
	Next    time.Time // for CreditDue and CreditPing: when the next delivery or ping is due, zero for none
	More    bool      // for CreditReplay: a replay continues
	Spared  bool      // a due delivery was skipped because of Credit.Spare
	Skipped bool      // for CreditEvents: the delivery skipped waiting events, so the queue must be read again
	Unsplit bool      // Credit.Splits was set, and no split had anything to send

	w        *writer
	alone    bool           // the delivery needs a write of its own, and Submit has not been called
	op       *sqlite.Op     // that write; nil once claim and err are known
	commit   sync.WaitGroup // for an offered credit: waits for its commit
	claim    *Claim
	err      error
	from, to int64 // the cursor before and after
	erasures int64 // core.erasures before the log was read
	seqs     string
	made     Claim
}

// form returns the next delivery of a queue, not stored yet. It has already moved the cursor in
// q to w.To.
func (s Queues) form(c *Credit, w *logRun) *Forming {
	f := s.writer.newForming(c.Queue, w)
	f.alone = true
	return f
}

// Submit starts to store a delivery from the log. Deliveries of one queue are stored in the
// order of the calls, and none after a failed one: the caller must then read the queue
// again. The caller must call Wait next.
func (f *Forming) Submit() {
	if f.alone {
		f.alone = false
		// Not with a function of *tx, which would allocate a second closure.
		f.op = f.w.Submit(func(*sqlite.Tx) error { return f.store(&f.w.tx) }, true)
	}
}

// newForming forms the next delivery of a queue, and moves the queue's cursor in memory. Only
// store moves it in the database.
func (w *writer) newForming(q *Queue, from *logRun) *Forming {
	f := &Forming{Queue: q, w: w, from: q.Cursor, to: from.To, seqs: appendSeqs(nil, from.Seqs), made: q.newClaim(from.Bodies, from.Trace),
		erasures: from.Erasures}
	f.made.AcceptedAt = time.UnixMilli(from.Oldest)
	f.claim = &f.made
	q.Cursor, q.Seen = from.To, from.To
	return f
}

// store writes the delivery, or writes nothing and returns ErrStale.
func (f *Forming) store(t *tx) error {
	if t.use(f.made.ProgramID, "") != nil {
		return ErrStale
	}
	if f.erasures != t.s.erasures.Load() {
		if err := t.staleIfErased(f.made.ProgramID, f.seqs); err != nil {
			return err
		}
	}
	// If the cursor is not where the caller saw it, this would skip the events of a
	// delivery that was not stored. Another revision may select other events.
	n, err := t.Affected("UPDATE cursors SET seq = ?1 WHERE subscription_id = ?2 AND seq = ?3 AND EXISTS (SELECT 1 FROM subscriptions "+
		"WHERE id = ?2 AND revision = ?4)",
		f.to, f.made.SubscriptionID, f.from, f.made.Revision)
	if err != nil {
		return err
	}
	if n == 0 {
		return ErrStale
	}
	if f.Skipped {
		if err := t.passInterests(&f.made, f.seqs); err != nil {
			return err
		}
	}
	return t.insertFormed(&f.made, f.seqs, maker{})
}

// formNext forms the next delivery for a credit for events: from a split if the credit asks for
// that, else from the log. It prefers events that c.Except allows.
func (s Queues) formNext(ctx context.Context, c *Credit) *Forming {
	except := c.Except
	for {
		if f, err := s.formNextExcept(ctx, c, except); f != nil || err != nil {
			return cmp.Or(f, &Forming{Queue: c.Queue, err: err})
		}
		switch len(except) {
		case 0:
			return &Forming{Queue: c.Queue, Unsplit: c.Splits}
		case 1:
			except = nil
		default:
			except = except[len(except)-1:]
		}
	}
}

// formNextExcept forms a delivery without the event types except, nil if no other event waits.
func (s Queues) formNextExcept(ctx context.Context, c *Credit, except []string) (*Forming, error) {
	for left := c.Splits; left; {
		f, err := s.formSplit(ctx, c, except)
		if f != nil || err != nil {
			return f, err
		}
		if left = false; len(except) == 0 {
			if left, err = s.finishSplits(ctx, c.Queue); err != nil {
				return nil, err
			}
		}
	}
	q := c.Queue
	w, err := s.waiting(ctx, q, c.Newest, c.Count, c.Size)
	if err != nil {
		return nil, err
	}
	if len(w.Seqs) == 0 {
		q.Seen = w.To
		return nil, nil
	}
	if len(except) == 0 {
		f := s.form(c, &w)
		f.Unsplit = c.Splits
		return f, nil
	}
	return s.formExcept(ctx, c, except, w.Seqs[0])
}

// formExcept forms a delivery with the first waiting event that except allows, nil if there is
// none. If earlier events wait, starting at first, the cursor stays, and the interests in the
// event's name start after the event.
func (s Queues) formExcept(ctx context.Context, c *Credit, except []string, first int64) (*Forming, error) {
	q := c.Queue
	others := *q
	others.Interests = slices.DeleteFunc(slices.Clone(q.Interests), func(in Interest) bool { return slices.Contains(except, in.Name) })
	w, err := s.waiting(ctx, &others, c.Newest, 1, c.Size)
	if err != nil || len(w.Seqs) == 0 {
		return nil, err
	}
	if w.Seqs[0] == first {
		return s.form(c, &w), nil
	}
	cursor, seen := q.Cursor, q.Seen
	f := s.form(c, &w)
	f.to, f.Skipped, q.Cursor, q.Seen = cursor, true, cursor, seen
	return f, nil
}

// passInterests makes the interests in an event's name start after the event. It must be the
// first waiting event with that name.
func (t *tx) passInterests(c *Claim, seqs string) error {
	const which = " WHERE subscription_id = ?1 AND name = (SELECT name FROM events WHERE program_id = ?2 AND seq = ?3 ->> 0) AND "
	args := []any{c.SubscriptionID, c.ProgramID, seqs}
	if err := t.Exec("DELETE FROM interests"+which+"until_seq <= ?3 ->> 0", args...); err != nil {
		return err
	}
	return t.Exec("UPDATE interests SET after_seq = ?3 ->> 0"+which+"after_seq < ?3 ->> 0", args...)
}

// maker identifies the replay or split that formed a delivery, by its stored ID: the replay's,
// or that of the split's failed delivery.
type maker struct{ replay, split string }

// insertFormed stores a delivery with its first attempt counted. The claim must be of the
// subscription's stored revision.
func (t *tx) insertFormed(c *Claim, seqs string, by maker) error {
	now, err := t.now()
	if err != nil {
		return err
	}
	c.firstURL = c.URLNumber
	c.num, err = t.Insert("INSERT INTO deliveries (id, subscription_id, subscription, program_id, status, attempts_made, claimed_at, "+
		"seqs, replay_id, split_of, created_at, counted_at, first_byte_us) VALUES (?1, ?2, (SELECT num FROM subscriptions "+
		"WHERE id = ?2), ?3, 'pending', 1, ?4, ?5, ?6, ?7, ?4, ?8, "+roomForAttempt+")",
		record.ShortID(c.ID), c.SubscriptionID, c.ProgramID, now, seqs, sqlite.OrNull(by.replay), sqlite.OrNull(by.split),
		t.counted())
	if err != nil {
		return err
	}
	t.deliveryChanged(c.num)
	return t.linkEvents(c.ProgramID, c.num, seqs)
}

// linkEvents records which events a delivery carries. seqs is a JSON array.
func (t *tx) linkEvents(programID string, delivery int64, seqs string) error {
	if one, err := strconv.ParseInt(seqs[1:len(seqs)-1], 10, 64); err == nil {
		return t.Exec("INSERT INTO delivery_events (program_id, seq, delivery) VALUES (?, ?, ?)", programID, one, delivery)
	}
	return t.Exec("INSERT INTO delivery_events (program_id, seq, delivery) SELECT ?, value, ? FROM json_each(?)", programID, delivery, seqs)
}

// Peek returns the claim that Wait will return if the delivery can be stored, or nil if that
// is not known yet. Its request may be prepared, but not sent.
func (f *Forming) Peek() *Claim { return f.claim }

// Wait returns the claim on the delivery once it is on disk, nil if there is nothing to send,
// or [ErrStale].
func (f *Forming) Wait() (*Claim, error) {
	f.commit.Wait()
	f.Submit()
	if f.op != nil {
		f.err, f.op = f.w.Wait(f.op), nil
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.claim, nil
}

// appendSeqs returns seqs as a JSON array, without the allocations of json.Marshal.
func appendSeqs(dst []byte, seqs []int64) string {
	dst = append(dst, '[')
	for i, seq := range seqs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, seq, 10)
	}
	return string(append(dst, ']'))
}

// claimDue counts the next attempt of the delivery that has been due the longest. It returns
// its claim, nil if none is due, and the time when the next one is due, zero for none. A credit
// for pings claims pings; others claim deliveries, if the subscription is active. The error is
// [ErrStale] if the subscription has changed since its queue was read, or if deliveries failed
// instead, because it no longer requests their events or one was erased.
func (s Queues) claimDue(ctx context.Context, cr *Credit) (*Claim, time.Time, error) {
	subscriptionID, ping := cr.Queue.SubscriptionID, cr.Kind == CreditPing
	c := Claim{SubscriptionID: subscriptionID, Ping: ping, Probe: cr.Queue.Failing && !ping || cr.Probe}
	selectNext := selectNextDelivery
	if ping {
		selectNext = selectNextPing
	}
	var next sql.NullInt64
	var due time.Time
	stale := false
	err := s.writer.doRepeatable(func(t *tx) (err error) {
		c.num, c.AcceptedAt = 0, time.Time{}
		if t.use(cr.Queue.ProgramID, "") != nil {
			return nil
		}
		if err := t.checkRevision(cr.Queue, &c); err != nil {
			return err
		}
		now := s.clock.Now()
		until := s.clock.Wait(now)
		if cr.Probe || cr.BeforeDue {
			until = math.MaxInt64
		}
		if err := s.queueProbe(t, cr); err != nil {
			return err
		}
		if stale, err = false, nil; !ping {
			stale, err = t.endUnsendable(subscriptionID, until, cr.attempts())
		}
		if err != nil || stale {
			return err
		}
		if err := s.countDue(t, cr, &c, now, until); err != nil {
			return err
		}
		// In AfterCommit, before another commit can shift the stored time by a clock jump.
		t.AfterCommit(func() { due = s.clock.Process(next) })
		return t.Scan(selectNext, []any{subscriptionID}, &next)
	})
	if err == nil && stale {
		err = ErrStale // a split may have begun, which comes before the events that wait in the log
	}
	if err != nil || c.num == 0 {
		return nil, due, err
	}
	return &c, due, nil
}

// checkRevision sets the revision of a claim. The error is [ErrStale] if the subscription has changed
// since its queue was read: it may no longer permit the attempt, for example a probe.
func (t *tx) checkRevision(q *Queue, c *Claim) error {
	err := t.Scan("SELECT revision, url_number FROM subscriptions WHERE id = ?", []any{q.SubscriptionID}, &c.Revision, &c.URLNumber)
	if errors.Is(err, sql.ErrNoRows) || err == nil && c.Revision != q.Revision {
		return ErrStale
	}
	return err
}

// attempts returns how many attempts a delivery may have after the claim.
func (c *Credit) attempts() int {
	if c.Spare {
		return webhook.MaxAttempts - 1
	}
	return webhook.MaxAttempts
}

// countDue counts the next attempt of the delivery that has been due the longest, up to a time of
// the wait clock, and fills its claim. c.num stays 0 if none is due.
func (s Queues) countDue(t *tx, cr *Credit, c *Claim, now time.Time, until int64) error {
	claimDue := claimDueDelivery
	if c.Ping {
		claimDue = claimDuePing
	}
	var seqs sql.NullString
	var event []byte
	var again bool // a redelivery or a delivery of a replay
	err := t.Scan(claimDue, []any{c.SubscriptionID, now.UnixMilli(), until, cr.attempts()}, &c.num, (*record.DeliveryID)(&c.ID), &c.ProgramID,
		&c.Number, &seqs, &event, &again, &c.Split)
	if errors.Is(err, sql.ErrNoRows) {
		c.num = 0
		return nil
	} else if err != nil {
		return err
	}
	if c.Ping {
		c.Events = [][]byte{event}
	} else {
		events, err := s.claimedEvents(t, c, seqs.String)
		if errors.Is(err, errErased) {
			return ErrStale // the next claim, or the erasure, cancels it
		}
		if err != nil {
			return err // an attempt that cannot be made is not counted
		}
		c.Events, c.Trace = events.bodies, events.trace
		if !again && events.oldest > 0 {
			c.AcceptedAt = time.UnixMilli(events.oldest)
		}
	}
	t.deliveryChanged(c.num)
	if err := t.Scan(countInterruptions, []any{c.num}, &c.Interruptions); err != nil {
		return err
	}
	return t.Scan(selectFirstURL, []any{c.num}, &c.firstURL)
}

// queueProbe queues a ping for a probe credit, if the subscription is failing and no ping is queued.
func (s Queues) queueProbe(t *tx, cr *Credit) error {
	if !cr.Probe {
		return nil
	}
	q, wanted := cr.Queue, false
	err := t.Scan("SELECT status = 'failing' AND deleted_at IS NULL AND NOT EXISTS (SELECT 1 FROM deliveries WHERE subscription_id = ?1 "+
		"AND next_attempt_at IS NOT NULL AND ping IS NOT NULL) FROM subscriptions WHERE id = ?1",
		[]any{q.SubscriptionID}, &wanted)
	if err != nil || !wanted {
		return err
	}
	_, err = s.queuePing(t, &webhook.Subscription{ID: q.SubscriptionID, ProgramID: q.ProgramID}, webhook.NewID())
	return err
}

// claimedEvents returns the events of a delivery by its column seqs.
func (s Queues) claimedEvents(t *tx, c *Claim, seqs string) (eventParts, error) {
	var list []int64
	if err := json.Unmarshal([]byte(seqs), &list); err != nil {
		return eventParts{}, fmt.Errorf("store: events of delivery %s: %w", c.ID, err)
	}
	return s.eventBodies(t.Scan, c.ProgramID, list)
}

const (
	claimDue = `UPDATE deliveries SET status = 'pending', attempts_made = attempts_made + 1, claimed_at = ?2, next_attempt_at = NULL
		WHERE num = (SELECT num FROM deliveries WHERE subscription_id = ?1 AND next_attempt_at <= ?3 AND next_attempt_at IS NOT NULL
		AND attempts_made < ?4 `
	claimDueReturning = ` ORDER BY next_attempt_at, num LIMIT 1) RETURNING num, id, program_id, attempts_made, seqs, ping,
		redelivery_of IS NOT NULL OR replay_id IS NOT NULL, split_of IS NOT NULL`
	claimDueDelivery = claimDue +
		"AND ping IS NULL AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1 AND active = 1)" + claimDueReturning
	claimDuePing = claimDue +
		"AND ping IS NOT NULL AND EXISTS (SELECT 1 FROM subscriptions WHERE id = ?1 AND deleted_at IS NULL)" + claimDueReturning
	nextDelivery = "SELECT min(next_attempt_at) FROM deliveries WHERE next_attempt_at IS NOT NULL AND ping IS NULL " +
		"AND subscription_id = "
	nextPing = "SELECT min(next_attempt_at) FROM deliveries WHERE next_attempt_at IS NOT NULL AND ping IS NOT NULL " +
		"AND subscription_id = "
	selectNextDelivery = nextDelivery + "?"
	selectNextPing     = nextPing + "?"
	selectFirstURL     = "SELECT " + record.FirstURL + " FROM deliveries d WHERE d.num = ?"
)

// Recorded is the effect of a recorded attempt.
type Recorded struct {
	webhook.Step
	HealthChanged bool   // the health or the time of the next probe changed: read the queue again
	Resized       bool   // the size bound changed: read the queue again
	Rejected      string // name of the delivery's first event if it was rejected, else ""
	Split         bool   // the delivery failed, and its events are sent again: the split is open

	earlierURL bool // the attempt was sent to an earlier URL, and counts neither for health nor for an incident
}

// Record stores the result of a claimed attempt, the resulting state of the delivery, and the
// subscription's health by policy. If the subscription was deleted in between, a delivery that
// would be retried fails instead. Record returns the step that applies.
func (s Queues) Record(c *Claim, a *webhook.Attempt, step webhook.Step, policy webhook.HealthPolicy) (Recorded, error) {
	now := s.clock.Now()
	var r Recorded
	err := s.writer.DoRepeatable(func(*sqlite.Tx) error {
		t := &s.writer.tx
		var err error
		if r, err = t.recorded(c, step); err != nil {
			return err
		}
		t.AfterCommit(func() { s.afterRecord(c, a, now) })
		if err := t.countResponse(c, a); err != nil {
			return err
		}
		in, err := s.recordHealth(t, c, a, policy, now, &r)
		if err != nil {
			return err
		}
		if c.Probe && !r.earlierURL || r.HealthChanged {
			t.AfterCommit(func() { s.watchers.Probes.End(c.SubscriptionID, &watch.ProbeResult{DeliveryID: c.ID, Attempt: *a}) })
		}
		if err := t.finishAttempt(c, a, r.Step); err != nil || c.Ping || !r.Status.Final() {
			return err
		}
		err = t.recordEvents(c, a, in, &r)
		if err != nil || in == 0 && !r.earlierURL || r.Status == webhook.StatusSuccess || r.Split {
			return err
		}
		return s.alertFailed(t, c, a, in)
	})
	if err == nil {
		s.metrics.End(r.Step)
	}
	return r, err
}

// recorded returns the step that applies to a claimed delivery after an attempt, and whether a
// split sends its events again.
func (t *tx) recorded(c *Claim, step webhook.Step) (r Recorded, err error) {
	r.Step = step
	if step.Status == webhook.StatusSuccess {
		return r, nil
	}
	var deleted bool
	if err := t.Scan("SELECT deleted_at IS NOT NULL FROM subscriptions WHERE id = ?", []any{c.SubscriptionID}, &deleted); err != nil {
		return r, err
	}
	if deleted && step.Status == webhook.StatusRetryable {
		r.Step = webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureSubscriptionDeleted}
	}
	r.Split = !deleted && webhook.Splits(r.Step, len(c.Events))
	return r, nil
}

// afterRecord notifies others of a recorded attempt that ended at now.
func (s Queues) afterRecord(c *Claim, a *webhook.Attempt, now time.Time) {
	if c.Ping && a.Number == 1 {
		s.watchers.Attempts.End(c.ID, a)
	}
	if s.use(c.ProgramID, "") != nil {
		wake(s.housekeeping.erasures)
	}
	if s.erasedInFlight.Has(c.num) {
		wake(s.housekeeping.erased)
	}
	s.housekeeping.recorded(c, a)
	if !c.Ping {
		s.stats.Count(c.ProgramID, c.SubscriptionID, a, now)
	}
}

// recordEvents records the effect of a completed delivery on its events: they are delivered, sent
// again by a split, or left undelivered, in an incident.
func (t *tx) recordEvents(c *Claim, a *webhook.Attempt, incident int64, r *Recorded) error {
	if r.Status == webhook.StatusSuccess {
		if err := t.noteDelivered(c.num, c.SubscriptionID); err != nil {
			return err
		}
		return t.endSplitOf(c.num, c.SubscriptionID)
	}
	if r.FailureReason == webhook.FailureSubscriptionDeleted {
		return nil
	}
	if r.Split {
		incident = 0 // only an event that fails alone belongs to one
	}
	n, err := t.noteUndelivered(c.num, c.SubscriptionID, incident)
	if r.Split = r.Split && n > 0; err == nil && r.Split {
		err = t.openSplit(c.num, c.SubscriptionID, a)
	}
	if err != nil {
		return err
	}
	return t.endSplitOf(c.num, c.SubscriptionID)
}

// finishAttempt stores an attempt, and the resulting state of its delivery.
func (t *tx) finishAttempt(c *Claim, a *webhook.Attempt, step webhook.Step) error {
	num := c.num
	t.deliveryChanged(num)
	if a.Number == 1 && a.Result == webhook.ResultSuccess && step.Status == webhook.StatusSuccess && c.URLNumber == c.firstURL {
		return t.succeedAtFirst(num, a)
	}
	if err := t.insertAttempt(c, a); err != nil {
		return err
	}
	status, code := outcome(a)
	var completed, counted any
	if step.Status.Final() {
		// It never decreases from commit to commit, as trimSuccesses requires.
		at, err := t.now()
		if err != nil {
			return err
		}
		completed, counted = at, t.counted()
	}
	n, err := t.Affected("UPDATE deliveries SET status = ?, failure_reason = ?, next_attempt_at = ?, completed_at = ?, counted_at = "+
		"coalesce(?, counted_at), response_status = ?, error = ?, claimed_at = NULL, first_byte_us = NULL WHERE num = ?",
		string(step.Status), sqlite.OrNull(string(step.FailureReason)), t.s.clock.Stored(step.NextAttemptAt), completed, counted, status, code,
		num)
	if err == nil && n == 0 {
		err = fmt.Errorf("store: delivery %d does not exist", num)
	}
	return err
}

// succeedAtFirst completes a delivery with its first attempt, which is stored in the delivery's
// row.
func (t *tx) succeedAtFirst(num int64, a *webhook.Attempt) error {
	now, err := t.now() // see finishAttempt
	if err != nil {
		return err
	}
	response := 0
	switch {
	case responseBytes(a) == 0:
	case a.ResponseTruncated:
		response = 2
	default:
		response = 1
	}
	n, err := t.Affected(succeedAtFirst, now, t.counted(), a.ResponseStatus, a.StartedAt.UnixMilli(), a.Duration.Milliseconds(), response,
		micros(a.Phases.DNS), micros(a.Phases.Connect), micros(a.Phases.TLS), micros(a.Phases.FirstByte), num)
	if err == nil && n == 0 {
		err = fmt.Errorf("store: delivery %d does not exist", num)
	}
	if err != nil || response == 0 {
		return err
	}
	body := a.ResponseBody
	if body == nil {
		body = []byte{}
	}
	return t.Exec(insertResponse, num, a.ResponseHeader, body)
}

const (
	succeedAtFirst = `UPDATE deliveries SET status = 'success', next_attempt_at = NULL, completed_at = ?, counted_at = ?, response_status = ?,
		error = NULL, claimed_at = NULL,
		started_after = ? - created_at, duration_ms = ?, response = ?, dns_us = ?, connect_us = ?, tls_us = ?, first_byte_us = ? WHERE num = ?`
	insertResponse = "INSERT INTO responses (delivery, header, body) VALUES (?, ?, ?)"

	// roomForAttempt reserves the space that succeedAtFirst adds to a row: an append-only
	// table has full pages, and a row that grows would split one.
	roomForAttempt = "1125899906842624"
)

const countInterruptions = "SELECT count(*) FROM attempts WHERE delivery = ? AND error = 'interrupted'"

// selectClaimOf ends with the number of the URL that the attempt in flight was sent to, which is the
// subscription's when the attempt was counted, and with the subscription's current one.
const selectClaimOf = `SELECT d.claimed_at, d.attempts_made, s.deleted_at IS NOT NULL, d.ping IS NOT NULL, d.program_id, d.subscription_id,
	coalesce(json_array_length(d.seqs), 0), ` + record.FirstURL + `,
	coalesce((SELECT min(o.number) FROM old_urls o, json_each(o.in_flight) i WHERE o.subscription_id = s.id
		AND i.value = d.id || ' ' || d.attempts_made), s.url_number), s.url_number
	FROM deliveries d JOIN subscriptions s ON s.id = d.subscription_id WHERE d.num = ?`

const selectInterrupted = "SELECT num FROM deliveries WHERE status = 'pending' AND status <> 'success' AND claimed_at IS NOT NULL"

// RecoverInterrupted records the attempts that were in flight when the process last ended as
// interrupted, and returns their number. Call it before anything is claimed. After an error,
// call it again to continue. A delivery whose record is unusable is logged and unchanged.
func (s Queues) RecoverInterrupted(policy webhook.RetryPolicy) (int, error) {
	var nums []int64
	err := s.writer.do(func(t *tx) error {
		if err := s.recoverClock(t); err != nil {
			return err
		}
		return t.Each(selectInterrupted, nil, sqlite.Into(&nums))
	})
	if err != nil {
		return 0, err
	}
	defer wake(s.housekeeping.erasures) // which waits for attempts in flight, as does the next
	defer wake(s.housekeeping.erased)
	now := time.Now()
	ops := make([]*sqlite.Op, len(nums)) // they share their commits
	for i, num := range nums {
		ops[i] = s.writer.Submit(func(*sqlite.Tx) error { return s.writer.tx.interrupt(num, policy, now) }, true)
	}
	n := 0
	for i, op := range ops {
		switch failed := s.writer.Wait(op); {
		case failed == nil:
			n++
		case Unavailable(failed):
			err = failed
		default:
			s.logger.Error("failed to recover an interrupted delivery", "num", nums[i], "error", failed)
		}
	}
	return n, err
}

// interrupt records the attempt of a delivery in flight as interrupted.
func (t *tx) interrupt(num int64, policy webhook.RetryPolicy, now time.Time) error {
	var claimed int64
	var made, events int
	var deleted, ping bool
	var program string
	c, current := Claim{num: num}, int64(0) // number of the subscription's URL
	err := t.Scan(selectClaimOf, []any{num}, &claimed, &made, &deleted, &ping, &program, &c.SubscriptionID, &events, &c.firstURL,
		&c.URLNumber, &current)
	if err != nil {
		return err
	}
	var earlier int
	if err := t.Scan(countInterruptions, []any{num}, &earlier); err != nil {
		return err
	}
	a := webhook.Attempt{Number: made, StartedAt: time.UnixMilli(claimed), Result: webhook.ResultRetryable, Error: webhook.ErrorInterrupted}
	r := Recorded{Step: policy.AfterInterruptions(&a, earlier, now, rand.Float64())}
	if deleted && r.Status == webhook.StatusRetryable {
		r.Step = webhook.Step{Status: webhook.StatusFailed, FailureReason: webhook.FailureSubscriptionDeleted}
	}
	r.Split = !deleted && !ping && webhook.Splits(r.Step, events)
	incident := int64(0)
	if r.Status == webhook.StatusFailed && !deleted && !ping && !r.Split && c.URLNumber == current {
		if incident, err = t.noteEnded(program, c.SubscriptionID, 1, time.Time{}); err != nil {
			return err
		}
	}
	t.AfterCommit(func() { t.s.metrics.End(r.Step) })
	if err := t.finishAttempt(&c, &a, r.Step); err != nil || ping || !r.Status.Final() {
		return err
	}
	return t.recordEvents(&c, &a, incident, &r)
}
