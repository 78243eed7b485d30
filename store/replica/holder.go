package replica

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"service/internal/durable"
)

// holderFile is a file in the data directory. It records which process last acquired the
// lease for that directory.
const holderFile = "lease.id"

// holder is a process that acquired, or tried to acquire, the lease. If the holder has
// provably ended, the next process of the same data directory can acquire the lease
// immediately, instead of waiting for its expiry.
type holder struct {
	Owner string `json:"owner"` // as in the lease object; random for each process
	// Boot is the id of the machine's boot, "" for unknown. Process ids and inodes of
	// another boot mean nothing.
	Boot string `json:"boot"`
	// Device and Inode are those of the data directory. A copy has others.
	Device  uint64 `json:"device"`
	Inode   uint64 `json:"inode"`
	PID     int    `json:"pid"`
	Started string `json:"started"` // start time of the process, because process ids are reused
}

// currentHolder describes this process as the holder of the lease for dir.
func currentHolder(dir, owner string) (holder, error) {
	h := holder{Owner: owner, Boot: bootID(), PID: os.Getpid(), Started: processStart(os.Getpid())}
	info, err := os.Stat(dir)
	if err != nil {
		return h, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Device, h.Inode = uint64(st.Dev), st.Ino
	}
	return h, nil
}

// readHolder returns the last holder of a data directory. It is zero if there is none, or
// if the file has another format.
func readHolder(dir string) (h holder, err error) {
	text, err := os.ReadFile(filepath.Join(dir, holderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil
	} else if err != nil {
		return h, err
	}
	if json.Unmarshal(text, &h) != nil {
		return holder{}, nil
	}
	return h, nil
}

// write records h as the last holder of a data directory. The record is fsynced.
func (h holder) write(dir string) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, holderFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("record the owner of the lease: %w", err)
	}
	return nil
}

// sameDir reports whether h and other belong to the same data directory on the same
// machine, without a reboot in between.
func (h holder) sameDir(other holder) bool {
	return h.Boot != "" && h.Boot == other.Boot && h.Inode != 0 && h.Device == other.Device && h.Inode == other.Inode
}

// ended reports whether the process is known to have ended. h must be from the current
// boot.
func (h holder) ended() bool {
	return h.Started != "" && processStart(h.PID) != h.Started
}

// writerProcess identifies a process for others of the same machine.
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
// and is not there any more.
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
