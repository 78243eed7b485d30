package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// holderFile is a file in the data directory. It records which process last acquired the
// lease for that directory.
const holderFile = "lease.id"

// holder is a process that acquired, or tried to acquire, the lease. If the holder has
// provably ended, the next process of the same data directory can acquire the lease
// immediately, instead of waiting for its expiry.
type holder struct {
	Owner   string `json:"owner"` // as in the lease object; random per process
	dirID          // of the data directory
	PID     int    `json:"pid"`
	Started string `json:"started"` // start time of the process, because process IDs are reused
}

// currentHolder describes this process as the holder of the lease for dir.
func currentHolder(dir, owner string) (holder, error) {
	here, err := identifyDir(dir)
	return holder{Owner: owner, dirID: here, PID: os.Getpid(), Started: processStart(os.Getpid())}, err
}

// readHolder returns the last holder of a data directory. It is zero if there is none, or
// if the file has another format.
func readHolder(dir string) (holder, error) { return readState[holder](filepath.Join(dir, holderFile)) }

// write records h as the last holder of a data directory. The record is fsynced.
func (h holder) write(dir string) error {
	if err := writeState(filepath.Join(dir, holderFile), h); err != nil {
		return fmt.Errorf("record the lease owner: %w", err)
	}
	return nil
}

// sameDir reports whether h and other belong to the same data directory on the same
// machine, without a reboot in between.
func (h holder) sameDir(other holder) bool {
	return h.Boot != "" && h.Inode != 0 && h.dirID == other.dirID
}

// ended reports whether the process is known to have ended. h must be from the current
// boot.
func (h holder) ended() bool {
	return h.Started != "" && processStart(h.PID) != h.Started
}

// writerProcess identifies a process to others on the same machine.
type writerProcess struct {
	Boot      string `json:"boot"` // as in holder
	Namespace string `json:"pid_namespace"`
	PID       int    `json:"pid"`
	Started   string `json:"started"`
}

// currentProcess describes this process.
func currentProcess() writerProcess {
	return writerProcess{Boot: bootID(), Namespace: pidNamespace(), PID: os.Getpid(), Started: processStart(os.Getpid())}
}

// ended reports whether the process is known to have ended: it ran in this boot of this machine,
// and no longer exists.
func (p writerProcess) ended() bool {
	if p.Boot == "" || p.Boot != bootID() || p.Namespace == "" || p.Namespace != pidNamespace() || p.Started == "" || p.PID < 1 {
		return false
	}
	if errors.Is(syscall.Kill(p.PID, 0), syscall.ESRCH) {
		return true
	}
	started := processStart(p.PID) // "" for a process that this one may not see
	return started != "" && started != p.Started
}
