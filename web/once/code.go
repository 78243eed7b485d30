// Package once issues secrets that work once: codes of links and forms, and the challenges that passkeys
// sign. They are in memory, so a restart ends all. All methods are safe for concurrent use.
package once

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"time"
)

// Codes are random one-time codes with an expiry. Only their SHA-256 is kept, in
// memory.
type Codes struct {
	// Share is the maximum number per group; beyond it, issuing a code ends the group's oldest. Set it before
	// use.
	Share int

	life  time.Duration
	limit int // maximum number of valid codes; beyond it, issuing a code ends the oldest of the largest group

	mu    sync.Mutex
	valid map[[sha256.Size]byte]oneTimeCode // by hash
}

// oneTimeCode is the state of a code.
type oneTimeCode struct {
	expiresAt time.Time // exclusive
	owner     string    // the admin or session it was issued to
	group     string    // the program of the owner, "" for none
}

// NewCodes returns codes that are valid for life, at most limit at a time.
func NewCodes(life time.Duration, limit int) *Codes {
	return &Codes{life: life, limit: limit, Share: limit, valid: make(map[[sha256.Size]byte]oneTimeCode)}
}

// Issue returns a new code for owner: 32 random bytes in base64url.
func (c *Codes) Issue(owner string) string { return c.IssueIn("", owner) }

// IssueIn is Issue for an owner in a group: a group cannot end the codes of smaller groups.
func (c *Codes) IssueIn(group, owner string) string {
	var b [32]byte
	rand.Read(b[:])
	code := base64.RawURLEncoding.EncodeToString(b[:])
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(now, group)
	c.valid[sha256.Sum256([]byte(code))] = oneTimeCode{now.Add(c.life), owner, group}
	return code
}

// evict removes expired codes. If the group has reached its share, evict removes the group's oldest
// code; at the limit, the oldest of the largest group. The caller must hold c.mu.
func (c *Codes) evict(now time.Time, group string) {
	count, oldest := make(map[string]int), make(map[string][sha256.Size]byte)
	largest := ""
	for hash, k := range c.valid {
		if !now.Before(k.expiresAt) {
			delete(c.valid, hash)
			continue
		}
		if count[k.group]++; count[k.group] > count[largest] {
			largest = k.group
		}
		if first, ok := c.valid[oldest[k.group]]; !ok || k.expiresAt.Before(first.expiresAt) {
			oldest[k.group] = hash
		}
	}
	switch {
	case count[group] >= c.Share:
		delete(c.valid, oldest[group])
	case len(c.valid) >= c.limit:
		delete(c.valid, oldest[largest])
	}
}

// Valid reports whether a code is valid.
func (c *Codes) Valid(code string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.valid[sha256.Sum256([]byte(code))]
	return ok && time.Now().Before(k.expiresAt)
}

// Use ends a code and returns its owner and whether it was valid. Of concurrent calls with one
// code, one returns true.
func (c *Codes) Use(code string) (owner string, ok bool) {
	hash := sha256.Sum256([]byte(code))
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.valid[hash]
	delete(c.valid, hash)
	return k.owner, ok && time.Now().Before(k.expiresAt)
}

// Clear ends all codes.
func (c *Codes) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.valid)
}
