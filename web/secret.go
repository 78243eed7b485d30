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
	kept map[[sha256.Size]byte]kept // by hash
}

// kept is what is remembered of a code.
type kept struct {
	ends time.Time // from when it is no longer good
	of   string    // whose it is
}

func newSecrets(life time.Duration, limit int) *secrets {
	return &secrets{life: life, limit: limit, kept: make(map[[sha256.Size]byte]kept)}
}

// issue returns a new code of somebody: 32 random bytes in base64url.
func (s *secrets) issue(of string) string {
	var b [32]byte
	rand.Read(b[:])
	code := base64.RawURLEncoding.EncodeToString(b[:])
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.makeRoom(now)
	s.kept[sha256.Sum256([]byte(code))] = kept{now.Add(s.life), of}
	return code
}

// makeRoom forgets what is no longer good and, if it must, the oldest.
// s.mu is held.
func (s *secrets) makeRoom(now time.Time) {
	var oldest [sha256.Size]byte
	var first time.Time
	for hash, k := range s.kept {
		if !now.Before(k.ends) {
			delete(s.kept, hash)
		} else if first.IsZero() || k.ends.Before(first) {
			oldest, first = hash, k.ends
		}
	}
	if len(s.kept) >= s.limit {
		delete(s.kept, oldest)
	}
}

// good says whether a code is good.
func (s *secrets) good(code string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[sha256.Sum256([]byte(code))]
	return ok && time.Now().Before(k.ends)
}

// take ends a code, and returns whose it was and whether it was good until
// then: of all who take one code at the same time, one is told so.
func (s *secrets) take(code string) (of string, good bool) {
	hash := sha256.Sum256([]byte(code))
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[hash]
	delete(s.kept, hash)
	return k.of, ok && time.Now().Before(k.ends)
}

// clear ends all codes.
func (s *secrets) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.kept)
}
