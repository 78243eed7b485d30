package store

import (
	"encoding/binary"
	"math/bits"
)

// blockEncoder writes S2 blocks (https://github.com/klauspost/compress, package s2,
// which reads them) that refer to a dictionary. That package's own encoder clears a
// table of 64 KiB on the stack for each block: events are small, and every goroutine
// that writes would keep such a stack.
type blockEncoder struct {
	text  []byte // the dictionary
	table [1 << blockBits]uint16
}

const (
	blockBits = 13
	// mostSearched is up to where matches are looked for in a block: what comes after
	// is stored as it is.
	mostSearched = 60_000
)

func newBlockEncoder(text []byte) *blockEncoder {
	e := &blockEncoder{text: text}
	for i := 0; i+8 <= len(text); i++ {
		e.table[blockHash(text[i:])] = uint16(i + 1)
	}
	return e
}

// blockHash hashes six bytes of at least eight.
func blockHash(b []byte) uint32 {
	return uint32(binary.LittleEndian.Uint64(b) << 16 * 227718039650203 >> (64 - blockBits))
}

// encode appends src as a block.
func (e *blockEncoder) encode(dst, src []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(src)))
	var seen [256]uint16 // positions in src, after one
	done := 0
	for i := 0; i+8 <= len(src) && i < mostSearched; {
		h := blockHash(src[i:])
		n, offset := 0, 0
		if at := int(e.table[h]) - 1; at >= 0 {
			n, offset = matching(src[i:], e.text[at:]), i+len(e.text)-at
		}
		last := &seen[h>>(blockBits-8)]
		if at := int(*last) - 1; at >= 0 {
			if m := matching(src[i:], src[at:]); m > n {
				n, offset = m, i-at
			}
		}
		*last = uint16(i + 1)
		if n < 4 || offset > 0xffff {
			i++
			continue
		}
		dst = appendCopy(appendLiteral(dst, src[done:i]), offset, n)
		i += n
		done = i
	}
	return appendLiteral(dst, src[done:])
}

// matching returns how many bytes a and b begin with that are the same.
func matching(a, b []byte) (n int) {
	for len(a) >= n+8 && len(b) >= n+8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
		n += 8
	}
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func appendLiteral(dst, text []byte) []byte {
	switch n := len(text) - 1; {
	case n < 0:
		return dst
	case n < 60:
		dst = append(dst, byte(n)<<2)
	case n < 1<<8:
		dst = append(dst, 60<<2, byte(n))
	case n < 1<<16:
		dst = append(dst, 61<<2, byte(n), byte(n>>8))
	default:
		dst = append(dst, 62<<2, byte(n), byte(n>>8), byte(n>>16))
	}
	return append(dst, text...)
}

// appendCopy appends that n bytes are those of offset bytes before, where the
// dictionary lies before the block.
func appendCopy(dst []byte, offset, n int) []byte {
	for n > 0 {
		part := min(n, 64)
		if part >= 4 && part < 12 && offset < 1<<11 {
			dst = append(dst, 1|byte(part-4)<<2|byte(offset>>8)<<5, byte(offset))
		} else {
			dst = append(dst, 2|byte(part-1)<<2, byte(offset), byte(offset>>8))
		}
		n -= part
	}
	return dst
}
