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

// restart starts the dispatcher after its end, or ends it as kill -9 would
// before that: nothing more is stored, whatever it would have stored.
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
	calm := s.faults.recovered()
	s.stop()
	err := <-s.done
	s.mu.Lock()
	if err != nil {
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
	}
	s.uncertain = s.uncertain || !s.settled || !calm || s.dial > 0
	s.nextGeneration()
	s.mu.Unlock()
	s.endBulkRuns()
	s.open()
	s.runDispatcher()
}

// open opens the store again, and notices what a crash has left.
func (s *simulation) open() {
	s.faults.without(func() {
		s.openStore()
		err := s.fenceStore()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unexpected(err)
		s.noteCrashLosses()
	})
	s.workBulkRuns()
}

// notice takes down of which deliveries an attempt was counted and none has
// arrived. Owns s.mu.
func (s *simulation) noteCrashLosses() {
	for _, h := range s.subs {
		if h.id == "" {
			continue // it was killed before it could be told
		}
		stored, err := s.deliveries(h)
		if err != nil && !h.settings.deleted {
			s.violate(promiseOperates, "%v", err)
		}
		for id, d := range stored {
			if m := h.byID[id]; m == nil {
				h.lostArrivals[id] = h.lostArrivals[id] || d.AttemptsMade > 0
			} else if d.AttemptsMade > len(m.attempts) {
				m.uncertain, s.uncertain = true, true
			}
		}
	}
}

// next begins the next generation. Owns s.mu.
func (s *simulation) nextGeneration() {
	s.generation++
	s.startedAt = time.Now()
	s.down = false
	s.unsettled = nil
	s.forgetJump()
	for _, h := range s.subs {
		h.recovery, h.throttled, h.pausedUntil = recovery{}, false, time.Time{}
	}
	select {
	case <-s.killed:
	default:
	}
	if s.uncertain {
		for _, h := range s.subs {
			for _, d := range h.received {
				d.uncertain = d.uncertain || d.unfinished()
			}
		}
	}
}

// stopAndStart ends the dispatcher and the store as a shutdown does, and starts
// them again.
func (s *simulation) stopAndStart() {
	s.mu.Lock()
	s.crashed = true
	pending := s.changes.pending > 0
	s.mu.Unlock()
	if pending { // the store is closed after those who use it
		s.changes.end()
		synctest.Wait()
	}
	s.stop()
	err := <-s.done
	calm := s.faults.recovered()
	s.endBulkRuns()
	s.faults.without(func() {
		if e := s.d.store.Close(); err == nil {
			err = e
		}
	})
	s.mu.Lock()
	s.unexpected(err)
	s.uncertain = s.uncertain || !calm || s.dial > 0 // an attempt may wait for its subscription to be read
	s.nextGeneration()
	s.mu.Unlock()
	s.open()
	s.runDispatcher()
}
