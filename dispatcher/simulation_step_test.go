package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing/synctest"
	"time"

	"service/store"
	"service/store/storetest"
	"service/webhook"
)

// change changes a subscription's settings, first in the model. The previous settings remain
// valid until the dispatcher is idle.
func (s *simulation) change(sub *modelSubscription, edit func(*settings), do func() error) {
	s.mu.Lock()
	before, clean := sub.settings, sub.noFailures
	sub.previous = append(sub.previous, before)
	edit(&sub.settings)
	if sub.settings.active && !before.active || sub.settings.endpoint != before.endpoint {
		sub.noFailures = true
	}
	sub.changedAt = time.Now()
	sub.recovery, sub.pausedUntil = recovery{}, time.Time{}
	s.mu.Unlock()
	if err := do(); err != nil {
		s.mu.Lock()
		if !s.unexpected(err) {
			if s.down {
				sub.previous = append(sub.previous, sub.settings)
			}
			sub.settings, sub.noFailures = before, sub.noFailures && clean
		}
		s.mu.Unlock()
	}
}

// unexpected reports whether an error is neither an injected fault nor caused by a
// kill, and records it as a violation. The caller holds s.mu.
func (s *simulation) unexpected(err error) bool {
	if err == nil || s.down || s.injected(err) {
		return false
	}
	s.violate(promiseOperates, "%v", err)
	return true
}

func (s *simulation) update(sub *modelSubscription, edit func(*settings), f *webhook.SubscriptionFields) {
	s.change(sub, edit, func() error {
		_, err := storetest.UpdateSubscription(context.Background(), s.d.store, sub.program, sub.id, f)
		return err
	})
}

func (s *simulation) create(ordered bool, m mode) {
	sub := &modelSubscription{
		index: len(s.subs), program: simulatedPrograms[len(s.subs)%s.plan.Programs],
		settings: settings{active: true, ordered: ordered, names: 3, maxEvents: s.plan.MaxEvents[len(s.subs)%len(s.plan.MaxEvents)],
			below: simulatedBelow[len(s.subs)%len(simulatedBelow)]},
		changedAt: time.Now(), noFailures: true, last: &modelAttempt{},
		inDelivery: make(map[int]bool), accepted: make(map[int]bool), replayDeliveries: make(map[string]*modelReplay),
		redeliveries: make(map[string]time.Time), lostArrivals: make(map[string]bool), byID: make(map[string]*modelDelivery),
	}
	for n := range sub.endpoints {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(sub.index), byte(n)})
		at := &endpoint{owner: sub, n: n, mode: m, subscriber: subscriber{url: "http://" + addr.String() + "/hook", conns: make(chan net.Conn)}}
		sub.endpoints[n] = at
		s.testbed.mu.Lock()
		s.testbed.subscribers[addr] = &at.subscriber
		s.testbed.mu.Unlock()
		go func() {
			for c := range at.conns {
				go s.serveConn(at, c)
			}
		}()
	}
	s.mu.Lock()
	s.subs = append(s.subs, sub)
	s.mu.Unlock()
	names := namesOf(sub.settings.names)
	stored, secret, err := storetest.CreateSubscription(context.Background(), s.d.store, sub.program, "u",
		&webhook.SubscriptionFields{URL: &sub.endpoints[0].url, Events: &names, Filters: sub.settings.filters(), Ordered: &ordered,
			MaxEvents: &sub.settings.maxEvents})
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub.id, sub.secret = stored.ID, secret; err != nil {
		s.unexpected(err)
		sub.settings.deleted = true // its creation was not acknowledged
		sub.previous = append(sub.previous, settings{active: true, names: 3})
		return
	}
	s.followSubscription(sub)
}

func (s *simulation) playStep(st *step) {
	sub := s.subs[st.Subscription%len(s.subs)]
	if s.playExtra(sub, st) {
		return
	}
	switch st.Do {
	case doPublish:
		s.publish(sub.program, st.N)
		return
	case doPublishConcurrently:
		var publishers sync.WaitGroup
		for i := range 2 + st.N%4 {
			publishers.Go(func() { s.publish(simulatedPrograms[(i+st.Subscription)%s.plan.Programs], st.N+i) })
		}
		publishers.Wait()
		return
	case doBehave:
		s.mu.Lock()
		sub.endpoints[sub.settings.endpoint].mode = st.Mode
		s.mu.Unlock()
		return
	case doCreate:
		if len(s.subs) < 6+s.plan.MoreSubscriptions {
			s.create(st.N%2 == 1, modeOK)
		}
		return
	case doCrash:
		// The Go scheduler decides what the kill interrupts.
		for range st.N * st.N {
			runtime.Gosched()
		}
		s.restart()
		return
	case doCrashOn:
		s.mu.Lock()
		s.crashOnArrival = true
		s.mu.Unlock()
		return
	case doRestart:
		s.stopAndStart()
		return
	case doFailWrite:
		s.faults.arm(true, st.N*st.Subscription, st.N%2 == 1)
		return
	case doFailRead:
		s.faults.arm(false, st.N, false)
		return
	case doRecover:
		s.recoverSlowly(sub, st.N)
		return
	case doLoseLease:
		s.loseLease(time.Duration(st.N)*125*time.Millisecond, time.Duration(st.Subscription)*5*time.Second+600*time.Millisecond)
		return
	case doFailCommits:
		s.faults.failCommits(time.Duration(st.N) * time.Second)
		return
	case doJumpClock:
		s.jump(simulatedJumps[st.N])
		return
	case doRetention:
		s.retain(sub, st.N)
		return
	case doBulk:
		s.bulk(sub, st.N)
		return
	case doProgramLimit:
		s.limitProgram(sub.program, st.N%4)
		return
	}
	if s.plan.DisableAfter > 0 {
		s.settle() // so that the model knows whether it was disabled
	}
	if !sub.settings.deleted {
		s.doTo(sub, st)
	}
}

// doTo applies a step to a subscription.
func (s *simulation) doTo(sub *modelSubscription, st *step) {
	ctx := context.Background()
	on, off := true, false
	switch st.Do {
	case doPause:
		s.update(sub, func(t *settings) { t.active = false }, &webhook.SubscriptionFields{Active: &off})
	case doResume:
		s.update(sub, func(t *settings) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
	case doChangeURL:
		to := 1 - sub.settings.endpoint
		s.mu.Lock()
		for _, r := range s.unsettled { // a response from an earlier URL counts only for the delivery
			r.earlierURL = r.earlierURL || r.subscription == sub
		}
		s.mu.Unlock()
		s.update(sub, func(t *settings) { t.endpoint = to }, &webhook.SubscriptionFields{URL: &sub.endpoints[to].url})
	case doChangeNames:
		bits := max(1, st.N)
		names := namesOf(bits)
		dropped := sub.settings.names &^ bits
		sub.dropped |= dropped
		s.mu.Lock()
		for _, d := range sub.received {
			d.dropped = d.dropped || !d.ping && !s.requested(d, bits)
		}
		for _, want := range sub.expected { // it may be sent before, or not
			want.uncertain = want.uncertain || dropped&(1<<s.log[want.event].name) != 0
		}
		s.mu.Unlock()
		is := settings{names: bits, below: simulatedBelow[len(s.log)%len(simulatedBelow)]}
		s.update(sub, func(t *settings) { t.names, t.below = is.names, is.below },
			&webhook.SubscriptionFields{Events: &names, Filters: is.filters()})
	case doOrdered:
		ordered := !sub.settings.ordered
		s.update(sub, func(t *settings) { t.ordered = ordered }, &webhook.SubscriptionFields{Ordered: &ordered})
	case doSlots:
		slots, events := st.N%4, st.N/4*3
		s.update(sub, func(t *settings) { t.slots, t.maxEvents = slots, events },
			&webhook.SubscriptionFields{MaxInFlight: &slots, MaxEvents: &events})
	case doDelete:
		s.change(sub, func(t *settings) { t.deleted = true }, func() error {
			_, err := storetest.DeleteSubscription(ctx, s.d.store, sub.program, sub.id)
			return err
		})
	case doRotate:
		s.rotate(sub)
	case doRate:
		rate := []int{0, 1, 10}[st.N%3]
		perSecond := float64(rate)
		s.update(sub, func(t *settings) { t.rate = rate }, &webhook.SubscriptionFields{MaxPerSecond: &perSecond})
	case doPing:
		s.ping(sub, st.NoWait)
	case doRedeliver:
		s.redeliver(sub, st.N)
	case doReplay:
		s.replay(sub, st.N)
	case doCancelReplay:
		s.cancelReplay(sub)
	case doCancel:
		s.cancel(sub, st.N)
	}
}

// allowRefusal checks the error of an operation that the store may refuse.
func (s *simulation) allowRefusal(err error) {
	var refused *webhook.Error
	if errors.As(err, &refused) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unexpected(err)
}

// publish publishes one to five events of a program; n also determines their names.
func (s *simulation) publish(program string, n int) { s.publishSome(program, n, 1+n/2%4) }

// publishSome publishes events of a program in one request; n also determines their names.
func (s *simulation) publishSome(program string, n, count int) {
	var events []webhook.Event
	var fresh []*expectedEvent
	s.mu.Lock()
	counted := s.counted()
	for i := range count {
		which := (n + i) % len(simulatedNames)
		id := webhook.NewID()
		place := len(s.published)
		s.events[id] = place
		s.published = append(s.published, 0)
		logged := loggedEvent{program: program, name: which, n: place / 2 % 3, at: time.Now()}
		s.log = append(s.log, logged)
		events = append(events, webhook.Event{ID: id, Name: simulatedNames[which], ReceivedAt: s.wall(),
			JSON: simulatedJSON(id, simulatedNames[which], logged.n)})
		for _, sub := range s.subs {
			if sub.program == program && !sub.settings.deleted && sub.settings.active && sub.settings.wants(&logged) {
				d := &expectedEvent{event: place, at: time.Now()}
				sub.expected = append(sub.expected, d)
				fresh = append(fresh, d)
			}
		}
	}
	s.mu.Unlock()
	_, err := s.d.store.Events().Publish(context.Background(), program, events)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		for _, e := range events {
			s.published[s.events[e.ID]] = e.Seq
			logged := &s.log[s.events[e.ID]]
			logged.received, logged.counted = e.ReceivedAt, counted
		}
		s.committed()
		return
	}
	s.unexpected(err)
	stored := !s.injected(err) || s.down // as far as can be known
	if !stored {
		for _, e := range events {
			s.refuse(s.events[e.ID])
		}
	}
	for _, sub := range s.subs {
		if !stored { // the event must not be sent
			sub.expected = slices.DeleteFunc(sub.expected, func(d *expectedEvent) bool { return slices.Contains(fresh, d) })
		}
	}
	for _, d := range fresh {
		d.uncertain = true
	}
}

// simulatedJSON returns an event as the API stores it.
func simulatedJSON(id, name string, n int) []byte {
	return fmt.Appendf(nil, `{"id":%q,"timestamp":"2000-01-01T00:00:00Z","name":%q,"version":%q,"n":%d}`, id, name, webhook.EventVersion, n)
}

func (s *simulation) pings(sub *modelSubscription) (n int) {
	for _, d := range sub.received {
		if d.ping {
			n++
		}
	}
	return n
}

func (s *simulation) ping(sub *modelSubscription, noWait bool) {
	s.mu.Lock()
	before, gen := s.pings(sub), s.generation
	s.mu.Unlock()
	go func(st *store.Store) { // a crash may prevent the response
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		st.Subscriptions().Ping(ctx, sub.program, sub.id)
	}(s.d.store)
	if noWait {
		return
	}
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, may := s.faults.active()
	if !may && s.faults.recovered() && s.dial == 0 && !s.down && s.generation == gen && s.inFlight(sub, true) < maxPingsPerQueue &&
		!s.crowded() &&
		s.pings(sub) == before {
		s.violate(promisePing, "subscription %d got no ping", sub.index)
	}
}

func (s *simulation) redeliver(sub *modelSubscription, n int) {
	s.mu.Lock()
	if len(sub.received) == 0 {
		s.mu.Unlock()
		return
	}
	original := sub.received[n%len(sub.received)]
	s.mu.Unlock()
	d, err := storetest.Redeliver(context.Background(), s.d.store, sub.program, sub.id, original.id)
	if s.allowRefusal(err); err == nil {
		at := time.Now()
		if original.ping && s.crowded() {
			at = at.Add(1000 * time.Hour) // pings wait for each other
		}
		s.mu.Lock()
		sub.redeliveries[d.ID] = at
		s.mu.Unlock()
	}
}
