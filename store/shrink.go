package store

import (
	"context"
	"fmt"
	"math/bits"
	"time"
)

const (
	// The database file is shrunk when more than half of it is free, until a quarter is,
	// which new records will use.
	shrinkAbove = 2
	shrinkTo    = 4
	// minShrink is the minimum number of free bytes.
	minShrink = 16 << 20
	// shrinkStep is the maximum time to return one page. SQLite searches the free list for
	// pages at the end of the file; with many gigabytes of free pages, service compact is
	// faster.
	shrinkStep = 20 * time.Millisecond

	selectPages = `SELECT page_count, freelist_count, page_size, auto_vacuum
		FROM pragma_page_count, pragma_freelist_count, pragma_page_size, pragma_auto_vacuum`
	incrementalVacuum = 2 // the value of PRAGMA auto_vacuum
)

// pages describes the pages of the database file.
type pages struct {
	all, free int64
	size      int64 // bytes of one
	vacuum    int   // auto_vacuum
}

// scanPages reads the pages of a database.
func scanPages(scan scanRow) (p pages, err error) {
	return p, scan(selectPages, nil, &p.all, &p.free, &p.size, &p.vacuum)
}

// excess returns how many free pages to remove from the file, 0 for none.
func (p pages) excess() int64 {
	if p.vacuum != incrementalVacuum || p.free*p.size < minShrink || p.free <= p.all/shrinkAbove {
		return 0
	}
	return (shrinkTo*p.free - p.all + shrinkTo - 2) / (shrinkTo - 1)
}

// shrink returns free pages to the file system if there are many, and adds their bytes to shrunk.
func (s *core) shrink(ctx context.Context, w *steps, shrunk *int64) error {
	p, err := scanPages(s.scanNow)
	if err != nil {
		return err
	}
	for left := p.excess(); left > 0; {
		n := int64(1) << (bits.Len64(uint64(min(int64(w.size), left))) - 1) // a power of two, so that few statements are prepared
		before, began, took := int64(0), time.Time{}, time.Duration(0)
		err := w.write(ctx, func(t *tx) error {
			began = time.Now()
			if err := t.Scan("PRAGMA page_count", nil, &before); err != nil {
				return err
			}
			// It returns a row for each page, and moves only pages whose rows are read.
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
		*shrunk += max(before-after, 0) * p.size
		if left -= n; n == 1 && took > shrinkStep {
			s.logger.Warn("the database file shrinks too slowly; stop the service and run service compact", "free", p.free*p.size, "step", took)
			return nil
		}
	}
	return nil
}
