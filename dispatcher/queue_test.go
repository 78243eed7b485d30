package dispatcher

import (
	"reflect"
	"testing"
	"time"

	"service/dispatcher/pace"
	"service/store"
)

// TestPhaseTransitions asks for each phase from each phase.
func TestPhaseTransitions(t *testing.T) {
	const (
		stale, current, offered, reading   = phaseStale, phaseCurrent, phaseOffered, phaseReading
		pending, reloading, reloadingStale = phaseReloadPending, phaseReloading, phaseReloadingStale
		unusable, deleted                  = phaseUnusable, phaseDeleted
	)
	now := time.Now()
	for from, to := range map[phase]struct {
		stale, forming         phase // result of asking for stale: with no delivery being stored, and with one
		current                phase
		unusable, notSuspended phase // result of asking for unusable: before suspendedUntil, and after it
	}{
		stale:          {pending, stale, current, unusable, pending},
		current:        {pending, stale, current, unusable, pending},
		offered:        {pending, stale, current, unusable, pending}, // and its credit is being spent
		reading:        {pending, stale, current, unusable, pending},
		pending:        {pending, pending, current, unusable, pending},
		reloading:      {reloadingStale, reloadingStale, current, unusable, pending},
		reloadingStale: {reloadingStale, reloadingStale, pending, pending, pending},
		unusable:       {pending, stale, current, unusable, pending},
		deleted:        {deleted, deleted, deleted, deleted, deleted},
	} {
		for _, test := range []struct {
			to, want  phase
			forming   int
			suspended time.Duration
		}{
			{stale, to.stale, 0, 0}, {stale, to.stale, 0, time.Second}, {stale, to.forming, 1, 0}, {current, to.current, 0, 0},
			{unusable, to.unusable, 0, time.Second}, {unusable, to.notSuspended, 0, 0},
		} {
			d := New(Config{Store: new(store.Store)})
			q := &subscriptionQueue{Queue: new(store.Queue), phase: from, forming: test.forming, suspendedUntil: now.Add(test.suspended)}
			d.mu.Lock()
			d.reschedule(q, test.to, now)
			d.mu.Unlock()
			times := 0
			if test.want == pending && from != pending {
				times = 1
			}
			if q.phase != test.want || len(d.reloads) != times {
				t.Errorf("from phase %d to %d, %d deliveries being stored, suspended for %s: got phase %d and %d reloads, want %d and %d",
					from, test.to, test.forming, test.suspended, q.phase, len(d.reloads), test.want, times)
			}
		}
	}
}

// runnable does not change the queue.
func TestRunnableHasNoSideEffects(t *testing.T) {
	now := time.Now()
	cfg := &Config{MaxInFlight: 2}
	for name, test := range map[string]struct {
		queue  subscriptionQueue
		newest int64
		kind   store.CreditKind
		ok     bool
	}{
		"nothing waiting":              {subscriptionQueue{phase: phaseCurrent}, 0, 0, false},
		"event waiting":                {subscriptionQueue{phase: phaseCurrent}, 1, store.CreditEvents, true},
		"log being read":               {subscriptionQueue{phase: phaseReading}, 1, 0, false},
		"retry due while log is read":  {subscriptionQueue{phase: phaseReading, nextDue: now}, 1, store.CreditDue, true},
		"retry due":                    {subscriptionQueue{phase: phaseCurrent, nextDue: now}, 1, store.CreditDue, true},
		"replay running":               {subscriptionQueue{phase: phaseCurrent, hasReplay: true}, 0, store.CreditReplay, true},
		"replay step in progress":      {subscriptionQueue{phase: phaseCurrent, hasReplay: true, replayForming: true}, 0, 0, false},
		"within batch window":          {subscriptionQueue{phase: phaseCurrent, notBefore: now.Add(1)}, 1, 0, false},
		"credit offered":               {subscriptionQueue{phase: phaseOffered, nextDue: now}, 1, 0, false},
		"all slots in use":             {subscriptionQueue{phase: phaseCurrent, inFlight: 2}, 1, 0, false},
		"all slots of the ramp in use": {subscriptionQueue{phase: phaseCurrent, inFlight: 1, ramp: 1}, 1, 0, false},
		"subscription changed":         {subscriptionQueue{phase: phaseStale}, 1, 0, false},
		"subscription deleted":         {subscriptionQueue{phase: phaseDeleted}, 1, 0, false},
		"record unusable":              {subscriptionQueue{phase: phaseCurrent, suspendedUntil: now.Add(1)}, 1, 0, false},
	} {
		test.queue.Queue = &store.Queue{Active: true}
		before := test.queue
		kind, ok := test.queue.runnable(now, test.newest, cfg)
		if kind != test.kind || ok != test.ok {
			t.Errorf("%s: got %d, %t; want %d, %t", name, kind, ok, test.kind, test.ok)
		}
		if !reflect.DeepEqual(test.queue, before) {
			t.Errorf("%s: runnable changed the queue", name)
		}
	}
}

// A new URL starts without the limits of the last one. After a failing URL it starts with one slot.
func TestUpdateURL(t *testing.T) {
	for _, failing := range []bool{false, true} {
		q := &subscriptionQueue{Queue: &store.Queue{URLNumber: 1, Active: true, Failing: failing}, ramp: 2,
			pace: pace.Pace{PausedUntil: time.Now()}, rejected: true, rejectedAt: time.Now()}
		q.update(&store.Queue{URLNumber: 2, Active: true}, time.Now())
		want := 0
		if failing {
			want = 1
		}
		if q.ramp != want || q.pace != (pace.Pace{}) || q.rejected || !q.rejectedAt.IsZero() {
			t.Errorf("failing %t: got ramp %d, pace %+v and rejected %t, want ramp %d", failing, q.ramp, q.pace, q.rejected, want)
		}
	}
}

// A requested probe ends a pause that the receiver asked for; a successful ping
// does not. Early probes are only for a rejecting receiver.
func TestUpdateFailingQueue(t *testing.T) {
	now := time.Now()
	failing := func(probe time.Duration, rejecting, pinged bool) *store.Queue {
		return &store.Queue{URL: "u", Active: true, Failing: true, Rejecting: rejecting, Pinged: pinged, NextProbe: now.Add(probe)}
	}
	for name, test := range map[string]struct {
		fresh         *store.Queue
		paused, early bool
	}{
		"probe requested": {failing(0, true, false), false, true},
		"ping succeeded":  {failing(0, true, true), true, true},
		"probe failed":    {failing(time.Hour, true, false), true, true},
		"unreachable":     {failing(time.Hour, false, false), true, false},
		"recovered":       {&store.Queue{URL: "u", Active: true}, true, false},
	} {
		q := &subscriptionQueue{Queue: failing(time.Minute, true, false), probeEarly: true, pace: pace.Pace{PausedUntil: now.Add(time.Hour)}}
		q.update(test.fresh, now)
		if paused := !q.pace.PausedUntil.IsZero(); paused != test.paused || q.probeEarly != test.early {
			t.Errorf("%s: got paused %t and early probe %t, want %t and %t", name, paused, q.probeEarly, test.paused, test.early)
		}
	}
}
