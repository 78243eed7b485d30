package dispatcher

import (
	"sync"
	"time"

	"service/store"
	"service/store/sqlite"
)

// faults make statements of a simulation's store fail.
type faults struct {
	mu             sync.Mutex
	disabled       int       // no faults while above zero
	writes         int       // statements of the writer until one fails; 0 for none
	endTransaction bool      // the failing write also ends its transaction
	reads          int       // statements of the readers until one fails; 0 for none
	full           time.Time // every COMMIT and INSERT fails until then
	leaseLost      bool      // the store's lease has ended
	lastAt         time.Time // time of the last fault
}

// fault returns how a statement fails.
func (f *faults) fault(query string, write bool) sqlite.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.disabled > 0 {
		return sqlite.NoFault
	}
	now := time.Now()
	left := &f.reads
	if write {
		left = &f.writes
		if now.Before(f.full) && (query == "COMMIT" || len(query) > 6 && query[:6] == "INSERT") {
			f.lastAt = now
			return sqlite.FaultStatement
		}
	}
	if *left == 0 {
		return sqlite.NoFault
	}
	if *left--; *left > 0 {
		return sqlite.NoFault
	}
	f.lastAt = now
	if write && f.endTransaction {
		return sqlite.FaultTransaction
	}
	return sqlite.FaultStatement
}

// arm makes a statement fail after n others.
func (f *faults) arm(write bool, n int, ends bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if write {
		f.writes, f.endTransaction = n+1, ends
	} else {
		f.reads = n + 1
	}
}

// failCommits makes every commit fail for d.
func (f *faults) failCommits(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = time.Now().Add(d)
}

// clear ends all faults.
func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes, f.reads, f.full = 0, 0, time.Time{}
}

// without runs do with faults disabled.
func (f *faults) without(do func()) {
	f.mu.Lock()
	f.disabled++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.disabled--
		f.mu.Unlock()
	}()
	do()
}

// active reports whether a statement has failed at this moment, and whether a statement may
// still fail.
func (f *faults) active() (failed, may bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	failed = f.leaseLost || f.lastAt.Equal(now)
	return failed, failed || f.writes > 0 || f.reads > 0 || now.Before(f.full)
}

// recovered reports whether all work that waited because of a fault has had time to
// continue.
func (f *faults) recovered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	return f.lastAt.IsZero() && !f.leaseLost || !f.leaseLost && !now.Before(f.full) && now.After(f.lastAt.Add(storeRetryWait+slack))
}

// lease records that the store's lease has ended, or is valid again.
func (f *faults) lease(valid bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leaseLost, f.lastAt = !valid, time.Now()
}

// injected reports whether an error is an injected fault. Then nothing was stored.
func (s *simulation) injected(err error) bool {
	failed, _ := s.faults.active()
	return failed && store.Unavailable(err)
}

// last returns the time of the last fault.
func (f *faults) last() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastAt
}
