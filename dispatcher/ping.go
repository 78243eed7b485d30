package dispatcher

import "slices"

// pingSlots are the slots for pings, and the queues that wait for one. Programs take
// turns, and a program may have as many pings in flight as slots are free. So one
// program gets half of the slots at most, the next half of the rest, and a ping of a
// program that has none in flight finds a slot while fewer than maxPings programs fill
// their shares. Its fields are guarded by Dispatcher.mu.
type pingSlots struct {
	inFlight int
	programs map[string]*programPings // with pings in flight or ready
	turn     []*programPings          // those with a queue in ready, the next first
}

// programPings are the pings of one program.
type programPings struct {
	inFlight int
	ready    runQueue // queues that have a ping to send
}

// push has a queue wait for a slot.
func (s *pingSlots) push(q *subscriptionQueue) {
	p := s.program(q)
	if p.ready.len() == 0 {
		s.turn = append(s.turn, p)
	}
	p.ready.push(q)
}

// next returns the queue that may have the next slot, nil if there is no slot or no
// queue that may have one. It waits no longer.
func (s *pingSlots) next() *subscriptionQueue {
	free := maxPings - s.inFlight
	// Those that are passed have a ping in flight for each free slot: they are few.
	for i, p := range s.turn {
		if p.inFlight >= free {
			continue
		}
		q := p.ready.pop()
		s.turn = slices.Delete(s.turn, i, i+1)
		if p.ready.len() > 0 {
			s.turn = append(s.turn, p)
		} else if p.inFlight == 0 {
			delete(s.programs, q.ProgramID)
		}
		return q
	}
	return nil
}

// begin takes a slot for a queue that next has returned, and end gives it back.
func (s *pingSlots) acquire(q *subscriptionQueue) {
	s.inFlight++
	s.program(q).inFlight++
}

func (s *pingSlots) release(q *subscriptionQueue) {
	s.inFlight--
	p := s.program(q)
	if p.inFlight--; p.inFlight == 0 && p.ready.len() == 0 {
		delete(s.programs, q.ProgramID)
	}
}

// of returns the pings of a queue's program.
func (s *pingSlots) program(q *subscriptionQueue) *programPings {
	p := s.programs[q.ProgramID]
	if p == nil {
		p = &programPings{}
		s.programs[q.ProgramID] = p
	}
	return p
}
