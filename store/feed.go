package store

import (
	"context"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// feed is a list that goes by cursor, and the query of one of its pages. The
// cursor is the position of the last row of the page before.
type feed struct {
	s         *core
	q         *webhook.ListQuery
	scope     cursorScope
	streams   []stream
	binds     binds // of all streams
	low, high int64 // the bounds of the key, both exclusive
	budget    int   // rows that a page may look at

	// find, unless it is nil, returns the streams of what lies behind a position.
	find func(v *view, o order, from position) ([]stream, error)
}

// stream is rows that are read along an access, some at a time; or that are in
// memory. No row is in two streams of a feed.
type stream struct {
	*access       // nil: all rows are in memory
	binds   binds // of this stream alone

	rows []row    // that have been read, and not yet come to
	from position // behind which the next are
	size int      // how many to read next
	done bool     // there is no more to read
}

// row is a position, and whether the filters let the row there through.
type row struct {
	position
	ok bool
}

// byCompletion says whether completed_at is the value of positions.
func (f *feed) byCompletion() bool { return f.q.Sort[0].Name == "completed_at" }

// order returns the order of the list.
func (f *feed) order() order {
	if f.byCompletion() {
		return order{f.q.Sort[0].Descending, f.q.Sort[min(1, len(f.q.Sort)-1)].Descending}
	}
	return order{keyDescending: f.q.Sort[0].Descending}
}

// page returns the keys of the page, and the cursor of the next, "" on the last.
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

// start returns the position behind which the page begins.
func (f *feed) start(o order) (from position, err error) {
	switch {
	case f.byCompletion() && f.q.Cursor != "":
		return f.completionPlace(o)
	case f.byCompletion():
		return f.firstCompletion(o), nil
	case f.q.Cursor == "":
		return o.start(0), nil
	}
	place := []int64{0}
	err = f.s.place(f.scope, f.q.Cursor, place)
	return position{key: place[0]}, err
}

// cursor renders a position.
func (f *feed) cursor(at position) string {
	if f.byCompletion() {
		return f.s.cursor(f.scope, []int64{at.at, at.key})
	}
	return f.s.cursor(f.scope, []int64{at.key})
}

// walk returns the keys of a page behind a position: the rows of the streams,
// merged, that the filters let through. It looks at no more than the budget of
// rows, but for one of each stream, and leaves off when its time is over. more
// says that it left off at the position at, and not for want of rows.
func (f *feed) walk(v *view, o order, from position) (keys []int64, at position, more bool, err error) {
	streams := slices.Clone(f.streams)
	if f.find != nil {
		if streams, err = f.find(v, o, from); err != nil {
			return nil, from, false, err
		}
	}
	w := walker{view: v, feed: f, order: o, over: f.s.lists.over(time.Now())}
	w.begin(streams, from)
	last := from // that was let through
	for at = from; ; {
		next := w.first(streams)
		switch {
		case next == nil:
			return keys, at, false, nil
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
		case at != from && w.spent(): // the next page begins further on
			return keys, at, true, nil
		default:
			if err := w.read(next); err != nil {
				return nil, at, false, err
			}
		}
	}
}

// walker is what the streams of a walk have in common.
type walker struct {
	*view
	*feed
	order  order
	over   time.Time
	looked int
}

// spent says whether a walk is to look at no more rows.
func (w *walker) spent() bool {
	return w.looked >= w.budget || w.feed.s.lists.late(w.looked, w.over)
}

// begin puts each stream where it begins behind a position. In the order of
// completed_at, the streams without a value are of deliveries that are not
// completed: those come last, and are read when a walk comes to them.
func (w *walker) begin(streams []stream, from position) {
	begin := 0 // at once
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
	// Of each stream a few rows are read at a time, since which of them the next
	// rows are in is not known; of one alone, as many as are needed.
	size := w.budget
	if begin > 1 {
		size = min(max((w.q.Size+1)*2/begin, 8), max(w.budget/begin, 1))
	}
	for i := range streams {
		streams[i].size = size
	}
}

// first returns the stream that has the next row, or may have it once it is read;
// nil when none has any.
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

// read reads the next rows of a stream, at least one if there is any.
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
			st.rows[n-1] = r // only how far it came is of interest
		} else {
			st.rows = append(st.rows, r)
		}
		st.from = r.position
		looked++
		w.looked++
		if enough = found > w.q.Size || w.feed.s.lists.late(w.looked, w.over); enough {
			return sqlite.ErrStop
		}
		return nil
	})
	st.done = looked < size && !enough
	return err
}

// beyond narrows the bounds of a key to what comes after a place.
func beyond(place int64, descending bool, low, high int64) (int64, int64) {
	if descending {
		return low, min(high, place)
	}
	return max(low, place), high
}

// newer returns the cursor of the page before the one that the query asks for by
// its cursor, "" when that is the first: it walks the other way round, from the
// place of the cursor on, which is on that page.
func (f *feed) newer(ctx context.Context) (cursor string, err error) {
	place := []int64{0}
	if err := f.s.place(f.scope, f.q.Cursor, place); err != nil {
		return "", err
	}
	back := order{keyDescending: !f.q.Sort[0].Descending}
	step := int64(1)
	if back.keyDescending {
		step = -1
	}
	err = f.s.view(ctx, func(v *view) error {
		_, at, more, err := f.walk(v, back, position{key: place[0] - step})
		if err == nil && more {
			cursor = f.cursor(position{key: at.key + step})
		}
		return err
	})
	return cursor, err
}
