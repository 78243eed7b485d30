package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"service/store/keyring"
	"service/store/record"
	"service/store/tail"
	"service/test/seed"
	"service/webhook"
)

// waitingModel is a subscription that changes while events are published, with a simple model
// of the events it must receive.
type waitingModel struct {
	t         *testing.T
	s         *Store
	random    *rand.Rand
	id        string
	asked     []string       // names
	below     map[string]int // the filters of some: only content_id below this
	active    bool
	owed, got []int64
	name      map[int64]string // by seq
}

func (m *waitingModel) names() []string {
	n := []string{"channel_created", "channel_updated", "content_updated", "content_deleted"}
	m.random.Shuffle(len(n), func(i, j int) { n[i], n[j] = n[j], n[i] })
	return n[:1+m.random.IntN(len(n))]
}

// ask asks for events, some with a filter.
func (m *waitingModel) ask() *webhook.SubscriptionFields {
	m.asked, m.below = m.names(), make(map[string]int)
	f := &webhook.SubscriptionFields{Events: &m.asked, Filters: make(webhook.Filters)}
	for _, name := range m.asked {
		if n := m.random.IntN(20); n < 10 {
			m.below[name], f.Filters[name] = n, filter(m.t, fmt.Sprintf(`{"all":[{"path":"content_id","op":"lt","value":%d}]}`, n))
		}
	}
	return f
}

// step performs a random action.
func (m *waitingModel) step() {
	switch m.random.IntN(8) {
	case 0:
		m.update(m.ask())
		m.owed = slices.DeleteFunc(m.owed, func(seq int64) bool { // waiting events of a removed type are not sent
			return !slices.Contains(m.got, seq) && !slices.Contains(m.asked, m.name[seq])
		})
	case 1:
		m.active = !m.active
		m.update(&webhook.SubscriptionFields{Active: &m.active})
	case 2:
		publish(m.t, m.s, "other", "content_updated")
	case 3:
		// Drop the tail, as a restart does.
		m.s.tail = tail.New(m.random.IntN(3000))
	case 4:
		m.form(1 + m.random.IntN(5))
	default:
		name, id := m.names()[0], m.random.IntN(10)
		seq := publishOf(m.t, m.s, "p", name, id)
		below, filtered := m.below[name]
		if m.active && slices.Contains(m.asked, name) && (!filtered || id < below) {
			m.owed = append(m.owed, seq)
			m.name[seq] = name
		}
	}
}

func (m *waitingModel) update(f *webhook.SubscriptionFields) {
	_, err := m.s.Subscriptions().Update(m.t.Context(), "p", m.id, f)
	must(m.t, err)
}

// form forms a delivery of at most count waiting events, and reports whether there were any.
func (m *waitingModel) form(count int) bool {
	l := queue(m.t, m.s, m.id)
	w, err := m.s.Queues().waiting(m.t.Context(), l, l.Wanted, count, 1<<20)
	must(m.t, err)
	if len(w.Seqs) == 0 {
		if w.To < l.Wanted {
			m.t.Errorf("nothing waits, but only %d of %d were read", w.To, l.Wanted)
		}
		l.Seen = w.To
		must(m.t, m.s.Queues().StorePassed([]Passed{l.Pass()})())
		return false
	}
	m.got = append(m.got, w.Seqs...)
	_, err = m.s.Queues().form(&Credit{Queue: l}, &w).Wait()
	must(m.t, err)
	return true
}

// Reading from memory and from disk agrees with the model.
func TestWaitingMatchesModel(t *testing.T) {
	seed.Each(t, 12, func(t *testing.T, n uint64) {
		m := &waitingModel{t: t, s: open(t), random: seed.New(n), active: true, name: make(map[int64]string)}
		program(t, m.s, "p")
		program(t, m.s, "other")
		m.id = subscribe(t, m.s, "p", m.names()...).ID
		m.update(m.ask())
		for range 120 {
			m.step()
		}
		for m.form(3) {
		}
		if !slices.Equal(m.got, m.owed) {
			t.Errorf("got %v, want %v", m.got, m.owed)
		}
	})
}

func TestWaitingBounds(t *testing.T) {
	s, sub := openSubscribed(t)
	names := slices.Repeat([]string{"content_updated"}, 10)
	events := publish(t, s, "p", names...)
	size := len(events[0].JSON)
	for _, fromDisk := range []bool{false, true} {
		if fromDisk {
			s.tail = tail.New(0)
		}
		for _, c := range []struct{ count, size, want int }{{3, 1 << 20, 3}, {100, 4 * size, 4}, {100, 4*size - 1, 3}, {100, 1, 1},
			{100, 1 << 20, 10}} {
			l := queue(t, s, sub.ID)
			w, err := s.Queues().waiting(context.Background(), l, l.Wanted, c.count, c.size)
			if err != nil || len(w.Seqs) != c.want || len(w.Bodies) != c.want || w.To != int64(c.want) {
				t.Errorf("from disk %t, count %d, size %d: got %d events up to %d (%v), want %d", fromDisk, c.count, c.size, len(w.Seqs), w.To, err,
					c.want)
			}
		}
	}
}

// A delivery is never formed past an unstored one, nor for a subscription that has changed.
func TestFormStaleQueue(t *testing.T) {
	ctx := context.Background()
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")

	wait := func(l *Queue) logRun {
		w, err := s.Queues().waiting(ctx, l, l.Wanted, 2, 1<<20)
		must(t, err)
		return w
	}
	old := queue(t, s, sub.ID)
	fresh := queue(t, s, sub.ID)
	if form(t, s, fresh, 1) == nil {
		t.Fatal("no delivery was formed")
	}
	w := wait(old)
	if _, err := s.Queues().form(&Credit{Queue: old}, &w).Wait(); !errors.Is(err, ErrStale) {
		t.Errorf("the same event is in two deliveries: %v", err)
	}
	w = wait(old) // its cursor has advanced only in memory
	if _, err := s.Queues().form(&Credit{Queue: old}, &w).Wait(); !errors.Is(err, ErrStale) {
		t.Errorf("a delivery was formed past a failed one: %v", err)
	}

	fresh = queue(t, s, sub.ID)
	w = wait(fresh)
	pause(t, s, sub.ID)
	if _, err := s.Queues().form(&Credit{Queue: fresh}, &w).Wait(); !errors.Is(err, ErrStale) {
		t.Errorf("a delivery was formed for a paused subscription: %v", err)
	}
	unsubscribe(t, s, "p", sub.ID)
	if _, err := s.Queues().Get(ctx, sub.ID); err == nil {
		t.Error("a deleted subscription has a queue")
	}
}

// TestDeliveryStates walks a delivery through all state transitions.
func TestDeliveryStates(t *testing.T) {
	ctx := context.Background()
	s, sub := openSubscribed(t)
	read := func(id string) webhook.Delivery {
		t.Helper()
		d, err := s.Deliveries().Get(ctx, "p", sub.ID, id)
		must(t, err)
		return d
	}
	publish(t, s, "p", "content_updated", "content_updated")
	first := form(t, s, queue(t, s, sub.ID), 100)
	body := string(webhook.AppendBody(nil, first.ID, first.SubscriptionID, first.ProgramID, first.Events))
	if d := read(first.ID); d.Status != webhook.StatusPending || d.AttemptsMade != 1 || len(d.Events) != 2 || len(d.Attempts) != 0 {
		t.Errorf("formed delivery: got %+v", d)
	}
	if c, _, err := s.Queues().claimDue(ctx, due(s, sub.ID)); c != nil || err != nil {
		t.Errorf("a delivery in flight was claimed again: %+v, %v", c, err)
	}
	claim := first
	for number := 1; number <= webhook.MaxAttempts; number++ {
		got := webhook.AppendBody(nil, claim.ID, claim.SubscriptionID, claim.ProgramID, claim.Events)
		if claim.Number != number || string(got) != body {
			t.Fatalf("attempt %d: got number %d, body %s", number, claim.Number, got)
		}
		a := webhook.Attempt{Number: number, StartedAt: time.Now(), Result: webhook.ResultRetryable, ResponseStatus: 500,
			ResponseBody: []byte("no"), ResponseHeader: "Server: x"}
		step := webhook.DefaultRetryPolicy().After(&a, time.Now().Add(-3*time.Hour), 0.5)
		recordResult(t, s, claim, &a, step, webhook.HealthPolicy{})
		if number == webhook.MaxAttempts {
			break
		}
		if d := read(first.ID); d.Status != webhook.StatusRetryable || d.NextAttemptAt.IsZero() || len(d.Attempts) != number {
			t.Fatalf("after attempt %d: got %+v", number, d)
		}
		claim = mustClaim(t, s, due(s, sub.ID))
	}
	d := read(first.ID)
	if d.Status != webhook.StatusFailed || d.FailureReason != webhook.FailureAttemptsExhausted || d.CompletedAt.IsZero() ||
		d.AttemptsMade != 5 {
		t.Errorf("completed: got %+v", d)
	}
	if got := d.Attempts[4]; got.ResponseStatus != 500 || string(got.ResponseBody) != "no" || got.Number != 5 {
		t.Errorf("last attempt: got %+v", got)
	}
	if c, next, err := s.Queues().claimDue(ctx, due(s, sub.ID)); c != nil || !next.IsZero() || err != nil {
		t.Errorf("a sixth attempt was claimed: %+v, %v, %v", c, next, err)
	}
}

// The ping of a new subscription is claimed as a ping, and succeeds.
func TestPingStates(t *testing.T) {
	s, sub := openSubscribed(t)
	ping, next, err := s.Queues().claimDue(t.Context(), duePing(s, sub.ID))
	if err != nil || ping == nil || !ping.Ping || !next.IsZero() {
		t.Fatalf("got %+v, %v, %v; want the ping of the creation", ping, next, err)
	}
	d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, ping.ID)
	if err != nil || d.Status != webhook.StatusPending || d.AttemptsMade != 1 || d.Events[0].Name != "ping" {
		t.Errorf("claimed ping: got %+v (%v)", d, err)
	}
	end(t, s, ping, webhook.StatusSuccess)
	d, err = s.Deliveries().Get(t.Context(), "p", sub.ID, ping.ID)
	if err != nil || d.Status != webhook.StatusSuccess || d.CompletedAt.IsZero() {
		t.Errorf("at its end it is %+v (%v)", d, err)
	}
}

// claimAfterCrash claims the delivery of a subscription whose attempt was interrupted by a crash,
// nil after the last. The delivery is due immediately after the first crash. After later ones it
// waits as after a failure, so the claim is that of a probe.
func claimAfterCrash(t *testing.T, s *Store, id string, crashes int) *Claim {
	t.Helper()
	c, next, err := s.Queues().claimDue(t.Context(), due(s, id))
	must(t, err)
	if crashes > 1 && crashes < webhook.MaxAttempts {
		if c != nil || next.IsZero() {
			t.Fatalf("after crash %d: got %+v, next %s", crashes, c, next)
		}
		probe := due(s, id)
		probe.BeforeDue = true
		c = mustClaim(t, s, probe)
	}
	if c != nil && c.Interruptions != crashes {
		t.Errorf("after crash %d: got %d interruptions", crashes, c.Interruptions)
	}
	return c
}

func TestRecoverInterrupted(t *testing.T) {
	ctx := context.Background()
	dir := memoryDir(t)
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	gone := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated")
	claims := map[string]*Claim{sub.ID: form(t, s, queue(t, s, sub.ID), 1), gone.ID: form(t, s, queue(t, s, gone.ID), 1)}
	unsubscribe(t, s, "p", gone.ID)
	for number := 1; number <= webhook.MaxAttempts; number++ {
		// The process crashes, and the next one starts.
		must(t, s.Close())
		s = opened(t, Config{Dir: dir})
		want := 1
		if number == 1 {
			want = 2
		}
		if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); n != want || err != nil {
			t.Fatalf("after crash %d: recovered %d (%v), want %d", number, n, err, want)
		}
		c := claimAfterCrash(t, s, sub.ID, number)
		if number == webhook.MaxAttempts {
			if c != nil {
				t.Errorf("attempt %d was claimed", c.Number)
			}
			break
		}
		if c == nil || c.ID != claims[sub.ID].ID || c.Number != number+1 || string(c.Events[0]) != string(claims[sub.ID].Events[0]) {
			t.Fatalf("after crash %d: got %+v", number, c)
		}
	}
	d, err := s.Deliveries().Get(ctx, "p", sub.ID, claims[sub.ID].ID)
	if err != nil || d.FailureReason != webhook.FailureAttemptsExhausted || d.Attempts[0].Error != webhook.ErrorInterrupted {
		t.Errorf("at its end it is %+v (%v)", d, err)
	}
	var reason string
	if err := s.db.Readers().QueryRow("SELECT failure_reason FROM deliveries WHERE id = ?",
		record.ShortID(claims[gone.ID].ID)).Scan(&reason); err != nil || reason != "subscription_deleted" {
		t.Errorf("the delivery of the deleted subscription: %q (%v)", reason, err)
	}
	must(t, s.Close())
}

// An unusable record does not affect the recovery of the others.
func TestRecoverInterruptedUnusable(t *testing.T) {
	s, sub := openSubscribed(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	var claims []*Claim
	for range 3 {
		claims = append(claims, form(t, s, queue(t, s, sub.ID), 1))
	}
	err := s.writer.do(func(t *tx) error {
		a := webhook.Attempt{Number: 1, StartedAt: time.Now(), Result: webhook.ResultFailed, ResponseStatus: 400}
		return t.insertAttempt(claims[0], &a)
	})
	must(t, err)
	if n, err := s.Queues().RecoverInterrupted(webhook.DefaultRetryPolicy()); n != 2 || err != nil {
		t.Errorf("recovered %d (%v), want 2", n, err)
	}
	for _, c := range claims[1:] {
		if d, err := s.Deliveries().Get(t.Context(), "p", sub.ID, c.ID); err != nil || d.Status != webhook.StatusRetryable {
			t.Errorf("got status %s (%v), want retryable", d.Status, err)
		}
	}
}

// fillQueues stores subscriptions with everything that a queue can contain, and returns them:
// the pings of 0, 4 and 8 are pending; 6 has a due redelivery, and 2 a replay; 7 and 9 are
// unusable.
func fillQueues(t *testing.T, s *Store) (subs []webhook.Subscription) {
	program(t, s, "p")
	program(t, s, "q")
	off := false
	for i := range 12 {
		sub := subscribe(t, s, [...]string{"p", "q"}[i%2], [...][]string{{"content_updated"}, {"channel_created", "content_updated"},
			{"channel_created"}}[i%3]...)
		if i < 10 {
			subs = append(subs, sub)
		}
		if i%4 != 0 { // its ping is not pending
			c := mustClaim(t, s, duePing(s, sub.ID))
			end(t, s, c, webhook.StatusSuccess)
		}
		publish(t, s, sub.ProgramID, "content_updated", "channel_created")
		if i == 10 {
			unsubscribe(t, s, sub.ProgramID, sub.ID)
		}
		if i == 11 {
			subs = append(subs, sub)
		}
	}
	_, err := s.Subscriptions().Update(t.Context(), subs[3].ProgramID, subs[3].ID, &webhook.SubscriptionFields{Active: &off})
	must(t, err)
	for _, i := range []int{5, 8, 8, 9} {
		err := s.Write(t.Context(), func(w Write) error {
			_, _, _, err := w.Subscriptions().RotateSecret(subs[i].ProgramID, subs[i].ID, webhook.Rotation{}, webhook.AuditEntry{})
			return err
		})
		must(t, err)
	}
	failed := deliver(t, s, subs[6].ID, webhook.StatusFailed)
	_, err = s.Deliveries().Redeliver(t.Context(), subs[6].ProgramID, subs[6].ID, failed.ID)
	must(t, err)
	_, err = s.Replays().Create(t.Context(), subs[2].ProgramID, subs[2].ID, &webhook.ReplayFields{Only: webhook.ReplayAll})
	must(t, err)
	for query, id := range map[string]string{
		"UPDATE old_signing_secrets SET secret = x'00' WHERE subscription_id = ?": subs[9].ID,
		"UPDATE subscriptions SET signing_secret = x'00' WHERE id = ?":            subs[7].ID,
	} {
		execute(t, s, query, id)
	}
	return subs
}

// All returns the same queues as Get for each subscription.
func TestAllMatchesGet(t *testing.T) {
	s := open(t)
	subs := fillQueues(t, s)
	all, err := s.Queues().All(t.Context())
	if err != nil || len(all) != len(subs) {
		t.Fatalf("%d queues (%v), want %d", len(all), err, len(subs))
	}
	due, replaying, unusable := 0, 0, 0
	for _, got := range all {
		checkAlone(t, s, got)
		switch {
		case got.Unusable != nil:
			unusable++
		case got.Replaying:
			replaying++
		case !got.NextDue.IsZero() || !got.NextPing.IsZero():
			due++
		}
	}
	if due != 4 || replaying != 1 || unusable != 2 {
		t.Errorf("%d queues have due deliveries, %d replays, %d are unusable; want 4, 1 and 2", due, replaying, unusable)
	}
}

// checkAlone compares a queue returned by All with that returned by Get.
func checkAlone(t *testing.T, s *Store, got *Queue) {
	t.Helper()
	want, err := s.Queues().Get(t.Context(), got.SubscriptionID)
	if got.Unusable != nil {
		if !errors.Is(err, keyring.ErrDecrypt) || len(got.Interests) > 0 || got.Secrets != nil {
			t.Errorf("All: got %+v; Get: got %v", got, err)
		}
		return
	}
	must(t, err)
	if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(time.Second)); diff != "" {
		t.Errorf("Get (-), All (+):\n%s", diff)
	}
}

// BenchmarkQueues measures All, which startup calls, by the number of subscriptions.
func BenchmarkQueues(b *testing.B) {
	numbers := []int{100, 10_000, 100_000}
	if testing.Short() {
		numbers = numbers[:1]
	}
	for _, number := range numbers {
		b.Run(fmt.Sprint("subscriptions=", number), func(b *testing.B) {
			s := openProgram(b)
			url, names := "https://partner.example/hook", []string{"content_updated", "channel_created"}
			err := s.Write(b.Context(), func(w Write) error {
				for range number {
					fields := webhook.SubscriptionFields{URL: &url, Events: &names}
					if _, _, err := w.Subscriptions().Create("p", "u", &fields, 0, webhook.AuditEntry{}); err != nil {
						return err
					}
				}
				return nil
			})
			must(b, err)
			for b.Loop() {
				if queues, err := s.Queues().All(b.Context()); err != nil || len(queues) != number {
					b.Fatalf("%d queues (%v)", len(queues), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(number), "µs/subscription")
		})
	}
}
