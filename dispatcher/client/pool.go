package client

import (
	"slices"
	"sync"
	"time"
)

// pool keeps idle connections for up to idleTimeout. It is safe for concurrent use.
type pool struct {
	limit int // maximum number of connections, of all origins together

	mu             sync.Mutex // guards the fields below
	count          int
	conns          map[origin][]*conn // by origin, the most recently used last
	oldest, newest *conn              // of all connections
	timer          *time.Timer        // fires when the oldest expires, or earlier
}

func newPool(limit int) *pool { return &pool{limit: limit, conns: make(map[origin][]*conn)} }

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
	c.idleSince = time.Now()
	c.older, p.newest = p.newest, c
	if c.older != nil {
		c.older.newer = c
	} else {
		p.oldest = c
		p.schedule(idleTimeout)
	}
	p.conns[c.origin] = append(p.conns[c.origin], c)
	p.count++
	var excess *conn
	if p.count > p.limit {
		excess = p.takeOldest()
	}
	p.mu.Unlock()
	if excess != nil {
		excess.closeGracefully()
	}
}

// takeOldest removes and returns the oldest connection. The pool must not be empty.
// The caller holds p.mu.
func (p *pool) takeOldest() *conn {
	c := p.oldest
	p.unlink(c, slices.Delete(p.conns[c.origin], 0, 1))
	return c
}

// unlink removes a connection from the pool; others are the remaining ones of its
// origin. The caller holds p.mu.
func (p *pool) unlink(c *conn, others []*conn) {
	if p.count--; len(others) > 0 {
		p.conns[c.origin] = others
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
		in := idleTimeout - time.Since(c.idleSince)
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
	var expired []*conn
	p.mu.Lock()
	for p.oldest != nil && more(p.oldest) {
		expired = append(expired, p.takeOldest())
	}
	p.mu.Unlock()
	for _, c := range expired {
		c.closeGracefully()
	}
}
