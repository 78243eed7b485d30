package list

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"service/store/sqlite"
	"service/webhook"
)

// Keyed is a list in an order of keys that are computed when a page is read. A page computes the keys
// of all rows that match, and SQLite keeps only the page. The position of a row is two numbers, the
// beginning of a name and an ID, in this order. A cursor contains the position that the row had on its
// page, so a row whose keys have changed shifts no other.
type Keyed struct {
	Key     Key
	Scope   Scope
	Query   *webhook.ListQuery
	Reverse bool   // the order is descending
	Rows    string // a query of all rows: id, first and second, name, a BLOB of at most NameBytes. ?1 is reserved
	Args    []any  // of Rows, from ?2 on
}

// NameBytes is the maximum length of the name in a position.
const NameBytes = 32

// position is the position of a row, see [Keyed].
type position struct {
	first, second int64
	name          []byte
	id            string
}

// Page returns the IDs of the page, and the cursor of the next page, "" on the last.
func (k *Keyed) Page(v *sqlite.View) (ids []string, next string, err error) {
	after := &position{first: math.MinInt64}
	if k.Reverse {
		after.first = math.MaxInt64
	}
	if k.Query.Cursor != "" {
		if after, err = k.parse(); err != nil {
			return nil, "", err
		}
	}
	rows, err := k.read(v, after, false)
	ids = []string{}
	for i := range rows[:min(len(rows), k.Query.Size)] {
		ids = append(ids, rows[i].id)
	}
	if len(rows) > k.Query.Size {
		next = k.cursor(&rows[k.Query.Size-1])
	}
	return ids, next, err
}

// Newer returns the cursor of the page before the one at the query's cursor, "" if that is the first.
func (k *Keyed) Newer(v *sqlite.View) (cursor string, err error) {
	at, err := k.parse()
	if err != nil {
		return "", err
	}
	rows, err := k.read(v, at, true)
	if len(rows) > k.Query.Size {
		cursor = k.cursor(&rows[k.Query.Size])
	}
	return cursor, err
}

// read returns the rows after a position, at most one more than fit on the page. With back it returns
// the rows before, the nearest first, starting with the row at the position.
func (k *Keyed) read(v *sqlite.View, after *position, back bool) (rows []position, err error) {
	comparison, direction := ">", ""
	if k.Reverse != back {
		comparison, direction = "<", "DESC"
	}
	if back {
		comparison += "="
	}
	n := len(k.Args) + 1
	query := fmt.Sprintf(`WITH k AS MATERIALIZED (%[1]s)
		SELECT id, first, second, name FROM k WHERE (first, second, name, id) %[2]s (?%[4]d, ?%[5]d, ?%[6]d, ?%[7]d)
		ORDER BY first %[3]s, second %[3]s, name %[3]s, id %[3]s LIMIT ?1`, k.Rows, comparison, direction, n+1, n+2, n+3, n+4)
	args := append([]any{k.Query.Size + 1}, k.Args...)
	args = append(args, after.first, after.second, after.name, after.id)
	err = v.Each(query, args, func(scan func(...any) error) error {
		var p position
		err := scan(&p.id, &p.first, &p.second, &p.name)
		rows = append(rows, p)
		return err
	})
	return rows, err
}

func (k *Keyed) cursor(p *position) string {
	high, low := numbersOf(p.id)
	numbers := []int64{p.first, p.second, high, low}
	name := make([]byte, NameBytes)
	copy(name, p.name)
	for at := 0; at < NameBytes; at += 8 {
		numbers = append(numbers, int64(binary.BigEndian.Uint64(name[at:])))
	}
	return k.Key.Cursor(k.Scope, numbers)
}

func (k *Keyed) parse() (*position, error) {
	numbers := make([]int64, 4+NameBytes/8)
	if err := k.Key.ParseCursor(k.Scope, k.Query.Cursor, numbers); err != nil {
		return nil, err
	}
	var name []byte
	for _, n := range numbers[4:] {
		name = binary.BigEndian.AppendUint64(name, uint64(n))
	}
	return &position{numbers[0], numbers[1], []byte(strings.TrimRight(string(name), "\x00")), idOf(numbers[2], numbers[3])}, nil
}
