package web

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"service/webhook"
)

// limit is a rate limit: it allows burst tries at once, and one more after each interval.
type limit struct {
	name     string
	burst    int
	interval time.Duration
}

// deviceLimit and sessionLimit limit wrong passwords from a browser that the admin has signed in
// with before. Tries from other browsers do not count against them.
//
// The other limits apply to unknown browsers. addressLimit applies to each network. A network
// within ownLimit, and an IPv6 network also within siteLimit, is not affected by wrong passwords
// from others. Beyond that it shares adminLimit, the limit per admin, with all others: an
// attacker with many addresses gets few guesses.
func addressLimit() limit { return limit{"address", 10, time.Minute} }
func ownLimit() limit     { return limit{"own", 20, 72 * time.Minute} }
func siteLimit() limit    { return limit{"site", 100, 15 * time.Minute} }
func adminLimit() limit   { return limit{"admin", 60, 10 * time.Second} }
func deviceLimit() limit  { return limit{"device", 10, time.Minute} }
func sessionLimit() limit { return limit{"session", 10, time.Minute} }

// limitKey identifies a counter: a limit, and an address, admin, device or session.
type limitKey struct {
	limit limit
	key   string
}

// tryLimiter limits tries by the generic cell rate algorithm (GCRA). Its state is in
// memory: a restart resets it.
type tryLimiter struct {
	start   time.Time // the origin of all times: monotonic, so that a clock change has no effect
	maxKeys int       // per limit

	mu          sync.Mutex
	nextAllowed map[string]map[string]time.Duration // by name of the limit and key: the theoretical arrival time of GCRA
}

// maxLimitKeys bounds the memory of a tryLimiter.
const maxLimitKeys = 10_000

func newTryLimiter(maxKeys int) *tryLimiter {
	return &tryLimiter{start: time.Now(), maxKeys: maxKeys, nextAllowed: make(map[string]map[string]time.Duration)}
}

// allow counts a try against all keys and returns 0. When one of their limits is reached, it
// counts nothing and returns the time to wait.
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

// evictSample is the number of keys that evict samples.
const evictSample = 64

// evict removes the expired keys of a random sample, and at least the one that expires first: the
// keys with the most tries stay the longest.
func evict(all map[string]time.Duration, now time.Duration) {
	first, seen := "", 0
	for key, until := range all {
		if until <= now {
			delete(all, key)
		} else if first == "" || until < all[first] {
			first = key
		}
		if seen++; seen == evictSample {
			break
		}
	}
	if first != "" {
		delete(all, first)
	}
}

// used returns the number of counted tries of a key, at most the burst of its limit.
func (t *tryLimiter) used(k limitKey) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	left := t.nextAllowed[k.limit.name][k.key] - time.Since(t.start)
	return int(max(0, left+k.limit.interval-1) / k.limit.interval)
}

// allowUnknown is allow for a browser that has not signed in as an admin before. rank
// orders browsers that wait for their password to be hashed, lowest first: it is the
// number of wrong passwords from the same site. The caller refunds what was counted if
// the password is right or was not checked.
func (t *tryLimiter) allowUnknown(from netip.Addr, email string) (counted []limitKey, rank int, wait time.Duration) {
	return t.allowUnknownOf("", from, email)
}

// allowUnknownOf is allowUnknown for tries of a kind, which are counted apart from others. key is
// what all beyond their own limits share.
func (t *tryLimiter) allowUnknownOf(kind string, from netip.Addr, key string) (counted []limitKey, rank int, wait time.Duration) {
	network := kind + webhook.Network(from).String()
	address, own := limitKey{addressLimit(), network}, limitKey{ownLimit(), network}
	rank, counted = t.used(own), []limitKey{address, own}
	if from.Is6() {
		// One sender may have many networks of a site. Prefix fails only for an IPv4 address.
		prefix, _ := from.Prefix(siteBits) // fails only for an IPv4 address
		site := limitKey{siteLimit(), kind + prefix.String()}
		rank, counted = max(rank, t.used(site)), append(counted, site)
	}
	if wait = t.allow(counted...); wait == 0 {
		return counted, rank, 0
	}
	counted = []limitKey{address, {adminLimit(), kind + key}}
	return counted, sharedRank, min(wait, t.allow(counted...))
}

const (
	siteBits   = 48  // of an IPv6 address: the size of the network that a provider assigns to one customer
	sharedRank = 100 // of a browser that is within adminLimit only; no other rank is higher
)

// refund takes back tries with the right password, or whose password was not checked.
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

// Limits for password hashing, which is slow by design.
const (
	maxHashes    = 2  // concurrent
	maxHashQueue = 16 // per queue, including running ones
)

// passwordHasher bounds concurrent password hashing and its queues. Unknown devices hash one at a
// time, so that a slot is always free for known ones. They wait in the order of their rank. The
// queue is short, and a lower rank displaces a higher one, so that many browsers with wrong
// passwords do not lock out one without any.
type passwordHasher struct {
	slots      chan struct{}
	knownQueue chan struct{}

	mu      sync.Mutex
	running bool        // an unknown device holds the turn
	waiting []*hashTurn // unknown devices, in the order of arrival

	hashed func() // called after each hash; nil except in tests with fake time, which does not pass while the CPU computes
}

// hashTurn is an unknown device in the queue. ready receives nil when it may hash, or errBusy
// when another displaced it.
type hashTurn struct {
	rank  int
	ready chan error
}

func newPasswordHasher() *passwordHasher {
	return &passwordHasher{slots: make(chan struct{}, maxHashes), knownQueue: make(chan struct{}, maxHashQueue)}
}

// errBusy means that the queue of a passwordHasher is full.
type errBusy struct{}

func (errBusy) Error() string { return "too many passwords are being hashed" }

// knownDevice is the rank of a device that the admin has signed in with before.
const knownDevice = -1

// do calls hash once a slot is free. The error is errBusy when the queue is full, or
// that of the context.
func (h *passwordHasher) do(ctx context.Context, rank int, hash func()) error {
	if rank == knownDevice {
		select {
		case h.knownQueue <- struct{}{}:
			defer func() { <-h.knownQueue }()
		default:
			return errBusy{}
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
	if h.hashed != nil {
		h.hashed()
	}
	return nil
}

// takeTurn waits for the turn of an unknown device. The caller must call endTurn.
func (h *passwordHasher) takeTurn(ctx context.Context, rank int) error {
	t := &hashTurn{rank, make(chan error, 1)}
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
		h.endTurn() // it received its turn at the same moment
	}
	return ctx.Err()
}

// enqueue gives t its turn if no other has it, and otherwise queues it. In a full queue it
// displaces the newest entry with the highest rank, if that is higher than the rank of t.
func (h *passwordHasher) enqueue(t *hashTurn) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running {
		h.running = true
		t.ready <- nil
		return nil
	}
	if len(h.waiting) >= maxHashQueue-1 {
		last := 0
		for i, other := range h.waiting {
			if other.rank >= h.waiting[last].rank {
				last = i
			}
		}
		if h.waiting[last].rank <= t.rank {
			return errBusy{}
		}
		h.waiting[last].ready <- errBusy{}
		h.waiting = slices.Delete(h.waiting, last, last+1)
	}
	h.waiting = append(h.waiting, t)
	return nil
}

// endTurn passes the turn to the oldest entry with the lowest rank.
func (h *passwordHasher) endTurn() {
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

// addressOf returns the address that a request came from; it is invalid when unknown.
func addressOf(r *request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // all unparsable addresses count as one sender
	return a.Addr().Unmap().WithZone("")
}

// addressText returns addressOf in its stored form, "" when unknown.
func addressText(r *request) string {
	if a := addressOf(r); a.IsValid() {
		return a.String()
	}
	return ""
}
