package replica

import "sync"

// LogHeads remembers for each program up to which seq the replica had its log, and with how many
// commits, so that a reader need not wait for an upload again. The zero value is empty. It is safe for
// concurrent use.
type LogHeads struct {
	mu    sync.Mutex
	heads map[string]logHead
}

type logHead struct{ seq, commits int64 }

// Covered reports whether a replica is known to have a log up to seq. It may have lost what it had, so
// the replica is asked about the commits each time.
func (h *LogHeads) Covered(r *Replication, programID string, seq int64) bool {
	h.mu.Lock()
	head, ok := h.heads[programID]
	h.mu.Unlock()
	return ok && seq <= head.seq && r.Covered(head.commits)
}

// Add remembers that the replica has a log up to seq, which the given number of commits includes.
func (h *LogHeads) Add(programID string, seq, commits int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.heads == nil {
		h.heads = make(map[string]logHead)
	}
	if seq > h.heads[programID].seq {
		h.heads[programID] = logHead{seq, commits}
	}
}

// Forget forgets the log of a program.
func (h *LogHeads) Forget(programID string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.heads, programID)
}
