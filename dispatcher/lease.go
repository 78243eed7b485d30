package dispatcher

import "context"

// leaseContext is the context of the attempts made during one tenure: a period in
// which the store had the lease without interruption.
type leaseContext struct {
	lease context.Context // ends with the lease
	ctx   context.Context // ends with the lease or with the sendCtx of Dispatcher.Run
}

// attemptContext returns the context of an attempt. It ends with sendCtx and, if the store
// requires a lease, with the lease: attempts in flight are then cut off and recorded as
// interrupted once the lease is valid again. Renewing the lease does not end the context.
// All attempts of one tenure share a context, so that the client need not bind a connection
// to another one for the next attempt.
func (d *Dispatcher) attemptContext(sendCtx context.Context) context.Context {
	lease := d.store.Queues().LeaseContext()
	if lease == nil {
		return sendCtx
	}
	if t := d.leaseCtx.Load(); t != nil && t.lease == lease {
		return t.ctx
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.leaseCtx.Load(); t != nil && t.lease == lease {
		return t.ctx
	}
	ctx, cancel := context.WithCancel(sendCtx)
	context.AfterFunc(lease, cancel)
	d.leaseCtx.Store(&leaseContext{lease, ctx})
	return ctx
}
