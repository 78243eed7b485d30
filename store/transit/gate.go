// Package transit checks the records of one program that come from another installation: in a
// program file, or in the parts of a move. They may be handmade, so a row must belong to the
// program, may refer only to rows of the program, and may contain only values that the service could
// have written.
//
// The package checks the form: syntax, lengths, enumerations and references. It does not check the
// policy of the receiving installation: an http URL, or a private address, is a record like any
// other, and is refused when something would be sent to it.
package transit

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"service/webhook"
)

// Error says what is wrong with a row. It contains no value of the row.
type Error struct {
	Table   string
	Row     int    // in the order of the table's key, from 1; 0 for the table itself
	Column  string // "" for several columns
	Problem string
}

func (e *Error) Error() string {
	at := "table " + e.Table
	if e.Row > 0 {
		at += fmt.Sprintf(", row %d", e.Row)
	}
	if e.Column != "" {
		at += ", column " + e.Column
	}
	return at + ": " + e.Problem
}

// Gate checks the rows of one program, which must come in the order of the store's tables: a row must
// follow the rows it refers to. It is not safe for concurrent use.
type Gate struct {
	program string
	now     int64 // in Unix milliseconds
	counted int64 // the highest counted_at

	subscriptions map[string]int64 // nums by ID
	nums          map[int64]string // the subscriptions of these nums
	tokens        map[string]bool
	seq           int64  // the last of the log
	deliveries    ranges // nums
	incidents     ranges
	runs          ranges
	events        webhook.StoredEvents
}

// New returns the gate for a program.
func New(program string) *Gate {
	return &Gate{program: program, subscriptions: make(map[string]int64), nums: make(map[int64]string),
		tokens: make(map[string]bool)}
}

// At sets the time that the times of rows are compared with, and the highest counted_at, which is in
// whole seconds of the time that retention counts.
func (g *Gate) At(now time.Time, counted int64) { g.now, g.counted = now.UnixMilli(), counted }

// Table checks the rows of one table, in the order of its key.
type Table struct {
	gate   *Gate
	name   string
	names  []string // of the columns
	checks []check
	index  map[string]int
	rows   func(*Gate, row) (column, problem string)
	count  int
	order  int64 // of the last row
	time   int64 // of the last row
}

// Table returns the check of a table whose rows have some columns. The error is an *[Error] if a
// column is unknown.
func (g *Gate) Table(name string, columns []string) (*Table, error) {
	rules, ok := tables[name]
	if !ok {
		return nil, &Error{Table: name, Problem: "is not a table with records of a program"}
	}
	t := &Table{gate: g, name: name, names: columns, rows: rules.row, index: make(map[string]int, len(columns))}
	for i, column := range columns {
		c, ok := rules.columns[column]
		if !ok {
			return nil, &Error{Table: name, Column: column, Problem: "is not a column of the table"}
		}
		t.checks, t.index[column] = append(t.checks, c), i
	}
	return t, nil
}

// Columns returns the columns of a table that the gate knows, nil for an unknown table.
func Columns(name string) []string { return slices.Sorted(maps.Keys(tables[name].columns)) }

// Check checks the next row. The values are the stored ones: int64, float64, string, []byte or nil,
// but with decrypted secrets and uncompressed events. The error is an *[Error].
func (t *Table) Check(values []any) error {
	t.count++
	for i, check := range t.checks {
		if problem := check(t.gate, values[i]); problem != "" {
			return t.fault(t.names[i], problem)
		}
	}
	if t.rows != nil {
		if column, problem := t.rows(t.gate, row{t, values}); problem != "" {
			return t.fault(column, problem)
		}
	}
	return nil
}

func (t *Table) fault(column, problem string) error {
	return &Error{Table: t.name, Row: t.count, Column: column, Problem: problem}
}

// row is a row whose values have passed the checks of their columns.
type row struct {
	*Table
	values []any
}

func (r row) get(column string) any      { return r.values[r.index[column]] }
func (r row) text(column string) string  { s, _ := r.get(column).(string); return s }
func (r row) int(column string) int64    { n, _ := r.get(column).(int64); return n }
func (r row) null(column string) bool    { return r.get(column) == nil }
func (r row) bytes(column string) []byte { b, _ := r.get(column).([]byte); return b }

// ascends checks that numbers ascend from row to row, and that times do not decrease.
func (r row) ascends(number, at string) (column, problem string) {
	n, when := r.int(number), r.int(at)
	switch {
	case r.count > 1 && n <= r.order:
		return number, "does not ascend"
	case r.count > 1 && when < r.time:
		return at, "is earlier than in the row before"
	}
	r.order, r.time = n, when
	return "", ""
}

// ranges is a set of numbers, stored as ascending ranges with gaps between them.
type ranges []struct{ first, last int64 }

// add adds a number.
func (r *ranges) add(n int64) {
	all := *r
	if end := len(all) - 1; end >= 0 && all[end].last == n-1 { // as nearly always
		all[end].last = n
		return
	}
	i, found := all.find(n)
	if found {
		return
	}
	if i > 0 && all[i-1].last == n-1 {
		all[i-1].last = n
		return
	}
	*r = slices.Insert(all, i, struct{ first, last int64 }{n, n})
}

func (r ranges) has(n int64) bool {
	_, found := r.find(n)
	return found
}

// last returns the highest number, 0 for none.
func (r ranges) last() int64 {
	if len(r) == 0 {
		return 0
	}
	return r[len(r)-1].last
}

// find returns the index of the range that contains a number, or where one would be inserted.
func (r ranges) find(n int64) (int, bool) {
	return slices.BinarySearchFunc(r, n, func(one struct{ first, last int64 }, n int64) int {
		switch {
		case one.last < n:
			return -1
		case one.first > n:
			return 1
		}
		return 0
	})
}
