//go:build !linux

package sqlite

import "os"

// guard takes no lock. Only replication needs one, since it closes the database's file in
// this process, and it is supported on Linux only.
type guard struct{ file *os.File }

func newGuard(path string) (*guard, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &guard{f}, nil
}

func (*guard) release() error { return nil }
func (g *guard) close() error { return g.file.Close() }
