//go:build !linux

package sqlite

// guard is needed where Litestream runs, which this system is not supported for.
type guard struct{}

func newGuard(string) (*guard, error) { return &guard{}, nil }
func (*guard) release() error         { return nil }
func (*guard) close() error           { return nil }
