package store

import (
	"slices"
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
	writeBehind[string, int64] // in Unix milliseconds, by id
}

func (u *tokenUses) note(id string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending = make(map[string]int64)
	}
	u.pending[id] = now.UnixMilli()
}

// complete sets UsedAt of tokens from uses that are not written yet.
func (u *tokenUses) complete(tokens []webhook.Token) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range tokens {
		t := &tokens[i]
		for _, at := range append(slices.Clip(u.writing), u.pending) {
			if ms, ok := at[t.ID]; ok {
				t.UsedAt = time.UnixMilli(ms).UTC()
			}
		}
	}
}

func (s *core) writeTokenUses(t *tx, n int) error {
	for _, values := range s.uses.some(n, t.Number()) {
		for id, at := range values {
			if err := t.Exec("UPDATE tokens SET used_at = ? WHERE id = ?", at, id); err != nil {
				return err
			}
		}
	}
	t.AfterCommit(func() { s.uses.written(usesRest) })
	return nil
}
