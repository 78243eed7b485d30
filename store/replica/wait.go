package replica

import (
	"context"
	"time"
)

// sleep sleeps, and returns the error of ctx if that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// wake sends to a channel that has room for one, unless something is in it.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
