package erasure

import (
	"slices"

	"service/store/sqlite"
)

// When SQLite moves a row to another page, a copy of it may stay in the unused space of the page that it
// was in, even with secure_delete. The same is true of the end of the last page of a long row, which has
// what the page had when it was free. A row of the page, or the long row itself, is made longer until
// nothing is unused, and then as long as it was: what is cut off is overwritten.
//
// See https://www.sqlite.org/fileformat.html, section 1.6, for the layout of a page.

// payloads are the tables with payloads. They have rowids, so only the leaves of their trees have rows.
var payloads = []struct{ root, read, write string }{
	{
		"SELECT rootpage FROM sqlite_schema WHERE name = 'events'",
		"SELECT json FROM events WHERE rowid = ?",
		"UPDATE events SET json = ?2 WHERE rowid = ?1",
	},
	{
		"SELECT rootpage FROM sqlite_schema WHERE name = 'responses'",
		"SELECT body FROM responses WHERE delivery = ?",
		"UPDATE responses SET body = ?2 WHERE delivery = ?1",
	},
	{
		"SELECT rootpage FROM sqlite_schema WHERE name = 'attempts'",
		"SELECT response_body FROM attempts WHERE rowid = ?",
		"UPDATE attempts SET response_body = ?2 WHERE rowid = ?1",
	},
}

// Residue is how far the removal of what is left in unused space has come. The zero value is its
// beginning.
type Residue struct {
	table int
	after int64 // rowid
	tries int   // at the leaf after it
}

// residueTries is how often one leaf is looked at. Others may change it in the same commit, so that
// it has other unused space than was expected.
const residueTries = 4

// Next looks at some leaves as of a write, overwrites what their unused space has, and returns how far it has
// come, and whether that is the end. A leaf with anything is looked at again by the next call.
func (r Residue) Next(t *sqlite.Tx, leaves int) (_ Residue, end bool, err error) {
	var tree *tree
	for ; leaves > 0 && r.table < len(payloads); leaves-- {
		if tree == nil {
			if tree, err = newTree(t, payloads[r.table].root); err != nil {
				return r, false, err
			}
		}
		last, more, err := tree.seek(r.after)
		if err != nil {
			return r, false, err
		}
		found, err := tree.residue()
		if err != nil {
			return r, false, err
		}
		for _, x := range found {
			if err := r.overwrite(t, x); err != nil {
				return r, false, err
			}
		}
		if len(found) > 0 && r.tries+1 < residueTries {
			r.tries++
			return r, false, nil
		}
		r.after, r.tries = last, 0
		if !more {
			r.table, r.after, tree = r.table+1, 0, nil
		}
	}
	return r, r.table == len(payloads), nil
}

// overwrite makes a row longer and then as long as it was.
func (r *Residue) overwrite(t *sqlite.Tx, x extension) error {
	table := &payloads[r.table]
	var value []byte
	if err := t.Scan(table.read, []any{x.rowid}, &value); err != nil {
		return sqlite.NoRows(err, nil)
	}
	longer := append(slices.Clip(value), make([]byte, x.columnGrowth(len(value)))...)
	for _, v := range [][]byte{longer, value} {
		if err := t.Overwrite(); err != nil {
			return err
		}
		if err := t.Exec(table.write, x.rowid, v); err != nil {
			return err
		}
	}
	return nil
}
