package replica

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// bootID returns the kernel's random ID of this boot, or "" if it cannot be read.
func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// processStart returns the start time of a process in clock ticks since boot, or "" if
// the process has ended.
func processStart(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The second field is the name in parentheses, which may contain parentheses and
	// spaces. Field 22 is the start time: the 20th field after the name.
	_, rest, ok := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "" // a zombie has ended; its parent has not waited for it yet
	}
	return fields[19]
}

// pidNamespace returns the identity of the namespace of process IDs of this process, or "" if
// it cannot be read. Containers of one machine have different ones.
func pidNamespace() string {
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return name
}
