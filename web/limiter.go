package web

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"service/webhook"
)

// limit is a rate limit: burst tries at once, and one more after each interval.
type limit struct {
	name     string
	burst    int
	interval time.Duration
}

// addressLimit, adminLimit, deviceLimit and sessionLimit limit wrong passwords. A
// browser that the admin has signed in with before is a known device and has a limit
// of its own, so that others cannot lock the admin out. Unknown browsers are limited
// by their address and by the admin they try to sign in as. Only several addresses
// together can exhaust the latter.
func addressLimit() limit { return limit{"address", 10, time.Minute} }
func adminLimit() limit   { return limit{"admin", 60, 10 * time.Second} }
func deviceLimit() limit  { return limit{"device", 10, time.Minute} }
func sessionLimit() limit { return limit{"session", 10, time.Minute} }

// limitKey is what a try counts against: a limit, and an address, admin, device or
// session.
type limitKey struct {
	limit limit
	key   string
}

// tryLimiter limits tries by the generic cell rate algorithm (GCRA). Its state is in
// memory: a restart resets it.
type tryLimiter struct {
	start   time.Time // the base of all times, so that a clock change has no effect
	maxKeys int       // per limit

	mu          sync.Mutex
	nextAllowed map[string]map[string]time.Duration // by name of the limit and key: the theoretical arrival time of GCRA
}

// maxLimitKeys bounds the memory of a tryLimiter.
const maxLimitKeys = 10_000

func newTryLimiter(maxKeys int) *tryLimiter {
	return &tryLimiter{start: time.Now(), maxKeys: maxKeys, nextAllowed: make(map[string]map[string]time.Duration)}
}

// allow counts a try against all keys and returns 0. When one of their limits is
// reached, it counts nothing and returns how long to wait.
func (t *tryLimiter) allow(tries ...limitKey) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	for _, one := range tries {
		until := max(t.nextAllowed[one.limit.name][one.key], now) + one.limit.interval
		wait = max(wait, until-now-time.Duration(one.limit.burst)*one.limit.interval)
	}
	if wait > 0 {
		return wait
	}
	for _, one := range tries {
		all := t.nextAllowed[one.limit.name]
		if all == nil {
			all = make(map[string]time.Duration)
			t.nextAllowed[one.limit.name] = all
		}
		if _, known := all[one.key]; !known && len(all) >= t.maxKeys {
			evict(all, now)
		}
		all[one.key] = max(all[one.key], now) + one.limit.interval
	}
	return 0
}

// evict removes expired keys, and at least the one that expires first: the keys with
// the most tries stay the longest.
func evict(all map[string]time.Duration, now time.Duration) {
	first := ""
	for key, until := range all {
		if until <= now {
			delete(all, key)
		} else if first == "" || until < all[first] {
			first = key
		}
	}
	if first != "" {
		delete(all, first)
	}
}

// refund takes back tries that were right, or were not made.
func (t *tryLimiter) refund(tries ...limitKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range tries {
		if until, known := t.nextAllowed[one.limit.name][one.key]; known {
			t.nextAllowed[one.limit.name][one.key] = until - one.limit.interval
		}
	}
}

// reset takes back all tries of one key.
func (t *tryLimiter) reset(l limit, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nextAllowed[l.name], key)
}

// The bounds of password hashing, which is slow by design.
const (
	maxHashes    = 2  // at a time
	maxHashQueue = 16 // per queue, running ones included
)

// passwordHasher bounds concurrent password hashing and its queue. Unknown devices
// share one slot, so that the other is always free for known ones.
type passwordHasher struct {
	slots        chan struct{}
	unknownSlots chan struct{} // taken before one of slots

	knownQueue, unknownQueue chan struct{}
}

func newPasswordHasher() *passwordHasher {
	return &passwordHasher{make(chan struct{}, maxHashes), make(chan struct{}, maxHashes-1), make(chan struct{}, maxHashQueue),
		make(chan struct{}, maxHashQueue)}
}

// errBusy means that the queue of a passwordHasher is full.
type errBusy struct{}

func (errBusy) Error() string { return "too many passwords are being hashed" }

// do calls hash once a slot is free. The error is errBusy when the queue is full, or
// that of the context.
func (h *passwordHasher) do(ctx context.Context, known bool, hash func()) error {
	queue, slots := h.unknownQueue, []chan struct{}{h.unknownSlots, h.slots}
	if known {
		queue, slots = h.knownQueue, slots[1:]
	}
	select {
	case queue <- struct{}{}:
		defer func() { <-queue }()
	default:
		return errBusy{}
	}
	for _, slot := range slots {
		select {
		case slot <- struct{}{}:
			defer func() { <-slot }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	hash()
	return nil
}

// addressOf returns the address that a request came from, invalid when unknown.
func addressOf(r *request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // what is no address is one sender
	return a.Addr().Unmap().WithZone("")
}

// networkOf returns the network of addressOf, by which tries are limited.
func networkOf(r *request) string { return webhook.Network(addressOf(r)).String() }

// addressText returns addressOf as it is stored, "" when unknown.
func addressText(r *request) string {
	if a := addressOf(r); a.IsValid() {
		return a.String()
	}
	return ""
}
