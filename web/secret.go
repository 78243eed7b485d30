package web

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"sync"
	"time"
)

// secrets are random codes that each are good for a while. Only their SHA-256
// is kept, in memory alone.
type secrets struct {
	life  time.Duration
	limit int // how many can be good at a time; a further one ends the oldest

	mu   sync.Mutex
	ends map[[sha256.Size]byte]time.Time // by hash: from when it is no longer good
}

func newSecrets(life time.Duration, limit int) *secrets {
	return &secrets{life: life, limit: limit, ends: make(map[[sha256.Size]byte]time.Time)}
}

// issue returns a new code: 32 random bytes in base64url.
func (s *secrets) issue() string {
	var b [32]byte
	rand.Read(b[:])
	code := base64.RawURLEncoding.EncodeToString(b[:])
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(now)
	s.ends[sha256.Sum256([]byte(code))] = now.Add(s.life)
	return code
}

// makeRoom forgets what is no longer good and, if it must, the oldest.
// s.mu is held.
func (s *secrets) makeRoom(now time.Time) {
	var oldest [sha256.Size]byte
	var first time.Time
	for hash, end := range s.ends {
		if !now.Before(end) {
			delete(s.ends, hash)
		} else if first.IsZero() || end.Before(first) {
			oldest, first = hash, end
		}
	}
	if len(s.ends) >= s.limit {
		delete(s.ends, oldest)
	}
}

// good says whether a code is good.
func (s *secrets) good(code string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[sha256.Sum256([]byte(code))]
	return ok && time.Now().Before(end)
}

// take ends a code, and says whether it was good until then: of all who take
// one code at the same time, one is told so.
func (s *secrets) take(code string) bool {
	hash := sha256.Sum256([]byte(code))
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[hash]
	delete(s.ends, hash)
	return ok && time.Now().Before(end)
}
