//go:build !linux

package replica

// bootID returns "", for unknown. No process can then retake a lease before its expiry.
func bootID() string { return "" }

// processStart returns "", for unknown.
func processStart(int) string { return "" }

// pidNamespace returns "", for unknown.
func pidNamespace() string { return "" }
