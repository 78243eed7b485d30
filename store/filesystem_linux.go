package store

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// fileSystems maps the magic numbers of statfs(2) to the file systems that are distinguished.
var fileSystems = map[uint32]struct {
	name string
	kind fsKind
}{
	0xEF53: {"ext4", fsDisk}, 0x58465342: {"xfs", fsDisk}, 0x9123683E: {"btrfs", fsDisk}, 0x2FC12FC1: {"zfs", fsDisk},
	0xF2F52010: {"f2fs", fsDisk}, 0xCA451A4E: {"bcachefs", fsDisk},
	0x6969: {"nfs", fsNetwork}, 0x517B: {"smb", fsNetwork}, 0xFE534D42: {"smb2", fsNetwork}, 0xFF534D42: {"cifs", fsNetwork},
	0x00C36400: {"ceph", fsNetwork},
	0x5346414F: {"afs", fsNetwork}, 0x73757245: {"coda", fsNetwork}, 0x01021997: {"9p", fsNetwork}, 0x0BD00BD0: {"lustre", fsNetwork},
	0x65735546: {"fuse", fsNetwork},
	0x01021994: {"tmpfs", fsMemory}, 0x858458F6: {"ramfs", fsMemory},
	0x794C7630: {"overlay", fsLayer},
}

// fileSystem returns the file system of a directory. An unknown one counts as a disk.
func fileSystem(dir string) (name string, kind fsKind) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "unknown", fsDisk
	}
	if f, ok := fileSystems[uint32(st.Type)]; ok {
		return f.name, f.kind
	}
	return fmt.Sprintf("type %#x", uint32(st.Type)), fsDisk
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
