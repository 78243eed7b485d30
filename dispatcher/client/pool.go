package client

import (
	"slices"
	"sync"
	"time"
)

// pool keeps the connections that are not in use, each for idleTimeout at the
// most. It is safe for concurrent use.
type pool struct {
	most int // in all

	mu             sync.Mutex
	count          int
	conns          map[origin][]*conn // of each origin, the one used last at the end
	oldest, newest *conn              // of all
	timer          *time.Timer        // for the oldest, or earlier
}

func newPool(most int) *pool { return &pool{most: most, conns: make(map[origin][]*conn)} }

// take returns the connection that was used last, the most likely one to be
// good, or nil if there is none.
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
	p.left(c, conns[:last])
	return c
}

// put keeps a connection, and ends the oldest if there are too many.
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
	if p.count > p.most {
		many = p.takeOldest()
	}
	p.mu.Unlock()
	if many != nil {
		many.closeGracefully()
	}
}

// takeOldest takes the oldest of all, of which there is one. Owns p.mu.
func (p *pool) takeOldest() *conn {
	c := p.oldest
	p.left(c, slices.Delete(p.conns[c.origin], 0, 1))
	return c
}

// left notes that a connection has left, and which of its origin have not. Owns p.mu.
func (p *pool) left(c *conn, stay []*conn) {
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

// schedule has expire called. Owns p.mu.
func (p *pool) schedule(in time.Duration) {
	if p.timer == nil {
		p.timer = time.AfterFunc(in, p.expire)
	} else {
		p.timer.Reset(in)
	}
}

// expire ends the connections whose time is over.
func (p *pool) expire() {
	p.end(func(c *conn) bool {
		in := idleTimeout - time.Since(c.since)
		if in > 0 {
			p.schedule(in)
		}
		return in <= 0
	})
}

// close ends all connections that are kept now.
func (p *pool) close() { p.end(func(*conn) bool { return true }) }

// end ends connections, from the oldest on, as long as more says so.
func (p *pool) end(more func(*conn) bool) {
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
