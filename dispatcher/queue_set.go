package dispatcher

import (
	"math/rand/v2"
	"slices"
	"strings"
)

// queueSet holds the queues that want the events with one store.EventKey, sorted by
// subscription id. In this order their deliveries are neighbors in the tables and
// indexes, so that storing them writes each database page once.
type queueSet struct {
	queues []*subscriptionQueue
	sorted bool // false until the first call of sort; until then add only appends

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
		if n := len(s.queues); n == 0 || s.queues[n-1] != q { // a queue may have several interests in the event
			s.queues = append(s.queues, q)
		}
	} else if i, found := s.find(q.SubscriptionID); !found {
		s.queues = slices.Insert(s.queues, i, q)
	}
}

func (s *queueSet) remove(q *subscriptionQueue) {
	s.sort()
	if i, found := s.find(q.SubscriptionID); found {
		s.queues = slices.Delete(s.queues, i, i+1)
	}
}

// all yields each queue once, starting at a random one, so that the oldest
// subscription does not always get the event first. It may or may not yield queues
// that are added or removed during the iteration.
func (s *queueSet) all(yield func(*subscriptionQueue) bool) {
	if s.len() == 0 {
		return
	}
	s.sort()
	first := s.queues[rand.IntN(len(s.queues))].SubscriptionID
	for _, half := range [...]struct{ from, to string }{{first, ""}, {"", first}} {
		for i, _ := s.find(half.from); i < len(s.queues); {
			q := s.queues[i]
			id := q.SubscriptionID
			if half.to != "" && id >= half.to {
				break
			}
			if !yield(q) {
				return
			}
			if i < len(s.queues) && s.queues[i] == q {
				i++
			} else if at, found := s.find(id); found {
				i = at + 1
			} else {
				i = at
			}
		}
	}
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
