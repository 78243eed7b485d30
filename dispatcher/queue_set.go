package dispatcher

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// queueSet contains the queues that select the events of one watch.EventKey, sorted by
// subscription ID. In this order their deliveries are neighbors in the tables and indexes,
// so that storing them writes each database page once.
type queueSet struct {
	name   string // of the events; the queues' interests have the same bytes, so that comparing them reads nothing
	queues []*subscriptionQueue
	sorted bool // false until the first call of sort; until then add only appends

	changes int // how often a queue was added or removed since the last sort

	examined int64 // how far the events of the key were examined for filters
}

func (s *queueSet) len() int {
	if s == nil {
		return 0
	}
	return len(s.queues)
}

func (s *queueSet) add(q *subscriptionQueue) {
	if !s.sorted {
		if n := len(s.queues); n == 0 || s.queues[n-1] != q { // several interests of a queue may select the event
			s.queues = append(s.queues, q)
		}
	} else if i, found := s.find(q.SubscriptionID); !found {
		s.queues = slices.Insert(s.queues, i, q)
		s.changes++
	}
}

func (s *queueSet) remove(q *subscriptionQueue) {
	s.sort()
	if i, found := s.find(q.SubscriptionID); found {
		s.queues = slices.Delete(s.queues, i, i+1)
		s.changes++
	}
}

// all yields each queue once, starting at a random one, so that the oldest subscription is
// not always the first to get the event. It may or may not yield queues that are added or
// removed during the iteration.
func (s *queueSet) all(yield func(*subscriptionQueue) bool) {
	if s.len() == 0 {
		return
	}
	s.sort()
	first := s.queues[rand.IntN(len(s.queues))].SubscriptionID
	for _, half := range [...]struct{ from, to string }{{first, ""}, {"", first}} {
		i, end, changes := s.from(half.from), s.to(half.to), s.changes
		for i < end {
			q := s.queues[i]
			if !yield(q) {
				return
			}
			i++
			if s.changes != changes {
				i, end, changes = s.from(q.SubscriptionID), s.to(half.to), s.changes
				if i < end && s.queues[i] == q {
					i++
				}
			}
		}
	}
}

// from returns the index of the first queue that all yields, starting at an ID.
func (s *queueSet) from(id string) int {
	i, _ := s.find(id)
	return i
}

// to returns the index at which all ends before an ID; "" stands for the end of the set.
func (s *queueSet) to(id string) int {
	if id == "" {
		return len(s.queues)
	}
	return s.from(id)
}

func (s *queueSet) sort() {
	if !s.sorted {
		slices.SortFunc(s.queues, func(a, b *subscriptionQueue) int { return strings.Compare(a.SubscriptionID, b.SubscriptionID) })
		s.sorted = true
	}
}

// find returns the index at which the queue of a subscription is, or would be
// inserted.
func (s *queueSet) find(id string) (int, bool) {
	return slices.BinarySearchFunc(s.queues, id, func(q *subscriptionQueue, id string) int { return strings.Compare(q.SubscriptionID, id) })
}
