package store

import (
	"sync"
	"sync/atomic"
	"time"

	"service/webhook"
)

// Token uses are a chore, written with other commits, like statistics.
const (
	usesRows = 64               // maximum with one commit
	usesRest = 30 * time.Second // pause after all are written
)

// tokenUses are the times of the last use of tokens that have not been written yet.
type tokenUses struct {
	mu      sync.Mutex
	at      map[string]int64 // by id, in Unix milliseconds
	writing map[string]int64 // being written; read-only

	next atomic.Int64 // when to write more, in Unix nanoseconds
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

// some returns up to n uses to write, the same ones until written is called.
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

// complete sets UsedAt of tokens from uses that are not written yet.
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
