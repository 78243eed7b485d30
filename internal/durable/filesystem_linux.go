package durable

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystems maps magic numbers of statfs(2) to file systems. Others are unknown.
var fileSystems = map[uint32]struct {
	name string
	kind FileSystemKind
}{
	0xEF53: {"ext4", OnDisk}, 0x58465342: {"xfs", OnDisk}, 0x9123683E: {"btrfs", OnDisk}, 0x2FC12FC1: {"zfs", OnDisk},
	0xF2F52010: {"f2fs", OnDisk}, 0xCA451A4E: {"bcachefs", OnDisk},
	0x6969: {"nfs", OnNetwork}, 0x517B: {"smb", OnNetwork}, 0xFE534D42: {"smb2", OnNetwork}, 0xFF534D42: {"cifs", OnNetwork},
	0x00C36400: {"ceph", OnNetwork},
	0x5346414F: {"afs", OnNetwork}, 0x73757245: {"coda", OnNetwork}, 0x01021997: {"9p", OnNetwork}, 0x0BD00BD0: {"lustre", OnNetwork},
	0x65735546: {"fuse", OnNetwork},
	0x01021994: {"tmpfs", InMemory}, 0x858458F6: {"ramfs", InMemory},
	0x794C7630: {"overlay", InLayer},
}

// fileSystem returns the file system of a directory. An unknown file system counts as a disk.
func fileSystem(dir string) (name string, kind FileSystemKind) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "unknown", OnDisk
	}
	if f, ok := fileSystems[uint32(st.Type)]; ok {
		return f.name, f.kind
	}
	return fmt.Sprintf("type %#x", uint32(st.Type)), OnDisk
}

// journal describes whether the ext4 file system of a directory has a journal, "" if unknown.
func journal(dir string) string {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return ""
	}
	device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return ""
	}
	task, err := os.ReadFile(filepath.Join("/sys/fs/ext4", filepath.Base(device), "journal_task"))
	if err != nil {
		return ""
	}
	if bytes.HasPrefix(task, []byte("<none>")) {
		return " without a journal"
	}
	return " with a journal"
}
