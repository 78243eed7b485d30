package dispatcher

import "context"

// tenure is a time for which the store's lease is held without interruption.
type leaseContext struct {
	lease context.Context // ends when the lease does
	ctx   context.Context // ends when held or the sending of attempts does
}

// leased returns the context of an attempt: it ends with sending, and when the
// lease does, if the store needs one. Attempts in flight are cut off then, however
// much of their timeout is left, and are recorded as interrupted when the lease is
// valid again. A renewal of the lease extends them. All attempts of a tenure have
// the same context, so their connections need not be bound to a new one.
func (d *Dispatcher) attemptContext(sendCtx context.Context) context.Context {
	held := d.store.Queues().Held()
	if held == nil {
		return sendCtx
	}
	if t := d.leaseCtx.Load(); t != nil && t.lease == held {
		return t.ctx
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.leaseCtx.Load(); t != nil && t.lease == held {
		return t.ctx
	}
	ctx, cancel := context.WithCancel(sendCtx)
	context.AfterFunc(held, cancel)
	d.leaseCtx.Store(&leaseContext{held, ctx})
	return ctx
}
