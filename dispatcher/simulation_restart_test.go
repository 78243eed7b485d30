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
		if s.rested {
			s.audit(false)
		}
		s.d.store.Close()
	}
	calm := s.faults.calm()
	s.stop()
	err := <-s.done
	s.mu.Lock()
	if err != nil {
		s.violate(promiseOperates, "the dispatcher ended with %v", err)
	}
	s.trapped = s.trapped || !s.rested || !calm || s.dial > 0
	s.next()
	s.mu.Unlock()
	s.endBulkRuns()
	s.open()
	s.operate()
}

// open opens the store again, and notices what a crash has left.
func (s *simulation) open() {
	s.faults.without(func() {
		s.prepare()
		err := s.fence()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed(err)
		s.notice()
	})
	s.workBulkRuns()
}

// notice takes down of which deliveries an attempt was counted and none has
// arrived. Owns s.mu.
func (s *simulation) notice() {
	for _, h := range s.subs {
		if h.id == "" {
			continue // it was killed before it could be told
		}
		stored, err := s.deliveries(h)
		if err != nil && !h.now.deleted {
			s.violate(promiseOperates, "%v", err)
		}
		for id, d := range stored {
			if m := h.sent[id]; m == nil {
				h.unseen[id] = h.unseen[id] || d.AttemptsMade > 0
			} else if d.AttemptsMade > len(m.came) {
				m.vague, s.trapped = true, true
			}
		}
	}
}

// next begins the next generation. Owns s.mu.
func (s *simulation) next() {
	s.gen++
	s.begun = time.Now()
	s.down = false
	s.unsettled = nil
	s.forgetJump()
	for _, h := range s.subs {
		h.recovery, h.paced, h.resume = recovery{}, false, time.Time{}
	}
	select {
	case <-s.killed:
	default:
	}
	if s.trapped {
		for _, h := range s.subs {
			for _, d := range h.order {
				d.vague = d.vague || d.unfinished()
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
	calm := s.faults.calm()
	s.endBulkRuns()
	s.faults.without(func() {
		if e := s.d.store.Close(); err == nil {
			err = e
		}
	})
	s.mu.Lock()
	s.failed(err)
	s.trapped = s.trapped || !calm || s.dial > 0 // an attempt may wait for its subscription to be read
	s.next()
	s.mu.Unlock()
	s.open()
	s.operate()
}
