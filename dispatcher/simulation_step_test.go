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
	"service/webhook"
)

// change makes a change of a subscription's terms, first in the model, where
// the old ones are good too until the dispatcher has come to rest.
func (s *simulation) change(h *subject, edit func(*terms), do func() error) {
	s.mu.Lock()
	before, clean := h.now, h.clean
	h.was = append(h.was, before)
	edit(&h.now)
	if h.now.active && !before.active || h.now.place != before.place {
		h.clean = true
	}
	h.changed = time.Now()
	h.recovery, h.resume = recovery{}, time.Time{}
	s.mu.Unlock()
	if err := do(); err != nil {
		s.mu.Lock()
		if !s.failed(err) {
			if s.down {
				h.was = append(h.was, h.now)
			}
			h.now, h.clean = before, h.clean && clean
		}
		s.mu.Unlock()
	}
}

// failed says whether an error is a fault, and not that of a store which has
// been killed. Owns s.mu.
func (s *simulation) failed(err error) bool {
	if err == nil || s.down || s.excused(err) {
		return false
	}
	s.violate(promiseOperates, "%v", err)
	return true
}

func (s *simulation) update(h *subject, edit func(*terms), f *webhook.SubscriptionFields) {
	s.change(h, edit, func() error {
		_, err := s.d.store.Subscriptions().Update(context.Background(), h.program, h.id, f)
		return err
	})
}

func (s *simulation) create(ordered bool, m mode) {
	h := &subject{i: len(s.subs), program: simulatedPrograms[len(s.subs)%s.plan.Programs], now: terms{active: true, ordered: ordered, names: 3}, changed: time.Now(), clean: true, last: &reception{},
		formed: make(map[int]bool), accepted: make(map[int]bool), again: make(map[string]*replaying), copies: make(map[string]time.Time), unseen: make(map[string]bool), sent: make(map[string]*sending)}
	for n := range h.places {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(h.i), byte(n)})
		at := &place{owner: h, n: n, mode: m, subscriber: subscriber{url: "http://" + addr.String() + "/hook", conns: make(chan net.Conn)}}
		h.places[n] = at
		s.world.mu.Lock()
		s.world.subscribers[addr] = &at.subscriber
		s.world.mu.Unlock()
		go func() {
			for c := range at.conns {
				go s.serve(at, c)
			}
		}()
	}
	s.mu.Lock()
	s.subs = append(s.subs, h)
	s.mu.Unlock()
	names := namesOf(h.now.names)
	sub, _, err := s.d.store.Subscriptions().Create(context.Background(), h.program, "u", &webhook.SubscriptionFields{URL: &h.places[0].url, Events: &names, Ordered: &ordered}, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.id = sub.ID; err != nil {
		s.failed(err)
		h.now.deleted = true // nobody was told of it
		h.was = append(h.was, terms{active: true, names: 3})
	}
}

func (s *simulation) do(st *step) {
	h := s.subs[st.Who%len(s.subs)]
	switch st.Do {
	case doPublish:
		s.publish(h.program, st.N)
		return
	case doStorm:
		var publishers sync.WaitGroup
		for i := range 2 + st.N%4 {
			publishers.Go(func() { s.publish(simulatedPrograms[(i+st.Who)%s.plan.Programs], st.N+i) })
		}
		publishers.Wait()
		return
	case doBehave:
		s.mu.Lock()
		h.places[h.now.place].mode = st.Mode
		s.mu.Unlock()
		return
	case doCreate:
		if len(s.subs) < 6+s.plan.Crowd {
			s.create(st.N%2 == 1, modeOK)
		}
		return
	case doCrash:
		// Where a kill finds what is under way is a matter of the scheduler.
		for range st.N * st.N {
			runtime.Gosched()
		}
		s.restart()
		return
	case doCrashOn:
		s.mu.Lock()
		s.trap = true
		s.mu.Unlock()
		return
	case doRestart:
		s.stopAndStart()
		return
	case doFailWrite:
		s.faults.arm(true, st.N*st.Who, st.N%2 == 1)
		return
	case doFailRead:
		s.faults.arm(false, st.N, false)
		return
	case doRecover:
		s.recoverSlowly(h, st.N)
		return
	case doLose:
		s.lose(time.Duration(st.N)*125*time.Millisecond, time.Duration(st.Who)*5*time.Second+600*time.Millisecond)
		return
	case doFill:
		s.faults.fill(time.Duration(st.N) * time.Second)
		return
	case doJump:
		s.jump(simulatedJumps[st.N])
		return
	case doRetain:
		s.retain(h, st.N)
		return
	case doBulk:
		s.bulk(h, st.N)
		return
	}
	if s.plan.DisableAfter > 0 {
		s.rest() // whether it was disabled is known
	}
	if !h.now.deleted {
		s.doTo(h, st)
	}
}

// doTo does a step to a subscription.
func (s *simulation) doTo(h *subject, st *step) {
	ctx := context.Background()
	on, off := true, false
	switch st.Do {
	case doPause:
		s.update(h, func(t *terms) { t.active = false }, &webhook.SubscriptionFields{Active: &off})
	case doResume:
		s.update(h, func(t *terms) { t.active = true }, &webhook.SubscriptionFields{Active: &on})
	case doMove:
		to := 1 - h.now.place
		s.update(h, func(t *terms) { t.place = to }, &webhook.SubscriptionFields{URL: &h.places[to].url})
	case doNames:
		bits := max(1, st.N)
		names := namesOf(bits)
		s.update(h, func(t *terms) { t.names = bits }, &webhook.SubscriptionFields{Events: &names})
	case doOrdered:
		ordered := !h.now.ordered
		s.update(h, func(t *terms) { t.ordered = ordered }, &webhook.SubscriptionFields{Ordered: &ordered})
	case doSlots:
		slots := st.N % 4
		s.update(h, func(t *terms) { t.slots = slots }, &webhook.SubscriptionFields{MaxInFlight: &slots})
	case doDelete:
		s.change(h, func(t *terms) { t.deleted = true }, func() error {
			_, err := s.d.store.Subscriptions().Delete(ctx, h.program, h.id)
			return err
		})
	case doRotate:
		_, _, err := s.d.store.Subscriptions().RotateSecret(ctx, h.program, h.id)
		s.refused(err)
	case doPing:
		s.ping(h, st.Rush)
	case doRedeliver:
		s.redeliver(h, st.N)
	case doReplay:
		s.replay(h, st.N)
	case doCancelReplay:
		s.cancelReplay(h)
	case doCancel:
		s.cancel(h, st.N)
	}
}

// refused takes down the error of an operation that may be refused.
func (s *simulation) refused(err error) {
	var refused *webhook.Error
	if errors.As(err, &refused) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed(err)
}

// publish publishes one to five events of a program, whose names n also says.
func (s *simulation) publish(program string, n int) {
	var events []webhook.Event
	var fresh []*debt
	s.mu.Lock()
	for i := range 1 + n/2%4 {
		which := (n + i) % len(simulatedNames)
		id := webhook.NewID()
		place := len(s.published)
		s.events[id] = place
		s.published = append(s.published, 0)
		s.log = append(s.log, logged{program: program, name: which})
		events = append(events, webhook.Event{ID: id, Name: simulatedNames[which], ReceivedAt: s.wall(), JSON: fmt.Appendf(nil, `{"id":%q,"name":%q}`, id, simulatedNames[which])})
		for _, h := range s.subs {
			if h.program == program && !h.now.deleted && h.now.active && h.now.names&(1<<which) != 0 {
				d := &debt{event: place, at: time.Now()}
				h.debts = append(h.debts, d)
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
			s.log[s.events[e.ID]].received = e.ReceivedAt
		}
		s.committed()
		return
	}
	s.failed(err)
	stored := !s.excused(err) || s.down // as far as can be known
	for _, h := range s.subs {
		if !stored { // and must not be sent
			h.debts = slices.DeleteFunc(h.debts, func(d *debt) bool { return slices.Contains(fresh, d) })
		}
	}
	for _, d := range fresh {
		d.doubt = true
	}
}

func (s *simulation) pings(h *subject) (n int) {
	for _, d := range h.order {
		if d.ping {
			n++
		}
	}
	return n
}

func (s *simulation) ping(h *subject, rush bool) {
	s.mu.Lock()
	before, gen := s.pings(h), s.gen
	s.mu.Unlock()
	go func(st *store.Store) { // a crash may leave it without an answer
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		st.Subscriptions().Ping(ctx, h.program, h.id)
	}(s.d.store)
	if rush {
		return
	}
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	_, may := s.faults.now()
	if !may && s.faults.calm() && s.dial == 0 && !s.down && s.gen == gen && s.inFlight(h, true) < maxPingsPerQueue && s.pings(h) == before {
		s.violate(promisePing, "subscription %d got none", h.i)
	}
}

func (s *simulation) redeliver(h *subject, n int) {
	s.mu.Lock()
	if len(h.order) == 0 {
		s.mu.Unlock()
		return
	}
	id := h.order[n%len(h.order)].id
	s.mu.Unlock()
	d, err := s.d.store.Deliveries().Redeliver(context.Background(), h.program, h.id, id)
	if s.refused(err); err == nil {
		s.mu.Lock()
		h.copies[d.ID] = time.Now()
		s.mu.Unlock()
	}
}
