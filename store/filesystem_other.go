//go:build !linux

package store

// fileSystem cannot tell file systems apart here.
func fileSystem(string) (name string, kind fsKind) { return "of an unknown kind", fsDisk }

func journal(string) string { return "" }
