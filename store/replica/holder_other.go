//go:build !linux

package replica

// bootID returns "": without it no process retakes a lease before its expiry.
func bootID() string { return "" }

// processStart returns "": it is not known.
func processStart(int) string { return "" }
