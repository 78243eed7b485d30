package dispatcher

import (
	"context"
	"slices"
	"time"

	"pgregory.net/rapid"

	"service/store"
	"service/webhook"
)

// The operations that arrange puts between the other steps of a plan.
const (
	doRepeat     operation = "publish an earlier event again"
	doPublishBig operation = "publish ten or a hundred events"
	doErase      operation = "erase a program"
	doBringBack  operation = "export, erase and import a program"
	doBootWrong  operation = "crash, and start with a wrong clock"
	doDamage     operation = "make a record unusable for a while"
	doHold       operation = "make all receivers of a program slow"
)

// faultKinds are the operations that inject faults. A plan leaves out some of the kinds.
var faultKinds = [...][]operation{
	{doCrash, doCrashOn, doRestart, doBootWrong},
	{doFailWrite, doFailRead, doFailCommits, doRecover, doDamage},
	{doJumpClock, doBootWrong},
	{doLoseLease},
	{doBehave, doHold},
}

// extra is a step that is played before the step at a place.
type extra struct {
	Place int // modulo the number of steps
	step
}

// extras draws the extra steps of a plan.
func extras() *rapid.Generator[[]extra] {
	one := rapid.Custom(func(t *rapid.T) extra {
		return extra{Place: rapid.IntRange(0, 31).Draw(t, "place"), step: step{
			Do: rapid.SampledFrom([]operation{doRepeat, doPublishBig, doHold, doRepeat, doBootWrong, doDamage, doErase, doBringBack}).
				Draw(t, "do"),
			Subscription: rapid.IntRange(0, 5).Draw(t, "subscription"),
			N:            rapid.IntRange(0, 7).Draw(t, "n"),
			NoWait:       rapid.Bool().Draw(t, "no wait"),
		}}
	})
	return rapid.SliceOfN(one, 0, 3)
}

// arrange puts the extra steps into the groups of a plan, without the faults that the plan leaves
// out.
func (p *plan) arrange(more []extra, without []bool) {
	total := 0
	for _, group := range p.Steps {
		total += len(group)
	}
	for _, x := range more {
		place := x.Place % (total + 1)
		for i, group := range p.Steps {
			if place <= len(group) {
				p.Steps[i] = slices.Insert(group, place, x.step)
				break
			}
			place -= len(group)
		}
	}
	for kind, off := range without {
		for i := range p.Steps {
			p.Steps[i] = slices.DeleteFunc(p.Steps[i], func(s step) bool { return off && slices.Contains(faultKinds[kind], s.Do) })
		}
	}
}

// playExtra plays an extra step. It returns false if the step is not an extra one.
func (s *simulation) playExtra(sub *modelSubscription, st *step) bool {
	switch st.Do {
	case doRepeat:
		s.repeat(sub.program, st.N)
	case doPublishBig:
		s.publishSome(sub.program, st.N, []int{10, 100}[st.N%2])
	case doEraseEvents:
		s.eraseEvents(sub.program, st.N, st.NoWait)
	case doErase:
		s.erase(sub.program)
	case doBringBack:
		s.bringBack(sub.program)
	case doBootWrong:
		s.jump(simulatedJumps[st.N])
		s.restart()
	case doDamage:
		s.damage(sub)
	case doHold:
		s.mu.Lock()
		for _, other := range s.subs {
			if other.program == sub.program {
				other.endpoints[other.settings.endpoint].mode = modeSlow
			}
		}
		s.mu.Unlock()
	default:
		return false
	}
	return true
}

// repeat publishes an event that is already in the log: nothing may follow.
func (s *simulation) repeat(program string, n int) {
	s.mu.Lock()
	var known []int
	for i, e := range s.log {
		if e.program == program && s.published[i] > 0 && e.counted.After(s.changes.removedBefore) {
			known = append(known, i)
		}
	}
	removing := s.changes.pending > 0
	s.mu.Unlock()
	if len(known) == 0 || removing {
		return
	}
	place := known[n*len(known)/8]
	s.mu.Lock()
	id := s.eventID(place)
	s.mu.Unlock()
	name := simulatedNames[s.log[place].name]
	added, err := s.d.store.Events().Publish(context.Background(), program, []webhook.Event{
		{ID: id, Name: name, ReceivedAt: s.wall(), TimestampGiven: true, JSON: simulatedJSON(id, name, s.log[place].n)}})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unexpected(err); err == nil && added > 0 {
		s.violate(promiseOnce, "event %d of %s was added again", place, program)
	}
}

// erase erases a program, with its subscriptions, and creates it again without any.
func (s *simulation) erase(program string) {
	if !s.ready() {
		return
	}
	s.faults.without(func() {
		s.mu.Lock()
		for _, sub := range s.subs {
			if sub.program == program && !sub.settings.deleted {
				sub.previous = append(sub.previous, sub.settings)
				sub.settings.deleted = true
				sub.changedAt = time.Now()
			}
		}
		s.forget(program)
		s.mu.Unlock()
		if s.eraseStored(program) {
			s.must(s.d.store.Write(context.Background(), func(w store.Write) error {
				_, _, err := w.Programs().Put(program, &webhook.ProgramFields{}, webhook.AuditEntry{})
				return err
			}))
		}
	})
}

// ready waits until the dispatcher is idle, and reports whether the store works, and neither
// retention nor a bulk run is running.
func (s *simulation) ready() bool {
	s.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet() && !s.crashOnArrival && s.changes.pending == 0 && len(s.changes.runs) == 0 && s.violation == nil
}

// forget makes the model forget the events, pulls and limit of a program. The caller holds s.mu.
func (s *simulation) forget(program string) {
	for i := range s.log {
		if s.log[i].program == program {
			s.log[i].program = ""
		}
	}
	delete(s.limits, program)
	s.forgetPulls(program)
}

// must records an error as a violation.
func (s *simulation) must(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unexpected(err)
}

// eraseStored erases a program in the store, and waits until the store contains nothing of it.
func (s *simulation) eraseStored(program string) bool {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	st := s.d.store
	err := st.Write(ctx, func(w store.Write) error {
		_, err := w.Programs().Erase(program, webhook.AuditEntry{})
		return err
	})
	if s.must(err); err != nil {
		return false
	}
	if !s.housekeeps {
		go st.Housekeep(ctx)
	}
	for range 40 {
		s.sleep(time.Second)
		if s.isDown() || s.d.store != st {
			return false
		}
		if !st.Programs().Hidden(program) {
			return true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.violate(promiseEnds, "program %s is not erased", program)
	return false
}

// bringBack exports a program, erases it and imports it, while it has nothing in flight. Waiting
// work continues from where it was.
func (s *simulation) bringBack(program string) {
	if !s.ready() || s.jumped || s.withTrace(program) { // records of the future are not imported
		return
	}
	s.faults.without(func() {
		programs := s.d.store.Programs()
		x, err := programs.Export(context.Background(), program, 0)
		if s.must(err); err != nil {
			return
		}
		defer x.Remove()
		away := s.takeAway(program)
		if !s.eraseStored(program) {
			return
		}
		s.giveBack(away) // the import sends before it returns
		policy := s.plan.policy()
		_, err = programs.Import(context.Background(), &store.ProgramImport{Path: x.Path, Key: x.Key, ProgramID: program, Retry: &policy})
		s.must(err)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sub := range away {
			sub.changedAt = time.Now()
		}
	})
}

// withTrace reports whether an attempt of a program is in flight, or the model knows too
// little about one of its subscriptions.
func (s *simulation) withTrace(program string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dial > 0 { // one may be connecting
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		if s.d.credits.Taken()+s.d.pings.inFlight > 0 {
			return true
		}
	}
	return slices.ContainsFunc(s.subs, func(sub *modelSubscription) bool {
		return sub.program == program && (sub.id == "" || s.inFlight(sub, false)+s.inFlight(sub, true) > 0)
	})
}

// takeAway forbids the model to send anything to the subscriptions of a program, and returns the
// subscriptions that have received something.
func (s *simulation) takeAway(program string) (away []*modelSubscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.program == program && !sub.settings.deleted {
			sub.settings.deleted = true
			away = append(away, sub)
		}
	}
	return away
}

// giveBack undoes takeAway. The dispatcher's state in memory is lost.
func (s *simulation) giveBack(away []*modelSubscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range away {
		sub.settings.deleted = false
		sub.quickAt = time.Time{}
		sub.recovery, sub.throttled, sub.pausedUntil = recovery{}, false, time.Time{}
		for _, d := range sub.received {
			d.anyTime = d.anyTime || d.unfinished()
		}
	}
}

// damage makes the record of a subscription unusable for a while: only its own deliveries may wait.
func (s *simulation) damage(sub *modelSubscription) {
	if !s.ready() || sub.settings.deleted || sub.id == "" {
		return
	}
	s.faults.without(func() {
		whole := s.swapSecret(sub.id, make([]byte, 60))
		description := "changed"
		s.update(sub, func(*settings) {}, &webhook.SubscriptionFields{Description: &description})
		s.sleep(5 * time.Second)
		s.swapSecret(sub.id, whole)
		s.sleep(suspendTime + time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		sub.changedAt = time.Now()
	})
}

// crowds selects the plans with a crowd of additional subscriptions.
var crowds = [64]bool{63: true}

const crowd = 100

// addCrowd adds a crowd of slow subscriptions, for three connections, to a plan.
func (p *plan) addCrowd() {
	p.Connections, p.MoreSubscriptions = 3, crowd
	for i := range p.Subscriptions[1:] {
		p.Subscriptions[1+i].Mode = modeSlow
	}
}

// crowded reports whether the plan has so many subscriptions that their pings wait for each other.
func (s *simulation) crowded() bool { return s.plan.MoreSubscriptions >= crowd }

// checkShare checks that a quick subscription does not wait longer for scarce slots than its share
// demands, counted from its last request, while nothing of its own makes it wait. The caller holds
// s.mu.
func (s *simulation) checkShare(sub *modelSubscription, now time.Time) {
	t := &sub.settings
	if !t.active || t.rate > 0 || sub.throttled || sub.failing || !sub.noFailures && s.plan.hasBreaker() || s.uncertain ||
		sub.dropped != 0 || s.limits[sub.program] != (programLimit{}) || !s.quick(sub) {
		return
	}
	since := sub.quickAt
	for _, at := range []time.Time{sub.changedAt, s.startedAt, s.leaseRenewedAt, s.faults.last()} {
		if at.After(since) {
			since = at
		}
	}
	turns := (s.plan.Programs+s.plan.Connections-1)/s.plan.Connections + len(s.subs)/64
	within := 2*attemptTimeout*time.Duration(turns) + s.plan.Window + slack
	for _, d := range sub.received {
		if d.mayWait() && t.ordered {
			return // the delivery before waits for its retry
		}
	}
	for _, want := range sub.expected {
		if !want.arrived && !want.uncertain && !want.mayBeRemoved && now.After(want.at.Add(within)) && now.After(since.Add(within)) {
			s.violate(promiseServed, "subscription %d: event %d, accepted at %s, was not sent by %s, with %d connections; its queue: %s",
				sub.index, want.event, sinceStart(want.at), sinceStart(now), s.plan.Connections, s.queueOf(sub))
		}
	}
}
