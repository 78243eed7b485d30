//go:build !linux

package sqlite

// guard does nothing. Only replication needs one, since it closes the database's file in
// this process, and it is supported on Linux only.
type guard struct{}

func newGuard(string) (*guard, error) { return &guard{}, nil }
func (*guard) release() error         { return nil }
func (*guard) close() error           { return nil }
