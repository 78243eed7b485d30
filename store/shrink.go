package store

import (
	"fmt"
	"math/bits"
	"time"
)

const (
	// The file of the database shrinks when more than half of it is free, and until a
	// quarter is: what comes next needs some of it.
	shrinkAbove = 2
	shrinkTo    = 4
	// shrinkLeast is how many bytes must be free for it to be worth while.
	shrinkLeast = 16 << 20
	// shrinkStep is the longest that a page may take to be given back. To find a page
	// at the end of the file among the free ones SQLite reads the list of those: with
	// many gigabytes of them, service compact is the better way.
	shrinkStep = 20 * time.Millisecond

	selectPages = `SELECT page_count, freelist_count, page_size, auto_vacuum
		FROM pragma_page_count, pragma_freelist_count, pragma_page_size, pragma_auto_vacuum`
	incrementalVacuum = 2 // as PRAGMA auto_vacuum has it
)

// pages are those of the database's file.
type pages struct {
	all, free int64
	size      int64 // bytes of one
	vacuum    int   // the mode of auto_vacuum
}

// scanPages reads the pages of a database.
func scanPages(scan func(query string, args []any, dest ...any) error) (p pages, err error) {
	return p, scan(selectPages, nil, &p.all, &p.free, &p.size, &p.vacuum)
}

// excess returns how many free pages the file is to be rid of, 0 for none.
func (p pages) excess() int64 {
	if p.vacuum != incrementalVacuum || p.free*p.size < shrinkLeast || p.free <= p.all/shrinkAbove {
		return 0
	}
	return (shrinkTo*p.free - p.all + shrinkTo - 2) / (shrinkTo - 1)
}

// shrink gives free pages of the file back to the file system, when there are many,
// in steps like those in which retention removes records.
func (w *sweep) shrink() error {
	p, err := scanPages(w.s.scanNow)
	if err != nil {
		return err
	}
	for left := p.excess(); left > 0; {
		n := int64(1) << (bits.Len64(uint64(min(int64(w.step), left))) - 1) // a power of two: each is a statement that stays prepared
		before, began, took := int64(0), time.Time{}, time.Duration(0)
		err := w.write(func(t *tx) error {
			began = time.Now()
			if err := t.Scan("PRAGMA page_count", nil, &before); err != nil {
				return err
			}
			// A row for each page: it moves none that nobody asks for.
			err := t.Each(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", n), nil, func(func(...any) error) error { return nil })
			took = time.Since(began)
			return err
		})
		if err != nil {
			return err
		}
		var after int64
		if err := w.s.scanNow("PRAGMA page_count", nil, &after); err != nil {
			return err
		}
		w.swept.Shrunk += max(before-after, 0) * p.size
		if left -= n; n == 1 && took > shrinkStep {
			w.s.logger.Warn("the database file shrinks too slowly; stop the service and run service compact", "free", p.free*p.size, "step", took)
			return nil
		}
	}
	return nil
}
