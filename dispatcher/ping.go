package dispatcher

import (
	"container/list"
	"slices"
)

// pingSlots are the slots for pings and the queues that wait for one. Programs take turns. A
// program may have as many pings in flight as there are free slots, so the first program
// gets at most half of the slots and the next at most half of the rest. Dispatcher.mu guards
// its fields.
type pingSlots struct {
	inFlight int
	programs map[string]*programPings // with pings in flight or waiting
	turn     []*programPings          // programs with waiting queues, next first
}

// programPings are the pings of one program.
type programPings struct {
	inFlight int
	waiting  list.List // of *subscriptionQueue with a ping to send, first in, first out
}

// push adds a queue that waits for a slot.
func (s *pingSlots) push(q *subscriptionQueue) {
	p := s.program(q)
	if p.waiting.Len() == 0 {
		s.turn = append(s.turn, p)
	}
	p.waiting.PushBack(q)
}

// next removes and returns the queue that may have the next slot, nil if no slot is
// free or no queue may have it.
func (s *pingSlots) next() *subscriptionQueue {
	free := maxPings - s.inFlight
	if free == 0 {
		return nil
	}
	// Each skipped program has a ping in flight per free slot, so few are skipped.
	for i, p := range s.turn {
		if p.inFlight >= free {
			continue
		}
		q := p.waiting.Remove(p.waiting.Front()).(*subscriptionQueue)
		s.turn = slices.Delete(s.turn, i, i+1)
		if p.waiting.Len() > 0 {
			s.turn = append(s.turn, p)
		} else if p.inFlight == 0 {
			delete(s.programs, q.ProgramID)
		}
		return q
	}
	return nil
}

// acquire takes a slot for a queue that next returned; release returns the slot.
func (s *pingSlots) acquire(q *subscriptionQueue) {
	s.inFlight++
	s.program(q).inFlight++
}

func (s *pingSlots) release(q *subscriptionQueue) {
	s.inFlight--
	p := s.program(q)
	if p.inFlight--; p.inFlight == 0 && p.waiting.Len() == 0 {
		delete(s.programs, q.ProgramID)
	}
}

// program returns the pings of the queue's program.
func (s *pingSlots) program(q *subscriptionQueue) *programPings {
	p := s.programs[q.ProgramID]
	if p == nil {
		p = &programPings{}
		s.programs[q.ProgramID] = p
	}
	return p
}
