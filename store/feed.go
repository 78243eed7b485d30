package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// feed is a list with cursors, and the query of one of its pages. A position is the key of a
// row, such as num or seq, and a cursor that of the last row of the previous page.
type feed struct {
	s         *core
	q         *webhook.ListQuery
	scope     cursorScope
	streams   []stream
	binds     binds // of all streams
	low, high int64 // exclusive bounds of the key
	budget    int   // rows that a page may read

	// find, unless nil, returns the streams of the rows after a position.
	find func(v *view, descending bool, from int64) ([]stream, error)
}

// stream is a sequence of rows, read in chunks along an access, or all in memory. A row may be in
// several streams of a feed, such as a delivery of several events.
type stream struct {
	*access       // nil if all rows are in memory
	binds   binds // of this stream only

	rows []row // read but not yet merged
	from int64 // the next rows come after it
	size int   // rows to read next
	done bool  // nothing more to read
}

// row is the key of a row, and whether it matches the filters.
type row struct {
	key int64
	ok  bool
}

// page returns the keys of the page, and the cursor of the next page, "" on the last.
func (f *feed) page(v *view) (keys []int64, next string, err error) {
	descending := f.q.Sort[0].Descending
	from := start(descending)
	if f.q.Cursor != "" {
		if from, err = f.parse(); err != nil {
			return nil, "", err
		}
	}
	keys, at, more, err := f.walk(v, descending, from)
	if more {
		next = f.cursor(at)
	}
	return keys, next, err
}

// parse returns the position of the query's cursor.
func (f *feed) parse() (int64, error) {
	key := []int64{0}
	err := f.s.parseCursor(f.scope, f.q.Cursor, key)
	return key[0], err
}

// cursor renders a position.
func (f *feed) cursor(at int64) string { return f.s.cursor(f.scope, []int64{at}) }

// walk merges the streams and returns the keys of a page after a position. It reads at most
// budget rows, but at least one of each stream, and stops when its time is up. more reports
// that it stopped at the position at although rows may follow.
func (f *feed) walk(v *view, descending bool, from int64) (keys []int64, at int64, more bool, err error) {
	streams := slices.Clone(f.streams)
	if f.find != nil {
		if streams, err = f.find(v, descending, from); err != nil {
			return nil, from, false, err
		}
	}
	w := walker{view: v, feed: f, descending: descending, deadline: f.s.lists.deadline(time.Now())}
	w.begin(streams, from)
	last := from // the last row that matched
	for at = from; ; {
		next := w.first(streams)
		switch {
		case next == nil:
			return keys, at, false, nil
		case len(next.rows) > 0 && next.rows[0].key == at: // another stream has had it
			next.rows = next.rows[1:]
		case len(next.rows) > 0:
			at = next.rows[0].key
			ok := next.rows[0].ok
			next.rows = next.rows[1:]
			if ok && len(keys) == f.q.Size {
				return keys, last, true, nil
			}
			if ok {
				keys, last = append(keys, at), at
			}
		case at != from && w.spent(): // the next page continues at at
			return keys, at, true, nil
		default:
			if err := w.read(next); err != nil {
				return nil, at, false, err
			}
		}
	}
}

// walker is the state that the streams of a walk share.
type walker struct {
	*view
	*feed
	descending bool
	deadline   time.Time
	looked     int // rows read
}

// spent reports whether the walk must not read more rows.
func (w *walker) spent() bool {
	return w.looked >= w.budget || w.feed.s.lists.late(w.looked, w.deadline)
}

// compare returns a negative number if position a precedes b.
func (w *walker) compare(a, b int64) int { return down(w.descending, cmp.Compare(a, b)) }

// begin moves each stream to its first row after a position.
func (w *walker) begin(streams []stream, from int64) {
	begin := 0 // streams that must be read
	for i := range streams {
		st := &streams[i]
		if st.from = from; st.access != nil {
			begin++
			continue
		}
		st.done = true
		st.rows = slices.DeleteFunc(st.rows, func(r row) bool { return w.compare(r.key, from) <= 0 })
		slices.SortFunc(st.rows, func(a, b row) int { return w.compare(a.key, b.key) })
	}
	// With several streams read a few rows of each, since it is unknown which has the
	// next ones; with one stream, as many as needed.
	size := w.budget
	if begin > 1 {
		size = min(max((w.q.Size+1)*2/begin, 8), max(w.budget/begin, 1))
	}
	for i := range streams {
		streams[i].size = size
	}
}

// first returns the stream that has the next row, or may have it once it is read; nil if none
// has more.
func (w *walker) first(streams []stream) (first *stream) {
	var least int64
	for i := range streams {
		st := &streams[i]
		at := st.from
		if len(st.rows) > 0 {
			at = st.rows[0].key
		} else if st.done {
			continue
		}
		if first == nil || w.compare(at, least) < 0 {
			first, least = st, at
		}
	}
	return first
}

// read reads the next rows of a stream, at least one if there are any.
func (w *walker) read(st *stream) error {
	s := st.up
	if w.descending {
		s = st.down
	}
	low, high := beyond(st.from, w.descending, w.low, w.high)
	size := max(min(st.size, w.budget-w.looked), 1)
	here := binds{"low": low, "high": high, "limit": size}
	st.rows, st.size = st.rows[:0], st.size*4
	found, looked, enough := 0, 0, false
	var r row
	err := w.Each(s.text, s.args(here, st.binds, w.binds), func(scan func(...any) error) error {
		if err := scan(&r.key, &r.ok); err != nil {
			return err
		}
		if r.ok {
			found++
		}
		if n := len(st.rows); n > 0 && !r.ok && !st.rows[n-1].ok {
			st.rows[n-1] = r // of rows that do not match, only the last position matters
		} else {
			st.rows = append(st.rows, r)
		}
		st.from = r.key
		looked++
		w.looked++
		if enough = found > w.q.Size || w.feed.s.lists.late(w.looked, w.deadline); enough {
			return sqlite.ErrStop
		}
		return nil
	})
	st.done = looked < size && !enough
	return err
}

// beyond narrows the bounds of keys to those after key.
func beyond(key int64, descending bool, low, high int64) (int64, int64) {
	if descending {
		return low, min(high, key)
	}
	return max(low, key), high
}

// newer returns the cursor of the page before the one at the query's cursor, "" if that is the
// first. It walks backwards, starting at the row of the cursor.
func (f *feed) newer(ctx context.Context) (cursor string, err error) {
	from, err := f.parse()
	if err != nil {
		return "", err
	}
	back, step := !f.q.Sort[0].Descending, int64(1)
	if back {
		step = -1
	}
	err = f.s.view(ctx, func(v *view) error {
		_, at, more, err := f.walk(v, back, from-step)
		if err == nil && more {
			cursor = f.cursor(at + step)
		}
		return err
	})
	return cursor, err
}
