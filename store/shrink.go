package store

import (
	"fmt"
	"math/bits"
	"time"

	"service/store/sqlite"
)

const (
	// The database file is shrunk when it is mostly free, until a quarter is free, which new records
	// will use.
	shrinkTo = 4
	// shrinkStep is the maximum time to return one page. SQLite searches the free list for
	// pages at the end of the file; with many gigabytes of free pages, service compact is
	// faster.
	shrinkStep = 20 * time.Millisecond
)

// excess returns how many free pages to remove from the file, 0 for none.
func excess(p sqlite.Pages) int64 {
	if p.Vacuum != sqlite.IncrementalVacuum || !sqlite.MostlyFree(p.All*p.Size, p.Free*p.Size) {
		return 0
	}
	return (shrinkTo*p.Free - p.All + shrinkTo - 2) / (shrinkTo - 1)
}

// shrink returns free pages to the file system if there are many, and adds their bytes to shrunk.
func (w *steps) shrink(shrunk *int64) error {
	s := w.s
	p, err := sqlite.ScanPages(s.scanNow)
	if err != nil {
		return err
	}
	for left := excess(p); left > 0; {
		n := int64(1) << (bits.Len64(uint64(min(int64(w.size), left))) - 1) // a power of two, so that few statements are prepared
		before, began, took := int64(0), time.Time{}, time.Duration(0)
		err := w.write(func(t *tx) error {
			began = time.Now()
			if err := t.Scan("PRAGMA page_count", nil, &before); err != nil {
				return err
			}
			// The pragma returns a row per page, and moves only pages whose rows are read.
			err := t.Each(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", n), nil, func(func(...any) error) error { return nil })
			took = time.Since(began)
			return err
		})
		if err != nil {
			return err
		}
		var after int64
		if err := s.scanNow("PRAGMA page_count", nil, &after); err != nil {
			return err
		}
		*shrunk += max(before-after, 0) * p.Size
		if left -= n; n == 1 && took > shrinkStep {
			s.logger.Warn("the database file shrinks too slowly; stop the service and run service compact", "free", p.Free*p.Size, "step", took)
			return nil
		}
	}
	return nil
}
