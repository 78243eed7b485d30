package erasure

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"sort"

	"service/store/sqlite"
)

// tree reads the pages of a table with rowids as the last commit left them. See
// https://www.sqlite.org/fileformat.html, sections 1.5 and 1.6.
type tree struct {
	t        *sqlite.Tx
	root     uint32
	usable   int               // bytes of a page
	page     []byte            // the leaf that seek has found
	overflow []byte            // a page of a long row
	interior map[uint32][]byte // those that it has read
}

// extension is by how much a row has to become longer to fill unused space. Sizes are in bytes.
type extension struct {
	rowid   int64
	payload int // the size of the row
	row     int // at most
	cell    int // at most: the row and its stored size
}

const (
	interiorPage = 5
	leafPage     = 13

	// leastUnused is how many bytes of a leaf a row leaves to others, even if there are none.
	leastUnused = 35

	// maxDepth is more than SQLite's own limit.
	maxDepth = 30
)

// errLayout means that pages are not what the schema says.
var errLayout = errors.New("erasure: a page of a table has another layout than expected")

func newTree(t *sqlite.Tx, selectRoot string) (*tree, error) {
	tree := &tree{t: t, interior: make(map[uint32][]byte)}
	if err := t.Scan(selectRoot, nil, &tree.root); err != nil {
		return nil, err
	}
	first, err := t.Page(1, nil)
	if err != nil {
		return nil, err
	}
	tree.usable = len(first) - int(first[20])
	return tree, nil
}

// seek reads the leaf of the first rowid above after. Its rowids are last at most; more means that
// there are leaves behind it.
func (t *tree) seek(after int64) (last int64, more bool, err error) {
	n := t.root
	last = math.MaxInt64
	for range maxDepth {
		p := t.interior[n]
		if p == nil {
			if t.page, err = t.t.Page(n, t.page); err != nil {
				return 0, false, err
			}
			if p = t.page; p[0] == leafPage {
				return last, more, nil
			}
			if p[0] != interiorPage {
				return 0, false, errLayout
			}
			t.interior[n], t.page = p, nil
		}
		i := sort.Search(cellCount(p), func(i int) bool {
			_, key, ok := child(p, i)
			return !ok || key > after
		})
		if i == cellCount(p) {
			n = binary.BigEndian.Uint32(p[8:])
			continue
		}
		var ok bool
		if n, last, ok = child(p, i); !ok {
			break
		}
		more = true
	}
	return 0, false, errLayout
}

// child returns the page that a cell of an interior page points to, and the highest rowid below it.
func child(p []byte, i int) (page uint32, key int64, ok bool) {
	at, ok := cell(p, i)
	if !ok || at+4 > len(p) {
		return 0, 0, false
	}
	v, size := varint(p[at+4:])
	return binary.BigEndian.Uint32(p[at:]), int64(v), size > 0
}

// headerSize returns the size of a page's header.
func headerSize(p []byte) int {
	if p[0] == interiorPage {
		return 12
	}
	return 8
}

func cellCount(p []byte) int { return int(binary.BigEndian.Uint16(p[3:])) }

// cell returns where a cell of a page begins.
func cell(p []byte, i int) (at int, ok bool) {
	pointer := headerSize(p) + 2*i
	if pointer+2 > len(p) {
		return 0, false
	}
	at = int(binary.BigEndian.Uint16(p[pointer:]))
	return at, at < len(p)
}

// residue returns how the unused space of the leaf and the ends of its long rows can be filled, if they
// have anything but zeros.
func (t *tree) residue() (all []extension, err error) {
	from, to := t.gap()
	dirty := from <= to && to <= t.usable && !isZero(t.page[from:to])
	free := t.free(from, to)
	var best extension
	most := 0 // of best, in the leaf
	for i := range cellCount(t.page) {
		at, ok := cell(t.page, i)
		if !ok {
			return nil, errLayout
		}
		payload, size := varint(t.page[at:])
		rowid, more := varint(t.page[at+size:])
		if size == 0 || more == 0 || payload > math.MaxInt32 {
			return nil, errLayout
		}
		local := t.local(int(payload))
		tail, isDirty, err := t.tail(at+size+more, int(payload), local)
		if err != nil {
			return nil, err
		}
		if isDirty {
			all = append(all, extension{int64(rowid), int(payload), tail, math.MaxInt32})
		}
		// Only when its last page is full, more of a long row is in the leaf.
		x := extension{int64(rowid), int(payload), tail + min(free, t.usable-leastUnused-local), tail + free}
		if room := x.row - tail; room > most || room == most && x.payload < best.payload {
			best, most = x, room
		}
	}
	if dirty && most > 0 {
		all = append(all, best)
	}
	return all, nil
}

// gap returns the unused space between the pointers to the cells and the cells.
func (t *tree) gap() (from, to int) {
	if to = int(binary.BigEndian.Uint16(t.page[5:])); to == 0 {
		to = 1 << 16
	}
	return headerSize(t.page) + 2*cellCount(t.page), to
}

// free returns the number of unused bytes: of the gap, and between cells.
func (t *tree) free(from, to int) int {
	n := to - from + int(t.page[7])
	for at := int(binary.BigEndian.Uint16(t.page[1:])); at != 0 && at+4 <= t.usable; {
		n += int(binary.BigEndian.Uint16(t.page[at+2:]))
		next := int(binary.BigEndian.Uint16(t.page[at:]))
		if next <= at {
			break
		}
		at = next
	}
	return n
}

// local returns how many bytes of a row are in the leaf.
func (t *tree) local(payload int) int {
	most, least := t.usable-leastUnused, (t.usable-12)*32/255-23
	if payload <= most {
		return payload
	}
	if k := least + (payload-least)%(t.usable-4); k <= most {
		return k
	}
	return least
}

// tail returns the number of unused bytes at the end of the last page of a row that begins at a place of
// the leaf, and whether they have anything but zeros. There are none if the row is not long.
func (t *tree) tail(at, payload, local int) (unused int, dirty bool, err error) {
	each := t.usable - 4
	rest := (payload - local) % each
	if rest == 0 {
		return 0, false, nil
	}
	if at+local+4 > t.usable {
		return 0, false, errLayout
	}
	n := binary.BigEndian.Uint32(t.page[at+local:])
	for range (payload - local + each - 1) / each {
		if n == 0 {
			return 0, false, errLayout
		}
		if t.overflow, err = t.t.Page(n, t.overflow); err != nil {
			return 0, false, err
		}
		n = binary.BigEndian.Uint32(t.overflow)
	}
	return each - rest, !isZero(t.overflow[4+rest : t.usable]), nil
}

// columnGrowth returns by how much a column of the row has to grow.
func (x *extension) columnGrowth(column int) int {
	for n := min(x.row, x.cell); n > 0; n-- {
		row := n + varintSize(blobType(column+n)) - varintSize(blobType(column))
		if row <= x.row && row <= x.cell-varintSize(x.payload+row)+varintSize(x.payload) {
			return n
		}
	}
	return 0
}

// blobType returns the serial type of a blob.
func blobType(size int) int { return 12 + 2*size }

// varint decodes a variable-length integer of SQLite. The size is 0 if p is too short.
func varint(p []byte) (v uint64, size int) {
	for size < min(len(p), 9) {
		b := p[size]
		size++
		if size == 9 {
			return v<<8 | uint64(b), size
		}
		v = v<<7 | uint64(b&0x7f)
		if b < 0x80 {
			return v, size
		}
	}
	return 0, 0
}

func varintSize(v int) (size int) {
	for size = 1; v > 0x7f; v >>= 7 {
		size++
	}
	return size
}

var zeros [1 << 16]byte

func isZero(p []byte) bool { return bytes.Equal(p, zeros[:len(p)]) }
