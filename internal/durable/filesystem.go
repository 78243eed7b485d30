package durable

import "syscall"

// FileSystemKind classifies file systems by whether they keep what is written to them.
type FileSystemKind int

// Kinds of file systems. An unknown file system counts as a disk.
const (
	OnDisk FileSystemKind = iota
	OnNetwork
	InMemory
	InLayer // a layer of a container
)

// FileSystem returns the name and the kind of a directory's file system. For ext4 the name says
// whether there is a journal, if the system reports it.
func FileSystem(dir string) (name string, kind FileSystemKind) {
	name, kind = fileSystem(dir)
	if name == "ext4" {
		name += journal(dir)
	}
	return name, kind
}

// FreeSpace returns how many bytes this process can still write to a directory's file system, and
// the size of the file system in bytes.
func FreeSpace(dir string) (free, size int64, err error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}
