package replica

import (
	"context"
	"time"
)

// tenureCheck is the longest time after which the end of the lease is noticed
// when the machine was suspended: Go's timers stand still during that.
const tenureCheck = time.Second

// tenure is a time during which the lease is valid without interruption.
type tenure struct {
	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer // nil for one that has ended from the start
}

func endedTenure() *tenure {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &tenure{ctx: ctx, cancel: cancel}
}

// Valid reports whether new work may begin under the lease. It uses a clock that
// nobody sets, and that also runs while the machine is suspended.
func (l *Lease) Valid() bool { return l.left() > 0 }

// left returns how long the lease is valid without a renewal.
func (l *Lease) left() time.Duration { return time.Duration(l.expiry.Load()) - uptime() }

// Held returns a context that ends when the lease does, for work that must be cut
// off then. A renewal extends it. It has ended while the lease is not valid, and
// is another one when the lease is valid again. After a suspension of the machine
// it may end up to a second late: what must not happen without the lease checks
// [Lease.Valid] too.
func (l *Lease) Held() context.Context { return l.tenure.Load().ctx }

// extend makes the lease valid from asked, the uptime before it was written.
func (l *Lease) extend(asked time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expiry.Store(int64(asked + l.cfg.TTL - l.cfg.Reserve))
	left := l.left()
	if left <= 0 || l.tenure.Load().ctx.Err() == nil {
		return // the timer of a tenure that goes on looks at the expiry
	}
	t := new(tenure)
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.timer = time.AfterFunc(min(left, tenureCheck), func() { l.check(t) })
	l.tenure.Store(t)
}

// check ends a tenure if the lease has ended.
func (l *Lease) check(t *tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if left := l.left(); left > 0 && t.ctx.Err() == nil {
		t.timer.Reset(min(left, tenureCheck))
		return
	}
	t.cancel()
}

// lose ends the lease for this process.
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
