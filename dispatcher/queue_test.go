package dispatcher

import (
	"reflect"
	"testing"
	"time"

	"service/store"
)

// TestPhases goes from each phase to each that move is asked for.
func TestPhases(t *testing.T) {
	const stale, current, offered, reading, listed, loading, changed, unusable, gone = phaseStale, phaseCurrent, phaseOffered, phaseReading, phaseReloadPending, phaseReloading, phaseReloadingStale, phaseUnusable, phaseDeleted
	now := time.Now()
	for from, to := range map[phase]struct {
		stale, forming         phase // when asked for stale: with nothing being formed, and with a delivery that is
		current                phase
		unusable, notSuspended phase // when asked for unusable: until suspendedUntil, and after it
	}{
		stale:    {listed, stale, current, unusable, listed},
		current:  {listed, stale, current, unusable, listed},
		offered:  {listed, stale, current, unusable, listed}, // and being spent
		reading:  {listed, stale, current, unusable, listed},
		listed:   {listed, listed, current, unusable, listed},
		loading:  {changed, changed, current, unusable, listed},
		changed:  {changed, changed, listed, listed, listed},
		unusable: {listed, stale, current, unusable, listed},
		gone:     {gone, gone, gone, gone, gone},
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
			if test.want == listed && from != listed {
				times = 1
			}
			if q.phase != test.want || len(d.reloads) != times {
				t.Errorf("from %d to %d, %d being formed, suspended for %s: it is in phase %d, listed %d times; want %d, %d", from, test.to, test.forming, test.suspended, q.phase, len(d.reloads), test.want, times)
			}
		}
	}
}

// What a queue would do is found out without changing it.
func TestWorkChangesNothing(t *testing.T) {
	now := time.Now()
	cfg := &Config{MaxInFlight: 2}
	for name, test := range map[string]struct {
		queue  subscriptionQueue
		newest int64
		kind   store.CreditKind
		ok     bool
	}{
		"nothing waits":           {subscriptionQueue{phase: phaseCurrent}, 0, 0, false},
		"an event would wait":     {subscriptionQueue{phase: phaseCurrent}, 1, store.CreditEvents, true},
		"the log is being read":   {subscriptionQueue{phase: phaseReading}, 1, 0, false},
		"a retry while it is":     {subscriptionQueue{phase: phaseReading, nextDue: now}, 1, store.CreditDue, true},
		"a retry is due":          {subscriptionQueue{phase: phaseCurrent, nextDue: now}, 1, store.CreditDue, true},
		"a replay runs":           {subscriptionQueue{phase: phaseCurrent, hasReplay: true}, 0, store.CreditReplay, true},
		"its step is under way":   {subscriptionQueue{phase: phaseCurrent, hasReplay: true, replaying: true}, 0, 0, false},
		"the batch window":        {subscriptionQueue{phase: phaseCurrent, notBefore: now.Add(1)}, 1, 0, false},
		"a delivery is on offer":  {subscriptionQueue{phase: phaseOffered, nextDue: now}, 1, 0, false},
		"all slots are taken":     {subscriptionQueue{phase: phaseCurrent, inFlight: 2}, 1, 0, false},
		"all slots of the ramp":   {subscriptionQueue{phase: phaseCurrent, inFlight: 1, ramp: 1}, 1, 0, false},
		"it has changed":          {subscriptionQueue{phase: phaseStale}, 1, 0, false},
		"it was deleted":          {subscriptionQueue{phase: phaseDeleted}, 1, 0, false},
		"a record cannot be used": {subscriptionQueue{phase: phaseCurrent, suspendedUntil: now.Add(1)}, 1, 0, false},
	} {
		test.queue.Queue = &store.Queue{Active: true}
		before := test.queue
		kind, ok := test.queue.runnable(now, test.newest, cfg)
		if kind != test.kind || ok != test.ok {
			t.Errorf("%s: got %d, %t; want %d, %t", name, kind, ok, test.kind, test.ok)
		}
		if !reflect.DeepEqual(test.queue, before) {
			t.Errorf("%s: the queue was changed", name)
		}
	}
}

// A pause that a server asked for ends early when a probe is asked for, and not
// because a ping has succeeded. An early probe is for a server that rejects.
func TestUpdateOfAFailingQueue(t *testing.T) {
	now := time.Now()
	failing := func(probe time.Duration, rejecting, pinged bool) *store.Queue {
		return &store.Queue{URL: "u", Active: true, Failing: true, Rejecting: rejecting, Pinged: pinged, NextProbe: now.Add(probe)}
	}
	for name, test := range map[string]struct {
		fresh         *store.Queue
		paused, early bool
	}{
		"a probe was asked for": {failing(0, true, false), false, true},
		"a ping has succeeded":  {failing(0, true, true), true, true},
		"a probe has failed":    {failing(time.Hour, true, false), true, true},
		"it does not respond":   {failing(time.Hour, false, false), true, false},
		"it is well again":      {&store.Queue{URL: "u", Active: true}, true, false},
	} {
		q := &subscriptionQueue{Queue: failing(time.Minute, true, false), probeEarly: true, pace: pace{pausedUntil: now.Add(time.Hour)}}
		q.update(test.fresh, now)
		if paused := !q.pace.pausedUntil.IsZero(); paused != test.paused || q.probeEarly != test.early {
			t.Errorf("%s: paused %t, an early probe %t; want %t, %t", name, paused, q.probeEarly, test.paused, test.early)
		}
	}
}
