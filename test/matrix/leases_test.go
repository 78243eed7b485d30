//go:build linux

package matrix

import (
	"encoding/json"
	"os"
	"sync"
	"testing"
	"time"
)

// leaseWrite is a version of the lease object.
type leaseWrite struct {
	at       time.Time // when the S3 server wrote it
	Owner    string    `json:"owner"`
	Released bool      `json:"released"`
}

// leaseLog records the versions of a lease object in the S3 server's directory.
type leaseLog struct {
	file string

	mu     sync.Mutex
	writes []leaseWrite
}

// newLeaseLog records a lease object until the test ends.
func newLeaseLog(t *testing.T, file string) *leaseLog {
	l := &leaseLog{file: file}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			l.look()
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return l
}

// look reads the object if it has changed.
func (l *leaseLog) look() {
	l.mu.Lock()
	defer l.mu.Unlock()
	info, err := os.Stat(l.file)
	if n := len(l.writes); err != nil || n > 0 && l.writes[n-1].at.Equal(info.ModTime()) {
		return
	}
	f, err := os.Open(l.file)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return
	}
	w := leaseWrite{at: info.ModTime()}
	if json.NewDecoder(f).Decode(&w) == nil {
		l.writes = append(l.writes, w)
	}
}

// all returns the versions so far, oldest first.
func (l *leaseLog) all() []leaseWrite {
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]leaseWrite(nil), l.writes...)
}

// tenures returns the machine of each owner. The machines acquire the lease in the
// given order.
func tenures(writes []leaseWrite, machines ...string) map[string]string {
	owners := make(map[string]string)
	for _, w := range writes {
		if _, ok := owners[w.Owner]; !ok && len(owners) < len(machines) {
			owners[w.Owner] = machines[len(owners)]
		}
	}
	return owners
}
