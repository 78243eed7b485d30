package dispatcher

import (
	"fmt"
	"slices"
	"testing"

	"service/store"

	"service/test/seed"
)

// all yields each queue once, ordered by ID from a random start, whatever was added
// and removed before.
func TestSubscribersInOrder(t *testing.T) {
	rng := seed.Rand(t)
	var s queueSet
	queues := make([]*subscriptionQueue, 200)
	for i := range queues {
		queues[i] = &subscriptionQueue{Queue: &store.Queue{SubscriptionID: fmt.Sprintf("%03d", i)}}
	}
	for _, i := range rng.Perm(len(queues)) {
		s.add(queues[i])
		s.add(queues[i])
	}
	in := slices.Repeat([]bool{true}, len(queues))
	for range 500 {
		if i := rng.IntN(len(queues)); in[i] {
			s.remove(queues[i])
			in[i] = false
		} else {
			s.add(queues[i])
			in[i] = true
		}
		var got []string
		for q := range s.all {
			got = append(got, q.SubscriptionID)
		}
		begin := slices.Index(got, slices.Min(got))
		got = slices.Concat(got[begin:], got[:begin])
		var want []string
		for i, in := range in {
			if in {
				want = append(want, queues[i].SubscriptionID)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// Queues are added and removed during an iteration. Those that stay are yielded
// once.
func TestSubscribersChangeDuringIteration(t *testing.T) {
	rng := seed.Rand(t)
	for range 200 {
		var s queueSet
		var queues []*subscriptionQueue
		for i := range 60 {
			queues = append(queues, &subscriptionQueue{Queue: &store.Queue{SubscriptionID: fmt.Sprintf("%02d", i)}})
		}
		for _, q := range queues[:40] {
			s.add(q)
		}
		stays := slices.Repeat([]bool{true}, 40)
		seen := make(map[*subscriptionQueue]int)
		for q := range s.all {
			seen[q]++
			if i := rng.IntN(len(queues)); i >= 40 {
				s.add(queues[i])
			} else if stays[i] {
				s.remove(queues[i])
				stays[i] = false
			}
		}
		for i, q := range queues {
			if n := seen[q]; n > 1 || n == 0 && i < 40 && stays[i] {
				t.Fatalf("queue %d was yielded %d times, want once", i, n)
			}
		}
	}
}

// Each queue is the first for some iteration.
func TestSubscribersRandomStart(t *testing.T) {
	var s queueSet
	for i := range 4 {
		s.add(&subscriptionQueue{Queue: &store.Queue{SubscriptionID: fmt.Sprint(i)}})
	}
	first := make(map[string]bool)
	for range 1_000 {
		for q := range s.all {
			first[q.SubscriptionID] = true
			break
		}
	}
	if len(first) != 4 {
		t.Errorf("got %v, want each of 4 to be the first", first)
	}
}
