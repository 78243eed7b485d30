package store

import "sync"

// cache caches records by key, since every request needs some. Only this process changes them, so a change
// drops what it has changed. The records are read-only. It is safe for concurrent use.
type cache[K comparable, V any] struct {
	size int // the maximum number of records; at that number, the cache starts again

	mu         sync.RWMutex
	records    map[K]*V
	generation int // incremented by drop and clear
}

// get returns a cached record, nil if there is none, and the current generation for put.
func (c *cache[K, V]) get(key K) (*V, int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.records[key], c.generation
}

// put caches a record that was read in a generation, unless one was dropped since.
func (c *cache[K, V]) put(key K, v *V, generation int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation != c.generation {
		return
	}
	if c.records == nil || len(c.records) >= c.size {
		c.records = make(map[K]*V)
	}
	c.records[key] = v
}

// drop drops a record after a change of it.
func (c *cache[K, V]) drop(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, key)
	c.generation++
}

// clear drops all records.
func (c *cache[K, V]) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.records = nil
	c.generation++
}
