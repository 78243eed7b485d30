//go:build !linux

package durable

// fileSystem cannot determine the file system on this operating system.
func fileSystem(string) (name string, kind FileSystemKind) { return "unknown", OnDisk }

func journal(string) string { return "" }
