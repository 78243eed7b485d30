package web

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store/watch"
	"service/web/ui"
	"service/webhook"
)

const (
	// livePace is the minimum time between two updates of a list. While new deliveries are only
	// counted, updates come at countPace.
	livePace  = 500 * time.Millisecond
	countPace = time.Second
	// liveRate is the maximum number of new rows per second that a list receives; further rows are
	// only counted. A new stream sends up to liveRows that its page has missed.
	liveRate = 20
	liveRows = 50 // maximum rows of a live list, as in live.js
	// liveSlack is the maximum delay between the timestamp of a change and its commit.
	liveSlack = 10 * time.Second

	behindParameter = "behind" // ID of a delivery: requests the list page that begins after it
)

// livePoint is the position up to which a list page was updated. It is the ID of an event of the
// stream.
type livePoint struct {
	last int64     // num of the newest delivery that was counted or shown
	top  int64     // num of the newest delivery whose row the page received
	at   time.Time // when the store was read
}

func (p livePoint) String() string {
	return fmt.Sprintf("%d-%d-%d", p.last, p.top, p.at.UnixMilli())
}

// parseLivePoint parses the result of String.
func parseLivePoint(s string) (p livePoint, ok bool) {
	parts := strings.Split(s, "-")
	if len(parts) != 3 {
		return p, false
	}
	var n [3]int64
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil || n[i] < 0 {
			return p, false
		}
	}
	return livePoint{n[0], n[1], time.UnixMilli(n[2])}, true
}

// liveUpdate is one update of a list.
type liveUpdate struct {
	count   int           // number of new deliveries
	more    bool          // the count is a lower bound: counting took too long
	rate    int           // new deliveries per second
	fresh   []deliveryRow // new rows, newest first; nil if they are only counted
	changed []deliveryRow // rows that the page has
	late    []deliveryRow // rows that the page may lack, though their deliveries are older
}

// rowKind says where the script inserts a row from the stream.
type rowKind int

const (
	rowNew     rowKind = iota // at the top
	rowChanged                // replaces the row with its ID; ignored if there is none
	rowLate                   // replaces the row with its ID, or is inserted by its time
)

// liveList follows the deliveries of a query for one page. It reads only rows that the page will
// show.
type liveList struct {
	*site
	query *webhook.ListQuery
	point livePoint

	shown []int64          // nums of the rows of the page, newest first
	open  map[int64]string // what the page shows of deliveries in progress, by num; "" if unknown

	gap       bool    // the page lacks rows of counted deliveries
	first     bool    // nothing has been sent yet
	allowance float64 // number of new rows that may be sent now
	looked    time.Time
}

// listStream streams the updates of a list.
func (h *deliveryPages) listStream(r *request) (response, error) {
	v, err := r.listing(webhook.AllDeliveryList)
	if err != nil {
		return response{}, err
	}
	if v.Error != nil {
		return response{}, &problem{status: http.StatusBadRequest, title: "These deliveries cannot be watched", text: v.Error.Error()}
	}
	q := ofProgram(&v.Query, r.program)
	return response{stream: func(s *stream) error {
		watcher := h.store.WatchDeliveries()
		defer watcher.Close()
		l, err := h.newLiveList(s.Context(), q, s.lastID)
		if err != nil {
			return err
		}
		for {
			c := r.clock
			c.Now = time.Now()
			u, err := l.update(s.Context(), watcher.Take().Deliveries)
			if err != nil {
				return err
			}
			if u.count+len(u.changed)+len(u.late) > 0 {
				if err := s.send(l.point.String(), liveBatch(c, u)); err != nil {
					return err
				}
			}
			pace := livePace
			if u.count > len(u.fresh) {
				pace = countPace
			}
			if err := s.pause(pace); err != nil {
				return err
			}
			if err := s.await(watcher.C, func() bool { return true }); err != nil {
				return err
			}
		}
	}}, nil
}

// newLiveList returns the list of a page that was updated up to a point. An invalid point means
// that the page is up to date.
func (h *deliveryPages) newLiveList(ctx context.Context, q *webhook.ListQuery, point string) (*liveList, error) {
	l := &liveList{site: h.site, query: q, first: true, allowance: liveRows, open: make(map[int64]string)}
	var ok bool
	if l.point, ok = parseLivePoint(point); !ok {
		newest, err := h.store.Deliveries().Newest(ctx)
		if err != nil {
			return nil, err
		}
		l.point = livePoint{newest, newest, time.Now()}
	}
	l.gap = l.point.last != l.point.top
	page, nums, err := h.store.Deliveries().UpTo(ctx, q, l.point.top, max(liveRows, q.Size))
	l.shown = nums
	for i, d := range page {
		if !d.Status.Final() || d.CompletedAt.After(l.point.at.Add(-liveSlack)) {
			l.open[nums[i]] = ""
		}
	}
	return l, err
}

// update returns the new rows since the last update, and the changed rows.
func (l *liveList) update(ctx context.Context, named map[int64]struct{}) (*liveUpdate, error) {
	now := time.Now()
	elapsed := now.Sub(l.looked).Seconds()
	if !l.first {
		l.allowance = min(l.allowance+liveRate*elapsed, liveRate)
	}
	a, err := l.store.Deliveries().Arrivals(ctx, l.query, l.point.last, int(l.allowance))
	if err != nil {
		return nil, err
	}
	u := &liveUpdate{count: a.Count, more: a.More}
	if !l.first {
		u.rate = int(float64(a.Count)/elapsed + 0.5)
	}
	changed, nums, err := l.changes(ctx, named)
	if err != nil {
		return nil, err
	}
	late, lateNums, err := l.late(ctx, named)
	if err != nil {
		return nil, err
	}
	rows, err := l.deliveryRows(ctx, slices.Concat(a.Rows, changed, late))
	if err != nil {
		return nil, err
	}
	behind := len(a.Rows) + len(changed)
	u.fresh, u.changed, u.late = rows[:len(a.Rows)], rows[len(a.Rows):behind], rows[behind:]
	l.note(u.changed, nums)
	l.note(u.fresh, a.Nums)
	l.note(u.late, lateNums)
	l.insert(lateNums)
	if l.first && l.rowsChange() {
		// The page may be older than the state that the stream assumes.
		u.changed, u.late = nil, append(u.late, u.changed...)
	}
	// Deliveries that matched only after they were counted are missing from the count.
	u.more = u.more || u.count > len(u.fresh) && l.rowsChange()
	l.allowance -= float64(len(u.fresh))
	l.first, l.looked = false, now
	l.point.last, l.point.at = a.Newest, now
	if l.gap = l.gap || a.More || a.Count > len(a.Rows); !l.gap {
		l.point.top = a.Newest // even if nothing has matched so far
	}
	if len(a.Nums) == 0 {
		return u, nil
	}
	l.point.top = max(l.point.top, a.Nums[0])
	l.shown = slices.Concat(a.Nums, l.shown)
	for _, num := range l.shown[min(liveRows, len(l.shown)):] {
		delete(l.open, num)
	}
	l.shown = l.shown[:min(liveRows, len(l.shown))]
	return u, nil
}

// changes returns the rows that differ from what the page shows, with their nums. It checks the
// deliveries that the store reports as changed.
func (l *liveList) changes(ctx context.Context, named map[int64]struct{}) (changed []webhook.Delivery, of []int64, err error) {
	_, unnamed := named[0]
	every := l.first || unnamed || len(named) >= watch.MaxChanged
	var nums []int64
	for num := range l.open {
		if _, ok := named[num]; ok || every {
			nums = append(nums, num)
		}
	}
	if nums == nil {
		return nil, nil, nil
	}
	slices.Sort(nums)
	all, found, err := l.store.Deliveries().At(ctx, nums)
	for i := range all {
		if liveState(&all[i]) != l.open[found[i]] {
			changed, of = append(changed, all[i]), append(of, found[i])
		}
	}
	return changed, of, err
}

// rowsChange reports whether a stored delivery can start to match the query later.
func (l *liveList) rowsChange() bool {
	for _, name := range []string{"status", "response_status", "error", "attempts_made.from"} {
		if l.query.Filters[name] != nil {
			return true
		}
	}
	_, completed := l.query.Ranges["completed_at"]
	_, next := l.query.Ranges["next_attempt_at"]
	return completed || next
}

// late returns the deliveries that belong on the page but match the query only since they changed,
// with their nums.
func (l *liveList) late(ctx context.Context, named map[int64]struct{}) (late []webhook.Delivery, nums []int64, err error) {
	if l.gap || len(named) == 0 || !l.rowsChange() {
		return nil, nil, nil
	}
	page, of, err := l.store.Deliveries().UpTo(ctx, l.query, l.point.top, liveRows)
	for i, num := range of {
		full := len(l.shown) >= liveRows
		if !slices.Contains(l.shown, num) && !(full && num < l.shown[liveRows-1]) {
			late, nums = append(late, page[i]), append(nums, num)
		}
	}
	return late, nums, err
}

// insert adds late rows to the rows of the page.
func (l *liveList) insert(nums []int64) {
	if len(nums) == 0 {
		return
	}
	l.shown = append(slices.Clone(l.shown), nums...)
	slices.SortFunc(l.shown, func(a, b int64) int { return cmp.Compare(b, a) })
	l.shown = l.shown[:min(liveRows, len(l.shown))]
}

// note records what the page shows of rows that may change again.
func (l *liveList) note(rows []deliveryRow, nums []int64) {
	for i, num := range nums {
		if rows[i].Status.Final() {
			delete(l.open, num)
		} else {
			l.open[num] = liveState(&rows[i].Delivery)
		}
	}
}

// liveState changes whenever the content of the row changes.
func liveState(d *webhook.Delivery) string {
	return fmt.Sprintf("%s-%d-%d", d.Status, d.AttemptsMade, d.NextAttemptAt.UnixMilli())
}

// pageBehind redirects to the page of the list that begins after a delivery.
func (h *deliveryPages) pageBehind(r *request, v *ui.Listing, id string) (response, error) {
	cursor, err := h.store.Deliveries().Behind(r.Context(), ofProgram(&v.Query, r.program), id)
	if err != nil {
		return response{}, asProblem(err)
	}
	return response{location: v.PageAddress(cursor, 1)}, nil
}
