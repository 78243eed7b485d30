//go:build race

package archive

// scryptWork is small in tests with the race detector, which slows scrypt down by far and finds
// nothing in it.
const scryptWork = 10
