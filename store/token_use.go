package store

import (
	"sync"
	"sync/atomic"
	"time"

	"service/webhook"
)

// The last uses of tokens are written with commits that are made anyway, like
// statistics: at most so many with one, so much time apart.
const (
	usesRows = 64
	usesRest = 30 * time.Second
)

// tokenUses are when tokens were used last, as far as it is not written yet.
type tokenUses struct {
	mu      sync.Mutex
	at      map[string]int64 // by id, in Unix milliseconds
	writing map[string]int64 // on its way into the store; not changed any more

	next atomic.Int64 // when more is to be written, in Unix nanoseconds of the process's time
}

func (u *tokenUses) note(id string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = make(map[string]int64)
	}
	u.at[id] = now.UnixMilli()
}

func (u *tokenUses) due() bool { return time.Now().UnixNano() >= u.next.Load() }

// some returns up to n uses to write, the same again until they are written.
func (u *tokenUses) some(n int) map[string]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.writing == nil {
		u.writing = make(map[string]int64)
		for id, at := range u.at {
			if len(u.writing) == n {
				break
			}
			u.writing[id] = at
			delete(u.at, id)
		}
	}
	return u.writing
}

func (u *tokenUses) written() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.writing = nil
	rest := usesRest
	if len(u.at) > 0 {
		rest = statPause
	}
	u.next.Store(time.Now().Add(rest).UnixNano())
}

// complete fills in what is not written yet.
func (u *tokenUses) complete(tokens []webhook.Token) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range tokens {
		t := &tokens[i]
		for _, at := range []map[string]int64{u.writing, u.at} {
			if ms, ok := at[t.ID]; ok {
				t.UsedAt = time.UnixMilli(ms).UTC()
			}
		}
	}
}

func (s *core) writeTokenUses(t *tx, n int) error {
	for id, at := range s.uses.some(n) {
		if err := t.Exec("UPDATE tokens SET used_at = ? WHERE id = ?", at, id); err != nil {
			return err
		}
	}
	t.AfterCommit(s.uses.written)
	return nil
}
