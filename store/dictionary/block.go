package dictionary

import (
	"encoding/binary"
	"math/bits"
)

// blockEncoder writes S2 blocks (https://github.com/klauspost/compress, package s2, which
// decodes them) that refer to a dictionary. The encoder of that package clears a table of 64
// KiB on the stack per block. Events are small, and every goroutine that publishes would keep
// such a stack.
type blockEncoder struct {
	text  []byte // the dictionary
	table [1 << blockBits]uint16
}

const (
	blockBits = 13
	// maxSearched bounds the part of a block that is searched for matches. The rest is stored
	// uncompressed.
	maxSearched = 60_000
)

func newBlockEncoder(text []byte) *blockEncoder {
	e := &blockEncoder{text: text}
	for i := 0; i+8 <= len(text); i++ {
		e.table[blockHash(text[i:])] = uint16(i + 1)
	}
	return e
}

// blockHash hashes the first six bytes of b, which has at least eight.
func blockHash(b []byte) uint32 {
	return uint32(binary.LittleEndian.Uint64(b) << 16 * 227718039650203 >> (64 - blockBits))
}

// encode appends src to dst as a block.
func (e *blockEncoder) encode(dst, src []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(src)))
	var seen [256]uint16 // positions in src, plus 1
	done := 0
	for i := 0; i+8 <= len(src) && i < maxSearched; {
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

// matching returns the length of the common prefix of a and b.
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

// appendCopy appends a copy of the n bytes that begin offset bytes back. The dictionary
// precedes the block.
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
