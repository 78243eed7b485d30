// Package hashing bounds the hashing of passwords, which is slow by design: how many are hashed at a
// time, and how many wait for it.
package hashing

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// Limits of a Queue.
const (
	MaxHashes = 2  // concurrent
	MaxQueue  = 16 // per queue, including running ones
)

// Queue bounds concurrent password hashing and its queues. Unknown devices hash one at a
// time, so that a slot is always free for known devices. They wait in the order of their rank. The
// queue is short, and a lower rank displaces a higher one, so that many browsers with wrong
// passwords do not lock out a browser without any.
type Queue struct {
	slots      chan struct{}
	knownQueue chan struct{}

	mu      sync.Mutex
	running bool    // an unknown device holds the turn
	waiting []*turn // unknown devices, in the order of arrival

	Hashed func() // called after each hash; nil except in tests, whose fake time does not pass during computation
}

// turn is an unknown device in the queue. ready receives nil when the device may hash, or
// ErrBusy if another displaced it.
type turn struct {
	rank  int
	ready chan error
}

// New returns an empty queue.
func New() *Queue {
	return &Queue{slots: make(chan struct{}, MaxHashes), knownQueue: make(chan struct{}, MaxQueue)}
}

// ErrBusy means that the queue is full.
var ErrBusy = errors.New("too many passwords are being hashed")

// KnownDevice is the rank of a device that the admin has signed in with before.
const KnownDevice = -1

// Do calls hash once a slot is free. The error is ErrBusy if the queue is full, or the context's
// error.
func (h *Queue) Do(ctx context.Context, rank int, hash func()) error {
	if rank == KnownDevice {
		select {
		case h.knownQueue <- struct{}{}:
			defer func() { <-h.knownQueue }()
		default:
			return ErrBusy
		}
	} else {
		if err := h.takeTurn(ctx, rank); err != nil {
			return err
		}
		defer h.endTurn()
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	hash()
	if h.Hashed != nil {
		h.Hashed()
	}
	return nil
}

// takeTurn waits for the turn of an unknown device. The caller must call endTurn.
func (h *Queue) takeTurn(ctx context.Context, rank int) error {
	t := &turn{rank, make(chan error, 1)}
	if err := h.enqueue(t); err != nil {
		return err
	}
	select {
	case err := <-t.ready:
		return err
	case <-ctx.Done():
	}
	h.mu.Lock()
	i := slices.Index(h.waiting, t)
	if i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	}
	h.mu.Unlock()
	if i < 0 && <-t.ready == nil {
		h.endTurn() // t received its turn at the same moment
	}
	return ctx.Err()
}

// enqueue gives t the turn if no other device has it, and otherwise queues t. In a full queue t
// displaces the newest entry with the highest rank, if that rank is higher than t's.
func (h *Queue) enqueue(t *turn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running {
		h.running = true
		t.ready <- nil
		return nil
	}
	if len(h.waiting) >= MaxQueue-1 {
		last := 0
		for i, other := range h.waiting {
			if other.rank >= h.waiting[last].rank {
				last = i
			}
		}
		if h.waiting[last].rank <= t.rank {
			return ErrBusy
		}
		h.waiting[last].ready <- ErrBusy
		h.waiting = slices.Delete(h.waiting, last, last+1)
	}
	h.waiting = append(h.waiting, t)
	return nil
}

// endTurn passes the turn to the oldest entry with the lowest rank.
func (h *Queue) endTurn() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.running = len(h.waiting) > 0; !h.running {
		return
	}
	first := 0
	for i, other := range h.waiting {
		if other.rank < h.waiting[first].rank {
			first = i
		}
	}
	h.waiting[first].ready <- nil
	h.waiting = slices.Delete(h.waiting, first, first+1)
}
