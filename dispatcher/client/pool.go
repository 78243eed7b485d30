package client

import (
	"slices"
	"sync"
	"time"
)

// pool keeps idle connections for up to idleTimeout. It is safe for concurrent use.
type pool struct {
	limit int // of all connections

	mu             sync.Mutex
	count          int
	conns          map[origin][]*conn // by origin, the most recently used last
	oldest, newest *conn              // of all connections
	timer          *time.Timer        // fires when the oldest expires, or earlier
}

func newPool(most int) *pool { return &pool{limit: most, conns: make(map[origin][]*conn)} }

// take returns the most recently used connection to an origin, which is the least
// likely to be closed, or nil if there is none.
func (p *pool) take(to origin) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	conns := p.conns[to]
	if len(conns) == 0 {
		return nil
	}
	last := len(conns) - 1
	c := conns[last]
	conns[last] = nil
	p.unlink(c, conns[:last])
	return c
}

// put adds a connection, and closes the oldest if there are too many.
func (p *pool) put(c *conn) {
	p.mu.Lock()
	c.since = time.Now()
	c.older, p.newest = p.newest, c
	if c.older != nil {
		c.older.newer = c
	} else {
		p.oldest = c
		p.schedule(idleTimeout)
	}
	p.conns[c.origin] = append(p.conns[c.origin], c)
	p.count++
	var many *conn
	if p.count > p.limit {
		many = p.takeOldest()
	}
	p.mu.Unlock()
	if many != nil {
		many.closeGracefully()
	}
}

// takeOldest removes and returns the oldest connection. The pool must not be empty.
// The caller holds p.mu.
func (p *pool) takeOldest() *conn {
	c := p.oldest
	p.unlink(c, slices.Delete(p.conns[c.origin], 0, 1))
	return c
}

// unlink removes a connection from the pool; stay are the others of its origin. The
// caller holds p.mu.
func (p *pool) unlink(c *conn, stay []*conn) {
	if p.count--; len(stay) > 0 {
		p.conns[c.origin] = stay
	} else {
		delete(p.conns, c.origin)
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		p.oldest = c.newer
	}
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		p.newest = c.older
	}
	c.older, c.newer = nil, nil
}

// schedule calls expire after in. The caller holds p.mu.
func (p *pool) schedule(in time.Duration) {
	if p.timer == nil {
		p.timer = time.AfterFunc(in, p.expire)
	} else {
		p.timer.Reset(in)
	}
}

// expire closes the connections that have been idle for idleTimeout.
func (p *pool) expire() {
	p.closeWhile(func(c *conn) bool {
		in := idleTimeout - time.Since(c.since)
		if in > 0 {
			p.schedule(in)
		}
		return in <= 0
	})
}

// close closes all idle connections.
func (p *pool) close() { p.closeWhile(func(*conn) bool { return true }) }

// closeWhile closes connections, oldest first, as long as more returns true.
func (p *pool) closeWhile(more func(*conn) bool) {
	var ended []*conn
	p.mu.Lock()
	for p.oldest != nil && more(p.oldest) {
		ended = append(ended, p.takeOldest())
	}
	p.mu.Unlock()
	for _, c := range ended {
		c.closeGracefully()
	}
}
