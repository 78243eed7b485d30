package web

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"service/internal/ratelimit"
	"service/webhook"
)

// deviceLimit and sessionLimit limit wrong passwords from a browser that the admin has signed in
// with before. Tries from other browsers do not count against them.
//
// The other limits apply to unknown browsers. addressLimit applies per network. Wrong passwords
// from other networks do not affect a network within ownLimit, nor an IPv6 network also within
// siteLimit. Beyond that, a network shares adminLimit, the limit per admin, with all others: an
// attacker with many addresses gets few guesses.
var (
	addressLimit = ratelimit.Limit{Name: "address", Burst: 10, Interval: time.Minute}
	ownLimit     = ratelimit.Limit{Name: "own", Burst: 20, Interval: 72 * time.Minute}
	siteLimit    = ratelimit.Limit{Name: "site", Burst: 100, Interval: 15 * time.Minute}
	adminLimit   = ratelimit.Limit{Name: "admin", Burst: 60, Interval: 10 * time.Second}
	deviceLimit  = ratelimit.Limit{Name: "device", Burst: 10, Interval: time.Minute}
	sessionLimit = ratelimit.Limit{Name: "session", Burst: 10, Interval: time.Minute}
)

// maxLimitKeys bounds the memory of a limiter.
const maxLimitKeys = 10_000

// allowUnknown is [ratelimit.Limiter.Allow] for a browser that has not signed in as an admin
// before. rank orders browsers that wait for their password to be hashed, lowest first: it is the
// number of wrong passwords from the same site. The caller refunds counted if the password is right
// or was not checked.
func allowUnknown(t *ratelimit.Limiter, from netip.Addr, email string) (counted []ratelimit.Try, rank int, wait time.Duration) {
	return allowUnknownOf(t, "", from, email)
}

// allowUnknownOf is allowUnknown for tries of a kind, which count separately. All browsers beyond
// their own limits share key.
func allowUnknownOf(
	t *ratelimit.Limiter, kind string, from netip.Addr, key string,
) (counted []ratelimit.Try, rank int, wait time.Duration) {
	network := kind + webhook.Network(from).String()
	address, own := ratelimit.Try{Limit: addressLimit, Key: network}, ratelimit.Try{Limit: ownLimit, Key: network}
	rank, counted = t.Used(own), []ratelimit.Try{address, own}
	if from.Is6() {
		// One sender may have many networks of a site. Prefix fails only for an IPv4 address.
		prefix, _ := from.Prefix(siteBits) // fails only for an IPv4 address
		site := ratelimit.Try{Limit: siteLimit, Key: kind + prefix.String()}
		rank, counted = max(rank, t.Used(site)), append(counted, site)
	}
	if wait = t.Allow(counted...); wait == 0 {
		return counted, rank, 0
	}
	counted = []ratelimit.Try{address, {Limit: adminLimit, Key: kind + key}}
	return counted, sharedRank, min(wait, t.Allow(counted...))
}

const (
	siteBits   = 48  // of an IPv6 address: the network that a provider assigns to one customer
	sharedRank = 100 // of a browser that is only within adminLimit; no rank is higher
)

// Limits for password hashing, which is slow by design.
const (
	maxHashes    = 2  // concurrent
	maxHashQueue = 16 // per queue, including running ones
)

// passwordHasher bounds concurrent password hashing and its queues. Unknown devices hash one at a
// time, so that a slot is always free for known devices. They wait in the order of their rank. The
// queue is short, and a lower rank displaces a higher one, so that many browsers with wrong
// passwords do not lock out a browser without any.
type passwordHasher struct {
	slots      chan struct{}
	knownQueue chan struct{}

	mu      sync.Mutex
	running bool        // an unknown device holds the turn
	waiting []*hashTurn // unknown devices, in the order of arrival

	hashed func() // called after each hash; nil except in tests, whose fake time does not pass during computation
}

// hashTurn is an unknown device in the queue. ready receives nil when the device may hash, or
// errBusy if another displaced it.
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

// do calls hash once a slot is free. The error is errBusy if the queue is full, or the context's
// error.
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
		h.endTurn() // t received its turn at the same moment
	}
	return ctx.Err()
}

// enqueue gives t the turn if no other device has it, and otherwise queues t. In a full queue t
// displaces the newest entry with the highest rank, if that rank is higher than t's.
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
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // all unparsable addresses share one limit
	return a.Addr().Unmap().WithZone("")
}

// addressText returns addressOf in its stored form, "" if unknown.
func addressText(r *request) string {
	if a := addressOf(r); a.IsValid() {
		return a.String()
	}
	return ""
}
