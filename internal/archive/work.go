//go:build !race

package archive

// scryptWork is the work factor of the passphrase: 2^17 steps cost 128 MiB of memory and about
// half a second per guess.
const scryptWork = 17
