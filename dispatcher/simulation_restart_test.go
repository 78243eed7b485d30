package dispatcher

import (
	"testing/synctest"
	"time"
)

func (s *simulation) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.down
}

// restart starts the dispatcher if it was killed, otherwise it first kills it like
// kill -9: nothing more is stored.
func (s *simulation) restart() {
	s.mu.Lock()
	down := s.down
	s.down, s.crashed = true, true
	s.mu.Unlock()
	if !down {
		if s.settled {
			s.audit(false)
		}
		s.d.store.Close()
	}
	s.stopPulls()
	recovered := s.faults.recovered()
	s.stop()
	err := <-s.done
	s.mu.Lock()
	if err != nil {
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
	}
	s.uncertain = s.uncertain || !s.settled || !recovered || s.dial > 0
	s.nextGeneration()
	s.mu.Unlock()
	s.endBulkRuns()
	s.open()
	s.runDispatcher()
}

// open opens the store and notes the effects of a crash.
func (s *simulation) open() {
	s.faults.without(func() {
		s.openStore()
		err := s.fenceStore()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unexpected(err)
		s.noteCrashLosses()
		s.learnErasures()
	})
	s.startPulls()
	s.workBulkRuns()
}

// noteCrashLosses records the deliveries with a counted attempt that no server received. The
// caller holds s.mu.
func (s *simulation) noteCrashLosses() {
	for _, sub := range s.subs {
		if sub.id == "" {
			continue // the service was killed before it returned the ID
		}
		stored, err := s.deliveries(sub.program, sub.id)
		if err != nil && !sub.settings.deleted {
			s.violate(promiseOperates, "%v", err)
		}
		for id, d := range stored {
			if m := sub.byID[id]; m == nil {
				sub.lostArrivals[id] = sub.lostArrivals[id] || d.AttemptsMade > 0
			} else if d.AttemptsMade > len(m.attempts) {
				m.uncertain, s.uncertain = true, true
			}
		}
	}
}

// nextGeneration resets the state that a restart loses. The caller holds s.mu.
func (s *simulation) nextGeneration() {
	s.generation++
	s.startedAt = time.Now()
	s.down = false
	s.unsettled, s.unended = nil, nil
	s.forgetJump()
	for _, sub := range s.subs {
		sub.recovery, sub.throttled, sub.pausedUntil = recovery{}, false, time.Time{}
	}
	select {
	case <-s.killed:
	default:
	}
	if s.uncertain {
		for _, sub := range s.subs {
			for _, d := range sub.received {
				d.uncertain = d.uncertain || d.unfinished()
			}
		}
	}
}

// stopAndStart shuts the dispatcher and the store down gracefully and starts them
// again.
func (s *simulation) stopAndStart() {
	s.mu.Lock()
	s.crashed = true
	pending := s.changes.pending > 0
	s.mu.Unlock()
	if pending { // end the users of the store before it is closed
		s.changes.end()
		synctest.Wait()
	}
	s.stop()
	err := <-s.done
	recovered := s.faults.recovered()
	s.endBulkRuns()
	s.stopPulls()
	s.faults.without(func() {
		if e := s.d.store.Close(); err == nil {
			err = e
		}
	})
	s.mu.Lock()
	s.unexpected(err)
	s.uncertain = s.uncertain || !recovered || s.dial > 0 // an attempt may wait for its subscription to be read
	s.nextGeneration()
	s.mu.Unlock()
	s.open()
	s.runDispatcher()
}
