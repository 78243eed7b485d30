package ratelimit

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(3)
		slow := Limit{"slow", 3, time.Minute}
		fast := Limit{"fast", 5, time.Second}
		takes := func(about string, want time.Duration, tries ...Try) {
			t.Helper()
			if wait := l.Allow(tries...); wait != want {
				t.Errorf("%s: got %s, want %s", about, wait, want)
			}
		}
		for range 3 {
			takes("within the limit", 0, Try{slow, "a"}, Try{fast, "x"})
		}
		if n := l.Used(Try{slow, "a"}); n != 3 {
			t.Errorf("got %d tries, want 3", n)
		}
		takes("beyond the limit", time.Minute, Try{slow, "a"}, Try{fast, "x"})
		for range 2 {
			takes("what was refused counts nowhere", 0, Try{fast, "x"})
		}
		takes("beyond the other limit", time.Second, Try{fast, "x"})
		takes("another", 0, Try{slow, "b"})
		time.Sleep(time.Minute - time.Nanosecond)
		takes("just before it is forgiven", time.Nanosecond, Try{slow, "a"})
		time.Sleep(time.Nanosecond)
		takes("when one is forgiven", 0, Try{slow, "a"})
		l.Refund(Try{slow, "a"})
		takes("when one was taken back", 0, Try{slow, "a"})
		l.Reset(Try{slow, "a"})
		for range 3 {
			takes("when all was forgotten", 0, Try{slow, "a"})
		}
	})
}

// Memory is bounded, and a flood of keys does not evict the key with the most tries.
func TestLimiterIsBounded(t *testing.T) {
	l := New(3)
	limit := Limit{"l", 2, time.Hour}
	l.Allow(Try{limit, "worst"})
	l.Allow(Try{limit, "worst"})
	for i := range 100 {
		l.Allow(Try{limit, fmt.Sprint(i)})
		if got := len(l.next["l"]); got > 3 {
			t.Fatalf("%d are remembered, want 3", got)
		}
	}
	if wait := l.Allow(Try{limit, "worst"}); wait == 0 {
		t.Error("the worst was forgotten")
	}
}

// Keys whose tries no longer count are evicted when room is needed.
func TestLimiterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(evictSample)
		limit := Limit{"l", 1, time.Second}
		for i := range evictSample {
			l.Allow(Try{limit, fmt.Sprint(i)})
		}
		time.Sleep(time.Second)
		l.Allow(Try{limit, "new"})
		if n := len(l.next["l"]); n != 1 {
			t.Errorf("%d are remembered, want 1", n)
		}
	})
}

func TestSlots(t *testing.T) {
	var s Slots[string]
	for i, want := range []bool{true, true, false} {
		if got := s.Take("a", 2); got != want {
			t.Errorf("number %d: got %t, want %t", i+1, got, want)
		}
	}
	if !s.Take("b", 2) {
		t.Error("another key is refused")
	}
	s.Leave("a")
	if s.open["a"] != 1 || !s.Take("a", 2) {
		t.Error("what has left counts")
	}
	for range 2 {
		s.Leave("a")
	}
	s.Leave("b")
	if len(s.open) != 0 {
		t.Errorf("%d keys are remembered, want 0", len(s.open))
	}
}
