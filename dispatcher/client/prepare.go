package client

import (
	"context"
	"time"

	"service/webhook"
)

// maxPrepared is how long a connection is kept for a prepared attempt: its server may
// be about to close it.
const maxPrepared = time.Second

// Prepared is an attempt that is ready to be made. Its owner calls Send or Discard, once.
type Prepared struct {
	x  exchange
	at time.Time
}

// Prepare gets an attempt ready as far as it can without sending a byte: it writes and
// signs the request, and takes an idle connection if there is one.
func (c *Client) Prepare(r *Request) *Prepared {
	p := &Prepared{x: exchange{Client: c, request: r}, at: time.Now()}
	p.x.prepare(p.at)
	return p
}

// prepare leaves to the attempt itself what does not succeed.
func (x *exchange) prepare(now time.Time) {
	var err error
	defer recoverPanic(&err)
	if err = x.request.check(); err == nil {
		x.compose(now)
		x.conn = x.idle.take(x.request.origin())
	}
}

// Send makes the attempt, as [Client.Send] does.
func (p *Prepared) Send(ctx context.Context) webhook.Attempt {
	if p.x.conn != nil && time.Since(p.at) > maxPrepared {
		p.x.conn.closeGracefully()
		p.x.conn = nil
	}
	return p.x.run(ctx)
}

// Discard gives the attempt up.
func (p *Prepared) Discard() { p.x.discard() }

// discard gives back what was prepared and is not used.
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
