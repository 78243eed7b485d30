// Package pending keeps values in memory until they are written with other commits: statistics of
// attempts and uses of tokens. Reads add the unwritten values. A crash loses them.
package pending

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// pause is the minimum time between two writes.
const pause = 12 * time.Millisecond

// values are values by key that a chore writes with other commits: a few per commit, because
// a publisher may wait for it. A crash loses the unwritten ones.
type values[K comparable, V any] struct {
	mu      sync.Mutex
	pending map[K]V
	writing []map[K]V // being written; read-only
	number  uint64    // of the transaction that writes them

	next atomic.Int64 // when to write more, in Unix nanoseconds
}

// Due reports whether the next commit should write values.
func (b *values[K, V]) Due() bool { return time.Now().UnixNano() >= b.next.Load() }

// some returns up to n values to write in a transaction: the same values in each transaction until
// written is called, except those that this transaction has already written. A key may be in
// several maps.
func (b *values[K, V]) some(n int, transaction uint64) []map[K]V {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, taken := b.writing, 0
	for _, values := range before {
		taken += len(values)
	}
	if more := min(n-taken, len(b.pending)); more > 0 {
		some := make(map[K]V, more)
		for key, value := range b.pending {
			if len(some) == more {
				break
			}
			some[key] = value
			delete(b.pending, key)
		}
		b.writing = append(b.writing, some)
	}
	again := b.number == transaction
	if b.number = transaction; again {
		return b.writing[len(before):]
	}
	return b.writing
}

// written records that the values of some are on disk. The next write follows after
// rest, or after pause if more are pending.
func (b *values[K, V]) written(rest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writing = nil
	if len(b.pending) > 0 {
		rest = pause
	}
	b.next.Store(time.Now().Add(rest).UnixNano())
}

// Each calls f for every value that is not yet written, with mu held.
func (b *values[K, V]) Each(f func(K, V)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, values := range append(slices.Clip(b.writing), b.pending) {
		for key, value := range values {
			f(key, value)
		}
	}
}
