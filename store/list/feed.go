package list

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// Feed is a list with cursors, and the query of one of its pages. A position is the key of a
// row, such as num or seq. A cursor is the position of the last row of the previous page.
type Feed struct {
	Reader    *Reader
	Query     *webhook.ListQuery
	Scope     Scope
	Streams   []Stream
	Binds     Binds // of all streams
	Low, High int64 // exclusive bounds of the key
	Budget    int   // rows that a page may read

	// find, unless nil, returns the streams of the rows after a position.
	Find func(v *sqlite.View, descending bool, from int64) ([]Stream, error)
}

// Stream is a sequence of rows, read in chunks along an access, or all in memory. A row may be in
// several streams of a feed, such as a delivery of several events.
type Stream struct {
	*Access       // nil if all rows are in memory
	Binds   Binds // of this stream only

	Rows []Row // read but not yet merged
	from int64 // the next rows come after it
	size int   // rows to read next
	done bool  // nothing more to read
}

// Row is the key of a row, and whether it matches the filters.
type Row struct {
	Key int64
	OK  bool
}

// Page returns the keys of the page, and the cursor of the next page, "" on the last.
func (f *Feed) Page(v *sqlite.View) (keys []int64, next string, err error) {
	descending := f.Query.Sort[0].Descending
	from := Start(descending)
	if f.Query.Cursor != "" {
		if from, err = f.parse(); err != nil {
			return nil, "", err
		}
	}
	keys, at, more, err := f.Walk(v, descending, from)
	if more {
		next = f.cursor(at)
	}
	return keys, next, err
}

// Rows reads the rows of the page, and returns the cursor of the next page, "" on the last. The last
// argument of the query, after args, is the array of their keys, in whose order it selects them.
func Rows[T any](ctx context.Context, f *Feed, query string, args []any,
	scanRow func(scan func(...any) error) (T, error)) (rows []T, next string, err error) {
	err = f.Reader.DB.View(ctx, func(v *sqlite.View) error {
		var keys []int64
		if keys, next, err = f.Page(v); err != nil {
			return err
		}
		return v.Each(query, append(args, sqlite.JSON(keys)), sqlite.ScanInto(&rows, scanRow))
	})
	return rows, next, err
}

// AddStreams adds a stream along an access for each of the values that it looks up.
func (f *Feed) AddStreams(a *Access, values []string) {
	for _, value := range values {
		f.Streams = append(f.Streams, Stream{Access: a, Binds: Binds{"value": value}})
	}
}

// parse returns the position in the query's cursor.
func (f *Feed) parse() (int64, error) {
	key := []int64{0}
	err := f.Reader.Key.ParseCursor(f.Scope, f.Query.Cursor, key)
	return key[0], err
}

// cursor renders a position.
func (f *Feed) cursor(at int64) string { return f.Reader.Key.Cursor(f.Scope, []int64{at}) }

// Walk merges the streams and returns the keys of a page after a position. It reads at most
// budget rows, but at least one per stream, and stops when its time is up. more reports that
// it stopped at position at although rows may follow.
func (f *Feed) Walk(v *sqlite.View, descending bool, from int64) (keys []int64, at int64, more bool, err error) {
	streams := slices.Clone(f.Streams)
	if f.Find != nil {
		if streams, err = f.Find(v, descending, from); err != nil {
			return nil, from, false, err
		}
	}
	w := walker{View: v, Feed: f, descending: descending, deadline: f.Reader.Limits.Deadline(time.Now())}
	w.begin(streams, from)
	last := from // the last row that matched
	for at = from; ; {
		next := w.first(streams)
		switch {
		case next == nil:
			return keys, at, false, nil
		case len(next.Rows) > 0 && next.Rows[0].Key == at: // another stream contained it
			next.Rows = next.Rows[1:]
		case len(next.Rows) > 0:
			at = next.Rows[0].Key
			ok := next.Rows[0].OK
			next.Rows = next.Rows[1:]
			if ok && len(keys) == f.Query.Size {
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
	*sqlite.View
	*Feed
	descending bool
	deadline   time.Time
	looked     int // rows read
}

// spent reports whether the walk must not read more rows.
func (w *walker) spent() bool {
	return w.looked >= w.Budget || w.Feed.Reader.Limits.Late(w.looked, w.deadline)
}

// compare returns a negative number if position a precedes b.
func (w *walker) compare(a, b int64) int { return Down(w.descending, cmp.Compare(a, b)) }

// begin moves each stream to its first row after a position.
func (w *walker) begin(streams []Stream, from int64) {
	begin := 0 // streams that must be read
	for i := range streams {
		st := &streams[i]
		if st.from = from; st.Access != nil {
			begin++
			continue
		}
		st.done = true
		st.Rows = slices.DeleteFunc(st.Rows, func(r Row) bool { return w.compare(r.Key, from) <= 0 })
		slices.SortFunc(st.Rows, func(a, b Row) int { return w.compare(a.Key, b.Key) })
	}
	// With several streams read a few rows of each, since it is unknown which contains the next
	// ones; with one stream, as many as needed.
	size := w.Budget
	if begin > 1 {
		size = min(max((w.Query.Size+1)*2/begin, 8), max(w.Budget/begin, 1))
	}
	for i := range streams {
		streams[i].size = size
	}
}

// first returns the stream that contains the next row, or may once it is read; nil if none has
// more.
func (w *walker) first(streams []Stream) (first *Stream) {
	var least int64
	for i := range streams {
		st := &streams[i]
		at := st.from
		if len(st.Rows) > 0 {
			at = st.Rows[0].Key
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
func (w *walker) read(st *Stream) error {
	s := st.Up
	if w.descending {
		s = st.Down
	}
	low, high := Beyond(st.from, w.descending, w.Low, w.High)
	size := max(min(st.size, w.Budget-w.looked), 1)
	here := Binds{"low": low, "high": high, "limit": size}
	st.Rows, st.size = st.Rows[:0], st.size*4
	found, looked, enough := 0, 0, false
	var r Row
	err := w.Each(s.Text, s.Args(here, st.Binds, w.Binds), func(scan func(...any) error) error {
		if err := scan(&r.Key, &r.OK); err != nil {
			return err
		}
		if r.OK {
			found++
		}
		if n := len(st.Rows); n > 0 && !r.OK && !st.Rows[n-1].OK {
			st.Rows[n-1] = r // of rows that do not match, only the last position matters
		} else {
			st.Rows = append(st.Rows, r)
		}
		st.from = r.Key
		looked++
		w.looked++
		if enough = found > w.Query.Size || w.Feed.Reader.Limits.Late(w.looked, w.deadline); enough {
			return sqlite.ErrStop
		}
		return nil
	})
	st.done = looked < size && !enough
	return err
}

// Beyond narrows the bounds of keys to those after key.
func Beyond(key int64, descending bool, low, high int64) (int64, int64) {
	if descending {
		return low, min(high, key)
	}
	return max(low, key), high
}

// Newer returns the cursor of the page before the one at the query's cursor, "" if that is the
// first. It walks backwards, starting at the row of the cursor.
func (f *Feed) Newer(ctx context.Context) (cursor string, err error) {
	from, err := f.parse()
	if err != nil {
		return "", err
	}
	back, step := !f.Query.Sort[0].Descending, int64(1)
	if back {
		step = -1
	}
	err = f.Reader.DB.View(ctx, func(v *sqlite.View) error {
		_, at, more, err := f.Walk(v, back, from-step)
		if err == nil && more {
			cursor = f.cursor(at + step)
		}
		return err
	})
	return cursor, err
}

// MaxArrived bounds the count of new rows in a list.
const MaxArrived = 1_000

// Arrived counts the rows of a list that were stored after a mark.
type Arrived struct {
	Mark  string // the mark of the newest row, regardless of the filters, for the next call
	Count int    // rows that match the filters
	More  bool   // counting stopped early: there may be more
}

// Arrived counts the rows with a key greater than a mark. newest selects the greatest key.
func (f *Feed) Arrived(ctx context.Context, mark, newest string, args []any) (a Arrived, err error) {
	err = f.Reader.DB.View(ctx, func(v *sqlite.View) error {
		var key int64
		if err := v.Scan(newest, args, &key); err != nil {
			return err
		}
		a.Mark = strconv.FormatInt(key, 10)
		after, err := strconv.ParseInt(mark, 10, 64)
		if err != nil || after < 0 || after >= key {
			return nil // the first call, or an invalid mark
		}
		keys, _, more, err := f.Walk(v, false, after)
		a.Count, a.More = len(keys), more
		return err
	})
	return a, err
}
