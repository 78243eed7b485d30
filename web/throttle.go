package web

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"service/webhook"
)

// limit is how often something may be tried: burst times at once, and again
// after each.
type limit struct {
	name  string
	burst int
	each  time.Duration
}

// The limits of wrong passwords. A browser that an admin has signed in with
// before has a limit of its own, which nobody else can use up; strangers have
// one for their address and one for the admin that they claim to be. Of the
// latter, several addresses together can take all, but not one alone.
func addressLimit() limit { return limit{"address", 10, time.Minute} }
func adminLimit() limit   { return limit{"admin", 60, 10 * time.Second} }
func deviceLimit() limit  { return limit{"device", 10, time.Minute} }
func sessionLimit() limit { return limit{"session", 10, time.Minute} }

// try is something that a limit counts, by whom.
type try struct {
	limit limit
	who   string
}

// throttle counts tries, in memory: a restart forgives them all.
type throttle struct {
	start time.Time // what times are counted from, so that no clock change matters
	most  int       // how many of one limit are counted

	mu       sync.Mutex
	forgiven map[string]map[string]time.Duration // by the name of the limit, by who: when all is forgiven
}

// maxTried bounds what a throttle remembers.
const maxTried = 10_000

func newThrottle(most int) *throttle {
	return &throttle{start: time.Now(), most: most, forgiven: make(map[string]map[string]time.Duration)}
}

// take counts a try by all its limits. When one of them is reached it counts
// nothing, and returns how long until none is.
func (t *throttle) take(tries ...try) (wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.start)
	for _, one := range tries {
		until := max(t.forgiven[one.limit.name][one.who], now) + one.limit.each
		wait = max(wait, until-now-time.Duration(one.limit.burst)*one.limit.each)
	}
	if wait > 0 {
		return wait
	}
	for _, one := range tries {
		all := t.forgiven[one.limit.name]
		if all == nil {
			all = make(map[string]time.Duration)
			t.forgiven[one.limit.name] = all
		}
		if _, known := all[one.who]; !known && len(all) >= t.most {
			makeRoom(all, now)
		}
		all[one.who] = max(all[one.who], now) + one.limit.each
	}
	return 0
}

// makeRoom drops those that are forgiven, and at least the one that will be
// first: who has tried the most is remembered the longest.
func makeRoom(all map[string]time.Duration, now time.Duration) {
	first := ""
	for who, until := range all {
		if until <= now {
			delete(all, who)
		} else if first == "" || until < all[first] {
			first = who
		}
	}
	if first != "" {
		delete(all, first)
	}
}

// forgive takes tries back: they were right, or were not made.
func (t *throttle) forgive(tries ...try) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range tries {
		if until, known := t.forgiven[one.limit.name][one.who]; known {
			t.forgiven[one.limit.name][one.who] = until - one.limit.each
		}
	}
}

// forget forgives all that was tried with one name.
func (t *throttle) forget(l limit, who string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.forgiven[l.name], who)
}

// The bounds of hashing passwords, each of which takes a core for a while.
const (
	maxHashing = 2  // at a time
	maxQueue   = 16 // of strangers, and as many others, under way or waiting
)

// hashing bounds how many passwords are hashed at a time, and how many wait.
// Strangers have one place between them, so that however many they are, the
// other is left to who is known.
type hashing struct {
	places         chan struct{}
	stranger       chan struct{}
	known, unknown chan struct{} // the queues
}

func newHashing() *hashing {
	return &hashing{make(chan struct{}, maxHashing), make(chan struct{}, maxHashing-1), make(chan struct{}, maxQueue), make(chan struct{}, maxQueue)}
}

// errBusy says that too many wait for a password to be hashed.
type errBusy struct{}

func (errBusy) Error() string { return "too many passwords are being hashed" }

// do runs hash when there is a place for it. The error is errBusy when the
// queue is full, and the context's when that ended first.
func (h *hashing) do(ctx context.Context, known bool, hash func()) error {
	queue, lanes := h.unknown, []chan struct{}{h.stranger, h.places}
	if known {
		queue, lanes = h.known, lanes[1:]
	}
	select {
	case queue <- struct{}{}:
		defer func() { <-queue }()
	default:
		return errBusy{}
	}
	for _, lane := range lanes {
		select {
		case lane <- struct{}{}:
			defer func() { <-lane }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	hash()
	return nil
}

// addressOf is from where a request came.
func addressOf(r *request) netip.Addr {
	a, _ := netip.ParseAddrPort(r.RemoteAddr) // what is no address is one sender
	return a.Addr().Unmap().WithZone("")
}

// networkOf is what addressOf is counted by.
func networkOf(r *request) string { return webhook.Network(addressOf(r)).String() }

// address is addressOf as it is remembered, "" when it is not known.
func addressText(r *request) string {
	if a := addressOf(r); a.IsValid() {
		return a.String()
	}
	return ""
}
