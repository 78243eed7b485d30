package once

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"
)

// The bounds of Challenges.
const (
	ChallengeLife      = 5 * time.Minute
	maxSpentChallenges = 10_000
)

// Challenges are the random challenges that passkeys sign. A challenge contains its expiry and a
// MAC over its purpose and the browser or session that it was issued to, so that issuing one stores
// nothing: strangers can neither fill the memory nor displace the challenges of others. The first
// response with a valid signature uses up a challenge. A restart invalidates all challenges.
type Challenges struct {
	key [32]byte

	mu    sync.Mutex
	spent map[[sha256.Size]byte]time.Time // by MAC: when it expires
}

// NewChallenges returns challenges with a new key.
func NewChallenges() *Challenges {
	c := &Challenges{spent: make(map[[sha256.Size]byte]time.Time)}
	rand.Read(c.key[:])
	return c
}

// The parts of a challenge: random bytes, the expiry in Unix milliseconds, and the MAC.
const (
	challengeRandom = 16
	challengeBody   = challengeRandom + 8
	ChallengeSize   = challengeBody + sha256.Size
)

// Issue returns a new challenge for a purpose and a holder.
func (c *Challenges) Issue(purpose, holder string) []byte {
	b := make([]byte, challengeRandom, ChallengeSize)
	rand.Read(b)
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().Add(ChallengeLife).UnixMilli()))
	return append(b, c.mac(b, purpose, holder)...)
}

func (c *Challenges) mac(body []byte, purpose, holder string) []byte {
	m := hmac.New(sha256.New, c.key[:])
	m.Write(body)
	m.Write([]byte(purpose + "\x00" + holder))
	return m.Sum(nil)
}

// Valid reports whether b was issued for this purpose and holder, and has not expired.
func (c *Challenges) Valid(b []byte, purpose, holder string) bool {
	return len(b) == ChallengeSize && hmac.Equal(b[challengeBody:], c.mac(b[:challengeBody], purpose, holder)) &&
		time.Now().Before(challengeExpiry(b))
}

func challengeExpiry(b []byte) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b[challengeRandom:challengeBody])))
}

// Spend uses up a valid challenge. Of concurrent calls with one challenge, one returns true. It
// also returns false if too many challenges were used within their life.
func (c *Challenges) Spend(b []byte) bool {
	id := [sha256.Size]byte(b[challengeBody:])
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.spent) >= maxSpentChallenges {
		for old, until := range c.spent {
			if !now.Before(until) {
				delete(c.spent, old)
			}
		}
	}
	if _, used := c.spent[id]; used || len(c.spent) >= maxSpentChallenges || !now.Before(challengeExpiry(b)) {
		return false
	}
	c.spent[id] = challengeExpiry(b)
	return true
}
