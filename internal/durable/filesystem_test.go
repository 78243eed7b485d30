package durable

import (
	"runtime"
	"testing"
)

func TestFileSystem(t *testing.T) {
	if name, _ := FileSystem(t.TempDir()); name == "" {
		t.Error("the file system has no name")
	}
	if runtime.GOOS != "linux" {
		t.Skip("A FILE SYSTEM IN MEMORY IS NOT TESTED: only Linux has /dev/shm")
	}
	if name, kind := FileSystem("/dev/shm"); name != "tmpfs" || kind != InMemory {
		t.Errorf("/dev/shm: got %s, %v, want tmpfs, in memory", name, kind)
	}
}
