package list

import "testing"

// Adjacent IDs may differ in both halves.
func TestAdjacentID(t *testing.T) {
	low, high := "00000000-0000-0001-ffff-ffffffffffff", "00000000-0000-0002-0000-000000000000"
	if got := AdjacentID(low, false); got != high {
		t.Errorf("after %s: got %s, want %s", low, got, high)
	}
	if got := AdjacentID(high, true); got != low {
		t.Errorf("before %s: got %s, want %s", high, got, low)
	}
}
