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

// holderFile is in the data directory. It says which process last acquired the
// lease from there.
const holderFile = "lease.id"

// holder is a process that acquired, or tried to acquire, the lease. A process
// that is started in its place may have the lease at once, instead of waiting
// for its expiry, if the holder can be shown to have ended.
type holder struct {
	Owner string `json:"owner"` // as in the lease object; random for each process
	// Boot identifies the boot of the machine, "" for unknown. Process ids and
	// inodes of another boot mean nothing.
	Boot string `json:"boot"`
	// Device and Inode are those of the data directory: a copy has others.
	Device  uint64 `json:"device"`
	Inode   uint64 `json:"inode"`
	PID     int    `json:"pid"`
	Started string `json:"started"` // when the process was started: process ids are reused
}

// currentHolder describes this process as the owner of a lease from dir.
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

// readHolder returns the last holder of a data directory, zero for none. A file
// of another format names no holder either.
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

// write makes h the last holder of a data directory. It is durable on return.
func (h holder) write(dir string) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(dir, holderFile), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember the owner of the lease: %w", err)
	}
	return nil
}

// sameDir reports whether h and other are of one data directory on one machine
// since its last boot.
func (h holder) sameDir(other holder) bool {
	return h.Boot != "" && h.Boot == other.Boot && h.Inode != 0 && h.Device == other.Device && h.Inode == other.Inode
}

// ended reports whether the process is known to have ended. The boot must be the
// present one.
func (h holder) ended() bool {
	return h.Started != "" && processStart(h.PID) != h.Started
}
