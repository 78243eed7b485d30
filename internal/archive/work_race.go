//go:build race

package archive

// scryptWork is small in tests with the race detector, which makes scrypt much slower and finds
// nothing in it.
const scryptWork = 10
