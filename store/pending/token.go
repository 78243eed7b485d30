package pending

import (
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// Token uses are a chore, written with other commits, like statistics.
const (
	TokenRows = 64               // maximum per commit
	usesRest  = 30 * time.Second // pause after all are written
)

// TokenUses are the times of the last use of tokens that have not been written yet.
type TokenUses struct {
	values[string, int64] // in Unix milliseconds, by ID
}

// Note records a use of a token.
func (u *TokenUses) Note(id string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending = make(map[string]int64)
	}
	u.pending[id] = now.UnixMilli()
}

// Complete sets UsedAt of tokens from uses that are not written yet.
func (u *TokenUses) Complete(tokens []webhook.Token) {
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

// Write stores up to n uses.
func (u *TokenUses) Write(t *sqlite.Tx, n int) error {
	for _, values := range u.some(n, t.Number()) {
		for id, at := range values {
			if err := t.Exec("UPDATE tokens SET used_at = ? WHERE id = ?", at, id); err != nil {
				return err
			}
		}
	}
	t.AfterCommit(func() { u.written(usesRest) })
	return nil
}
