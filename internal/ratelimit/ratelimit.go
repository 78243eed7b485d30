// Package ratelimit limits what clients may do, by keys such as their address. Its state is in
// memory and bounded: a restart resets it. Its types are safe for concurrent use.
package ratelimit

import (
	"sync"
	"time"
)

// Limit allows Burst tries at once, and one more after each Interval.
type Limit struct {
	Name     string
	Burst    int
	Interval time.Duration
}

// Try is a try that counts against a limit, for a key such as an address or a program.
type Try struct {
	Limit Limit
	Key   string
}

// Limiter limits tries by the generic cell rate algorithm (GCRA).
type Limiter struct {
	start   time.Time // the origin of all times: monotonic, so that a clock change has no effect
	maxKeys int

	mu   sync.Mutex
	next map[string]map[string]time.Duration // by name of the limit and key: the theoretical arrival time
}

// New returns a limiter that remembers at most maxKeys keys per limit.
func New(maxKeys int) *Limiter {
	return &Limiter{start: time.Now(), maxKeys: maxKeys, next: make(map[string]map[string]time.Duration)}
}

// Allow counts tries that belong together and returns 0. If one of their limits is reached, it
// counts none of them and returns the time to wait.
func (l *Limiter) Allow(tries ...Try) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	for _, one := range tries {
		until := max(l.next[one.Limit.Name][one.Key], now) + one.Limit.Interval
		wait = max(wait, until-now-time.Duration(one.Limit.Burst)*one.Limit.Interval)
	}
	if wait > 0 {
		return wait
	}
	for _, one := range tries {
		l.count(one, now)
	}
	return 0
}

// Pace counts a try and returns the time to wait before it: nothing within the burst. A try that
// would wait longer than most waits that long and is not counted.
func (l *Limiter) Pace(one Try, most time.Duration) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Since(l.start)
	limit := one.Limit
	wait = max(0, max(l.next[limit.Name][one.Key], now)-now-time.Duration(limit.Burst)*limit.Interval)
	if wait > most {
		return most
	}
	l.count(one, now)
	return wait
}

// count counts a try. The caller holds mu.
func (l *Limiter) count(one Try, now time.Duration) {
	all := l.next[one.Limit.Name]
	if all == nil {
		all = make(map[string]time.Duration)
		l.next[one.Limit.Name] = all
	}
	if _, known := all[one.Key]; !known && len(all) >= l.maxKeys {
		evict(all, now)
	}
	all[one.Key] = max(all[one.Key], now) + one.Limit.Interval
}

// evictSample is the number of keys that evict samples.
const evictSample = 64

// evict removes the expired keys of a random sample, and at least the key that expires first: the
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

// Used returns the number of counted tries of a key, at most the burst of its limit.
func (l *Limiter) Used(one Try) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.next[one.Limit.Name][one.Key] - time.Since(l.start)
	return int(max(0, left+one.Limit.Interval-1) / one.Limit.Interval)
}

// Refund takes back tries.
func (l *Limiter) Refund(tries ...Try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range tries {
		if until, known := l.next[one.Limit.Name][one.Key]; known {
			l.next[one.Limit.Name][one.Key] = until - one.Limit.Interval
		}
	}
}

// Reset takes back all tries of one key.
func (l *Limiter) Reset(one Try) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.next[one.Limit.Name], one.Key)
}

// Slots counts what is open per key. The zero value is ready to use; a key without anything open
// takes no memory.
type Slots[K comparable] struct {
	mu   sync.Mutex
	open map[K]int
}

// Take increases the count of a key and returns true, unless the count has reached most.
func (s *Slots[K]) Take(key K, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[key] >= most {
		return false
	}
	if s.open == nil {
		s.open = make(map[K]int)
	}
	s.open[key]++
	return true
}

// Leave undoes one Take.
func (s *Slots[K]) Leave(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[key]--; s.open[key] == 0 {
		delete(s.open, key)
	}
}

// Count returns the count of a key.
func (s *Slots[K]) Count(key K) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[key]
}
