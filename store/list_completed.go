package store

import (
	"math"
	"slices"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// A place in the order of completed_at. That order changes while it is read:
// what is not completed comes last, and then is completed. So the order is that
// of the moment when the first page was read: down from the last completion of
// that moment (when it descends); then what was completed since, upwards; then
// what is not completed. What is completed while the last part is read is found
// when the part before is looked at again, unless the last part has shown it.
const (
	placePart   = iota // partDown or partUp
	placeAt            // completed_at and
	placeNum           // num of the last row of that part
	placeTail          // num of the last row that was shown of those not completed
	placeLatest        // completed_at of the last completion when the first page was read
	completedPlace
)

const (
	partDown = iota
	partUp   // and then the tail
)

// byCompletion returns a page in the order of completed_at, and the place to
// go on from.
func (l *deliveryList) byCompletion(place []int64) (nums []int64, after []int64, err error) {
	w := completionWalk{deliveryList: l, place: place, want: l.q.Size + 1, left: l.budget(), over: l.s.lists.over(time.Now())}
	if err := w.begin(); err != nil {
		return nil, nil, err
	}
	w.few, w.isFew, err = l.set("next_attempt_at", "event", "error", "response_status", "status", "created_at")
	if err != nil {
		return nil, nil, err
	}
	more := false
	if place[placePart] == partDown {
		if more, err = w.part(true); err == nil && !more {
			place[placePart], place[placeAt], place[placeNum] = partUp, place[placeLatest], math.MaxInt64-w.start
		}
	}
	if err == nil && !more {
		more, err = w.part(false)
	}
	if err == nil && !more && l.q.Ranges["completed_at"] == (webhook.TimeRange{}) {
		more, err = w.tail()
	}
	if err != nil || !more {
		return w.nums, nil, err
	}
	if len(w.nums) == w.want {
		return w.nums[:l.q.Size], w.places[l.q.Size-1], nil
	}
	return w.nums, place, nil
}

// completionWalk walks along the order of completed_at, from a place on.
type completionWalk struct {
	*deliveryList
	place         []int64 // after the last row that was looked at
	tieDescending bool
	start         int64 // before the first num, in the order of ties
	earliest      int64 // completed_at of what the filters let through: nothing is completed before it is created

	few   []completion // all that the filters let through
	isFew bool         // few is known; the rows are read otherwise

	want   int // rows to find
	left   int // rows that may be looked at
	looked int
	over   time.Time
	nums   []int64   // found
	places [][]int64 // of nums, each after it
}

// begin sets the place to the start of the order if there is no cursor, and
// moves it past what the spans of time exclude.
func (w *completionWalk) begin() error {
	order, place := w.q.Sort, w.place
	w.tieDescending = order[min(1, len(order)-1)].Descending
	if w.tieDescending {
		w.start = math.MaxInt64
	}
	if w.q.Cursor == "" {
		place[placePart], place[placeAt], place[placeNum], place[placeTail] = partUp, 0, w.start, w.start
		if order[0].Descending {
			if err := w.Scan(lastCompletion, []any{w.subscriptionID}, &place[placeLatest]); err != nil {
				return err
			}
			place[placePart], place[placeAt] = partDown, place[placeLatest]
		}
	}
	completed := w.q.Ranges["completed_at"]
	for _, from := range []time.Time{completed.From, w.q.Ranges["created_at"].From} {
		if !from.IsZero() {
			w.earliest = max(w.earliest, from.UnixMilli())
		}
	}
	if place[placePart] == partUp && place[placeAt] < w.earliest {
		place[placeAt], place[placeNum] = w.earliest, w.start
	}
	if !completed.To.IsZero() && place[placePart] == partDown && place[placeAt] >= completed.To.UnixMilli() {
		place[placeAt], place[placeNum] = completed.To.UnixMilli(), w.start
	}
	return nil
}

// part walks along what is completed, in one direction, to its end. more says
// that it left off before.
func (w *completionWalk) part(descending bool) (more bool, err error) {
	low, high := w.low, w.high
	if !descending {
		low, high = beyond(w.place[placeTail], w.tieDescending, low, high)
	}
	if w.isFew {
		for _, c := range orderOf(w.few, descending, w.tieDescending) {
			if c.completed && w.follows(c, descending) && c.num > low && c.num < high && !w.visit(c, true) {
				return true, nil
			}
		}
		return false, nil
	}
	query := map[[2]bool]string{{false, false}: completionUpNumUp, {false, true}: completionUpNumDown, {true, false}: completionDownNumUp, {true, true}: completionDownNumDown}[[2]bool{descending, w.tieDescending}]
	err = w.Each(query, append([]any{w.left, low, high}, w.args(w.earliest, w.place[placeAt], w.place[placeNum])...), func(scan func(...any) error) error {
		c := completion{completed: true}
		var ok bool
		if err := scan(&c.at, &c.num, &ok); err != nil {
			return err
		}
		if more = !w.visit(c, ok); more {
			return sqlite.ErrStop
		}
		return nil
	})
	return more, err
}

// follows says whether a completed delivery comes after the place.
func (w *completionWalk) follows(c completion, descending bool) bool {
	if c.at != w.place[placeAt] {
		return descending == (c.at < w.place[placeAt])
	}
	return c.num != w.place[placeNum] && w.tieDescending == (c.num < w.place[placeNum])
}

// visit moves the place to a completed delivery, which is found if the filters
// let it through, and says whether to go on.
func (w *completionWalk) visit(c completion, ok bool) bool {
	w.place[placeAt], w.place[placeNum] = c.at, c.num
	if ok {
		w.add(c.num)
	}
	w.left--
	w.looked++
	return len(w.nums) < w.want && w.left > 0 && !w.s.lists.late(w.looked, w.over)
}

func (w *completionWalk) add(num int64) {
	w.nums = append(w.nums, num)
	w.places = append(w.places, slices.Clone(w.place))
}

// tail walks along what is not completed. more says that it left off before the
// end.
func (w *completionWalk) tail() (more bool, err error) {
	low, high := beyond(w.place[placeTail], w.tieDescending, w.low, w.high)
	var rest []int64
	at := int64(0)
	if w.isFew {
		for _, c := range orderOf(w.few, false, w.tieDescending) {
			if !c.completed && c.num > low && c.num < high {
				rest = append(rest, c.num)
			}
		}
		if more = len(w.nums)+len(rest) >= w.want; more {
			rest = rest[:w.want-len(w.nums)]
			at = rest[len(rest)-1]
		}
	} else {
		streams := w.alongEach(deliveriesByStatus, []string{string(webhook.StatusPending), string(webhook.StatusRetryable)})
		if rest, at, more, err = w.walk(streams, w.tieDescending, low, high, w.want-len(w.nums), max(w.left, 2)); err != nil {
			return false, err
		}
	}
	for _, num := range rest {
		w.place[placeTail] = num
		w.add(num)
	}
	if more {
		w.place[placeTail] = at
	}
	return more, nil
}

// orderOf sorts deliveries by completed_at and then num.
func orderOf(all []completion, descending, tieDescending bool) []completion {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b completion) int {
		if a.at != b.at {
			if (a.at < b.at) != descending {
				return -1
			}
			return 1
		}
		if (a.num < b.num) != tieDescending {
			return -1
		}
		return 1
	})
	return all
}
