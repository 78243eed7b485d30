package webhook

import "time"

// Splits reports whether the events of a failed delivery are sent again in deliveries of their
// own, so that no event fails because of the events it was sent with. step is the state of the
// delivery, events their number.
func Splits(step Step, events int) bool {
	switch step.FailureReason {
	case FailureRejected, FailureBlocked, FailureAttemptsExhausted:
		return events > 1
	}
	return false
}

// RefusesRate reports whether a response refuses the rate of requests rather than their events. The
// events of a split then are sent as one delivery once more.
func RefusesRate(status int) bool { return status == 429 }

// RefusesSize reports whether a response refuses the size of a request. With several events in the
// request, it affects only the size of later deliveries.
func RefusesSize(status int) bool { return status == 413 }

// SizeBound is the size of deliveries that a receiver accepts, learned from deliveries that it
// refused with 413. The zero value is no bound.
type SizeBound struct {
	Bytes     int // of the events of a delivery
	LearnedAt time.Time
}

// At returns the maximum size of a delivery's events at a time: the bound, doubled for each day
// since it was learned, but at most [MaxDeliveryBytes].
func (b SizeBound) At(now time.Time) int {
	if b.Bytes == 0 {
		return MaxDeliveryBytes
	}
	bytes := b.Bytes
	for day := b.LearnedAt; bytes < MaxDeliveryBytes && now.Sub(day) >= 24*time.Hour; day = day.Add(24 * time.Hour) {
		bytes *= 2
	}
	return min(bytes, MaxDeliveryBytes)
}

// Refused returns the bound after a receiver refused a delivery whose events have this many bytes.
func (b SizeBound) Refused(bytes int, now time.Time) SizeBound {
	return SizeBound{Bytes: max(min(bytes/2, b.At(now)), 1), LearnedAt: now}
}
