package dispatcher

import "time"

// simulatedJumps are jumps of the wall clock.
var simulatedJumps = [...]time.Duration{
	time.Hour, -time.Hour, 26 * time.Hour, 3 * 24 * time.Hour, 10 * time.Minute, -10 * time.Minute, -26 * time.Hour, 5 * time.Hour,
}

// simulatedStep is the maximum that retention counts of one jump.
const simulatedStep = 10 * time.Minute

// counted returns the latest time that retention may count: the store does not notice a jump that is
// undone before a commit. The caller holds s.mu.
func (s *simulation) counted() time.Time { return time.Now().Add(s.steps) }

// wall returns the wall clock. It must not be used to measure waits, which follow
// the monotonic clock.
func (s *simulation) wall() time.Time {
	return time.Now().Round(0).Add(time.Duration(s.clockOffset.Load()))
}

// jump sets the wall clock.
func (s *simulation) jump(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clockOffset.Add(int64(by))
	s.jumpUnsaved, s.jumped = true, true
	s.steps += min(max(by, 0), simulatedStep)
}

// committed notes that the store has made a commit since the last jump, which
// shifted its deadlines. The caller holds s.mu.
func (s *simulation) committed() {
	if _, may := s.faults.active(); !may {
		s.jumpUnsaved = false
	}
}

// forgetJump permits waiting attempts at any time after a restart, if the store could not
// notice a jump before it: the next start takes the jump for elapsed time. The caller holds
// s.mu.
func (s *simulation) forgetJump() {
	if !s.jumpUnsaved {
		return
	}
	s.jumpUnsaved = false
	for _, sub := range s.subs {
		for _, d := range sub.received {
			d.anyTime = d.anyTime || d.unfinished()
		}
		for id := range sub.redeliveries {
			if sub.byID[id] == nil {
				sub.redeliveries[id] = time.Now().Add(1000 * time.Hour)
			}
		}
	}
}
