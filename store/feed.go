package store

import (
	"context"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// feed is a list with cursors, and the query of one of its pages. A cursor is the position of
// the last row of the previous page.
type feed struct {
	s         *core
	q         *webhook.ListQuery
	scope     cursorScope
	streams   []stream
	binds     binds // of all streams
	low, high int64 // exclusive bounds of the key
	budget    int   // rows that a page may read

	// find, unless nil, returns the streams of the rows after a position.
	find func(v *view, o order, from position) ([]stream, error)
}

// stream is a sequence of rows, read in chunks along an access, or all in memory. A row may be in
// several streams of a feed, such as a delivery of several events.
type stream struct {
	*access       // nil if all rows are in memory
	binds   binds // of this stream only

	rows []row    // read but not yet merged
	from position // the next rows come after it
	size int      // rows to read next
	done bool     // nothing more to read
}

// row is a position, and whether the row there matches the filters.
type row struct {
	position
	ok bool
}

// byCompletion reports whether positions contain completed_at.
func (f *feed) byCompletion() bool { return f.q.Sort[0].Name == "completed_at" }

// order returns the order of the list.
func (f *feed) order() order {
	if f.byCompletion() {
		return order{f.q.Sort[0].Descending, f.q.Sort[min(1, len(f.q.Sort)-1)].Descending}
	}
	return order{keyDescending: f.q.Sort[0].Descending}
}

// page returns the keys of the page, and the cursor of the next page, "" on the last.
func (f *feed) page(v *view) (keys []int64, next string, err error) {
	o := f.order()
	from, err := f.start(o)
	if err != nil {
		return nil, "", err
	}
	keys, at, more, err := f.walk(v, o, from)
	if more {
		next = f.cursor(at)
	}
	return keys, next, err
}

// start returns the position after which the page begins.
func (f *feed) start(o order) (from position, err error) {
	switch {
	case f.byCompletion() && f.q.Cursor != "":
		return f.completionPosition(o)
	case f.byCompletion():
		return f.firstCompletion(o), nil
	case f.q.Cursor == "":
		return o.start(0), nil
	}
	key := []int64{0}
	err = f.s.parseCursor(f.scope, f.q.Cursor, key)
	return position{key: key[0]}, err
}

// cursor renders a position.
func (f *feed) cursor(at position) string {
	if f.byCompletion() {
		return f.s.cursor(f.scope, []int64{at.at, at.key})
	}
	return f.s.cursor(f.scope, []int64{at.key})
}

// walk merges the streams and returns the keys of a page after a position. It reads at most
// budget rows, but at least one of each stream, and stops when its time is up. more reports
// that it stopped at the position at although rows may follow.
func (f *feed) walk(v *view, o order, from position) (keys []int64, at position, more bool, err error) {
	streams := slices.Clone(f.streams)
	if f.find != nil {
		if streams, err = f.find(v, o, from); err != nil {
			return nil, from, false, err
		}
	}
	w := walker{view: v, feed: f, order: o, deadline: f.s.lists.deadline(time.Now())}
	w.begin(streams, from)
	last := from // the last row that matched
	for at = from; ; {
		next := w.first(streams)
		switch {
		case next == nil:
			return keys, at, false, nil
		case len(next.rows) > 0 && next.rows[0].position == at: // another stream has had it
			next.rows = next.rows[1:]
		case len(next.rows) > 0:
			at = next.rows[0].position
			ok := next.rows[0].ok
			next.rows = next.rows[1:]
			if ok && len(keys) == f.q.Size {
				return keys, last, true, nil
			}
			if ok {
				keys, last = append(keys, at.key), at
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
	order    order
	deadline time.Time
	looked   int // rows read
}

// spent reports whether the walk must not read more rows.
func (w *walker) spent() bool {
	return w.looked >= w.budget || w.feed.s.lists.late(w.looked, w.deadline)
}

// begin moves each stream to its first row after a position. Sorted by completed_at, deliveries
// that are not completed come last, so their streams start only when the walk reaches them.
func (w *walker) begin(streams []stream, from position) {
	begin := 0 // streams that start immediately
	for i := range streams {
		st := &streams[i]
		st.from = from
		switch {
		case st.access == nil:
			st.done = true
			st.rows = slices.DeleteFunc(st.rows, func(r row) bool { return w.order.compare(r.position, from) <= 0 })
			slices.SortFunc(st.rows, func(a, b row) int { return w.order.compare(a.position, b.position) })
		case w.byCompletion() && !st.valued && from.at != notCompleted:
			st.from = w.order.start(notCompleted)
		case st.valued && from.at == notCompleted:
			st.done = true
		default:
			begin++
		}
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
	var least position
	for i := range streams {
		st := &streams[i]
		at := st.from
		if len(st.rows) > 0 {
			at = st.rows[0].position
		} else if st.done {
			continue
		}
		if first == nil || w.order.compare(at, least) < 0 {
			first, least = st, at
		}
	}
	return first
}

// read reads the next rows of a stream, at least one if there are any.
func (w *walker) read(st *stream) error {
	s := st.up
	if w.order.keyDescending {
		s = st.down
	}
	low, high := beyond(st.from.key, w.order.keyDescending, w.low, w.high)
	size := max(min(st.size, w.budget-w.looked), 1)
	here := binds{"at": st.from.at, "num": st.from.key, "low": low, "high": high, "limit": size}
	st.rows, st.size = st.rows[:0], st.size*4
	found, looked, enough := 0, 0, false
	r := row{position: position{at: st.from.at}}
	dest := []any{&r.key, &r.ok}
	if st.valued {
		dest = append(dest, &r.at)
	}
	err := w.Each(s.text, s.args(here, st.binds, w.binds), func(scan func(...any) error) error {
		if err := scan(dest...); err != nil {
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
		st.from = r.position
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
	key := []int64{0}
	if err := f.s.parseCursor(f.scope, f.q.Cursor, key); err != nil {
		return "", err
	}
	back := order{keyDescending: !f.q.Sort[0].Descending}
	step := int64(1)
	if back.keyDescending {
		step = -1
	}
	err = f.s.view(ctx, func(v *view) error {
		_, at, more, err := f.walk(v, back, position{key: key[0] - step})
		if err == nil && more {
			cursor = f.cursor(position{key: at.key + step})
		}
		return err
	})
	return cursor, err
}
