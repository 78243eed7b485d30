package client

import (
	"context"
	"time"

	"service/webhook"
)

// maxPrepared is how long a prepared attempt may use the connection that it took: after that
// the server may be about to close it.
const maxPrepared = time.Second

// Prepared is an attempt that is ready to be sent. Its owner calls Send or Discard,
// once.
type Prepared struct {
	x  exchange
	at time.Time // when it was prepared
}

// Prepare prepares an attempt without sending a byte: it writes and signs the
// request and takes an idle connection if there is one.
func (c *Client) Prepare(r *Request) *Prepared {
	p := &Prepared{x: exchange{Client: c, request: r}, at: time.Now()}
	p.x.prepare(p.at)
	return p
}

// prepare ignores errors; the attempt itself reports them.
func (x *exchange) prepare(now time.Time) {
	var err error
	defer recoverPanic(&err)
	if err = x.request.check(); err == nil {
		x.compose(now)
		x.conn = x.idle.take(x.request.origin())
	}
}

// Send makes the attempt, like [Client.Send].
func (p *Prepared) Send(ctx context.Context) webhook.Attempt {
	if p.x.conn != nil && time.Since(p.at) > maxPrepared {
		p.x.conn.closeGracefully()
		p.x.conn = nil
	}
	return p.x.run(ctx)
}

// Discard releases the attempt without sending it.
func (p *Prepared) Discard() { p.x.discard() }

// discard releases the unused parts of a preparation.
func (x *exchange) discard() {
	if x.conn != nil {
		x.idle.put(x.conn)
		x.conn = nil
	}
	if x.message.buf != nil {
		x.buffers.Put(x.message.buf)
		x.message = message{}
	}
}
