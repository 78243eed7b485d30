package replica

import (
	"context"
	"time"
)

// tenureCheck is the maximum delay with which the end of the lease is detected after the
// machine was suspended, because Go's timers stop during suspension.
const tenureCheck = time.Second

// tenure is a period during which the lease is valid without interruption.
type tenure struct {
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer // nil for endedTenure
}

// endedTenure returns a tenure that has ended, for a lease that is not held.
func endedTenure() *tenure {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &tenure{ctx: ctx, cancel: cancel}
}

// Valid reports whether new work may begin under the lease. It uses a clock that cannot be
// set and that runs while the machine is suspended.
func (l *Lease) Valid() bool { return l.left() > 0 }

// left returns how long the lease remains valid without a renewal.
func (l *Lease) left() time.Duration { return time.Duration(l.expiry.Load()) - uptime() }

// Age returns how long ago the lease was last renewed, 0 if it was lost or never held. It is safe
// for concurrent use.
func (l *Lease) Age() time.Duration {
	expiry := l.expiry.Load()
	if expiry == 0 {
		return 0
	}
	return uptime() - (time.Duration(expiry) - l.cfg.TTL + l.cfg.Reserve)
}

// Held returns a context that ends when the lease stops being valid, for work that must be
// aborted then. Renewals extend it. When the lease becomes valid again, Held returns a new
// context. After the machine was suspended, the context may end up to a second late, so
// critical work must check [Lease.Valid] too.
func (l *Lease) Held() context.Context { return l.tenure.Load().ctx }

// extend makes the lease valid from asked, the uptime before it was written.
func (l *Lease) extend(asked time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry.Store(int64(asked + l.cfg.TTL - l.cfg.Reserve))
	left := l.left()
	if left <= 0 || l.tenure.Load().ctx.Err() == nil {
		return // the timer of the current tenure checks the new expiry
	}
	t := new(tenure)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.timer = time.AfterFunc(min(left, tenureCheck), func() { l.check(t) })
	l.tenure.Store(t)
}

// check ends a tenure if the lease is no longer valid.
func (l *Lease) check(t *tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.left(); left > 0 && t.ctx.Err() == nil {
		t.timer.Reset(min(left, tenureCheck))
		return
	}
	t.cancel()
}

// lose makes the lease invalid immediately.
func (l *Lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry.Store(0)
	t := l.tenure.Load()
	t.cancel()
	if t.timer != nil {
		t.timer.Stop()
	}
}
