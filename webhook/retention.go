package webhook

import "time"

// Retention is how long records are kept.
type Retention struct {
	All time.Duration // events, deliveries and attempts
	// Delivered is how long successful deliveries are kept, with their attempts; 0 means
	// as long as All.
	Delivered time.Duration
	// Audit is how long entries of the audit log are kept; 0 for ever.
	Audit time.Duration
}

// DeliveredFor returns how long successful deliveries are kept.
func (r Retention) DeliveredFor() time.Duration {
	if r.Delivered <= 0 {
		return r.All
	}
	return min(r.Delivered, r.All)
}
