package once

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCodesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewCodes(time.Hour, 3)
		var codes []string
		for range 4 {
			codes = append(codes, s.Issue(""))
			time.Sleep(time.Second)
		}
		for i, want := range []bool{false, true, true, true} {
			if got := s.Valid(codes[i]); got != want {
				t.Errorf("code %d of 4: good is %v, want %v", i, got, want)
			}
		}
		time.Sleep(time.Hour)
		s.Issue("")
		if got := len(s.valid); got != 1 {
			t.Errorf("%d are kept after all but one have expired", got)
		}
	})
}

// A group with many codes ends only its own.
func TestCodesOfGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewCodes(time.Hour, 6)
		s.Share = 4
		issue := func(group string, n int) (all []string) {
			for range n {
				all = append(all, s.IssueIn(group, group+"'s"))
				time.Sleep(time.Second)
			}
			return all
		}
		good := func(all []string) (n int) {
			for _, code := range all {
				if s.Valid(code) {
					n++
				}
			}
			return n
		}
		small := issue("small", 1)
		greedy := issue("greedy", 20)
		if good(small) != 1 || good(greedy) != 4 || good(greedy[16:]) != 4 {
			t.Errorf("%d and %d of the codes are valid", good(small), good(greedy))
		}
		other := issue("other", 3) // the total is 6: the oldest of the largest group ends
		if good(small) != 1 || good(greedy) != 2 || good(other) != 3 {
			t.Errorf("%d, %d and %d of the codes are valid", good(small), good(greedy), good(other))
		}
	})
}

// TestCodesAreNotKept checks that the memory does not contain a code.
func TestCodesAreNotKept(t *testing.T) {
	s := NewCodes(time.Hour, 3)
	code := s.Issue("ana")
	if len(code) != 43 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		t.Errorf("a code is %q, want 32 bytes in base64url", code)
	}
	for hash := range s.valid {
		if bytes.Contains([]byte(code), hash[:]) {
			t.Error("the code itself is kept")
		}
	}
	if code == s.Issue("ana") {
		t.Error("the same code was issued twice")
	}
	if of, good := s.Use(code); of != "ana" || !good {
		t.Errorf("it was of %q, good: %v", of, good)
	}
}

func TestChallenges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewChallenges()
		one := c.Issue("a", "b")
		if !c.Valid(one, "a", "b") || c.Valid(one, "a", "c") || c.Valid(one, "b", "b") || c.Valid(one[:40], "a", "b") || c.Valid(nil, "a", "b") {
			t.Error("a challenge belongs to its purpose and holder")
		}
		if !c.Spend(one) || c.Spend(one) {
			t.Error("a challenge works once")
		}
		late := c.Issue("a", "b")
		time.Sleep(ChallengeLife)
		if c.Valid(late, "a", "b") || c.Spend(late) {
			t.Error("a challenge ends")
		}
		for range maxSpentChallenges {
			c.Spend(c.Issue("a", "b"))
		}
		if c.Spend(c.Issue("a", "b")) || len(c.spent) != maxSpentChallenges {
			t.Errorf("%d used ones are kept", len(c.spent))
		}
		time.Sleep(ChallengeLife)
		if !c.Spend(c.Issue("a", "b")) || len(c.spent) != 1 {
			t.Errorf("%d used ones are kept after they ended", len(c.spent))
		}
	})
}
