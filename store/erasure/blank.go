package erasure

import "service/store/sqlite"

// What a page had stays in it when it becomes free, unless it was freed by an erasure. Blank pages take
// the place of all free pages once: a row of zeros is stored in them, and removed again.

const (
	countFree = "PRAGMA freelist_count"
	pageSize  = "PRAGMA page_size"
	addBlank  = "INSERT INTO blanks (zeros) VALUES (zeroblob(?))"

	// DropBlanks removes at most ?1 rows of zeros.
	DropBlanks = "DELETE FROM blanks WHERE num IN (SELECT num FROM blanks ORDER BY num LIMIT ?1)"

	// BlankPages is the number of pages of one row.
	BlankPages = 16
)

// Free returns the number of free pages.
func Free(t *sqlite.Tx) (n int64, err error) {
	err = t.Scan(countFree, nil, &n)
	return n, err
}

// Fill overwrites some free pages, as many as rows of BlankPages have, and returns how many are left.
func Fill(t *sqlite.Tx, rows int) (left int64, err error) {
	var size int64
	if err := t.Scan(pageSize, nil, &size); err != nil {
		return 0, err
	}
	for range rows {
		if left, err = Free(t); err != nil || left == 0 {
			return 0, err
		}
		// An overflow page has four bytes less. The row itself takes a few pages more at most.
		if err := t.Exec(addBlank, (min(left, BlankPages)-1)*(size-4)+size/2); err != nil {
			return 0, err
		}
	}
	return Free(t)
}
