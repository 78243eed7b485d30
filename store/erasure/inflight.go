package erasure

import "sync/atomic"

// InFlight are the deliveries with erased events that an erasure left because an attempt of them is in
// flight. The zero value has none.
type InFlight struct {
	nums atomic.Pointer[map[int64]bool]
}

var every = new(map[int64]bool)

// Expect makes it have every delivery, until [InFlight.Set]. Call it before the first look at them.
func (f *InFlight) Expect() { f.nums.Store(every) }

// Set makes it have these deliveries. It owns the map from then on.
func (f *InFlight) Set(nums map[int64]bool) { f.nums.Store(&nums) }

// Has reports whether the end of an attempt of a delivery is what an erasure may wait for.
func (f *InFlight) Has(num int64) bool {
	nums := f.nums.Load()
	return nums != nil && (nums == every || (*nums)[num])
}
