//go:build !linux

package store

// fileSystem cannot determine the file system on this operating system.
func fileSystem(string) (name string, kind fsKind) { return "unknown", fsDisk }

func journal(string) string { return "" }
