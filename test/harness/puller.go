package harness

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// programLog is the path of the whole log of a token's program, in accept order.
const programLog = "/v2/events?sort=received_at"

// LogEvent is an event as a log shows it.
type LogEvent struct {
	ID        string
	Seq       int64
	Name      string
	ContentID int64 `json:"content_id"`
}

// PulledLog is a log that pullers follow.
type PulledLog struct {
	Name  string
	Token string
	// Path is that of a subscription's events, or "" for the program's log.
	Path string
	// Wants reports whether the log must show an event of the program; nil for all.
	Wants func(e *LogEvent) bool
}

// logPosition is a position in a log, which a cursor encodes.
type logPosition struct{ parent, epoch, head, seq int64 }

// parsePosition returns the position of a cursor. Nothing but a test may look into one.
func parsePosition(cursor string) (p logPosition, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < 32 {
		return p, fmt.Errorf("the cursor %q has another format", cursor)
	}
	for i, n := range []*int64{&p.parent, &p.epoch, &p.head, &p.seq} {
		*n = int64(binary.BigEndian.Uint64(b[8*i:]))
	}
	return p, nil
}

// pullMode is how a puller reads.
type pullMode string

const (
	byCursor pullMode = "by cursor" // one page after the other, with wait
	byStream pullMode = "by stream" // as text/event-stream, which it resumes with Last-Event-ID
	rarely   pullMode = "rarely"    // a short page after each second strike, so that its cursor is old
)

var pullModes = []pullMode{byCursor, byStream, rarely}

// Pullers follow logs while a test kills or moves the service, and compare what they saw with what the
// logs have in the end.
type Pullers struct {
	// Base returns the URL to use for the nth try of a puller, and false when ctx has ended.
	Base func(ctx context.Context, puller, try int) (string, bool)
	// Tolerates reports whether a status other than 200, 503 and 504 is due to what the test does; may
	// be nil.
	Tolerates func(status int) bool

	tb      testing.TB
	client  *http.Client
	ctx     context.Context // ends with Finish
	quit    context.CancelFunc
	working sync.WaitGroup
	all     []*puller
	whole   map[string]*wholeLog // by token

	mu       sync.Mutex
	strikes  int
	struck   chan struct{} // closed and replaced by Strike
	sights   int
	requests int
	broken   int                   // requests without an answer, or with one that was cut off
	epochs   map[int64]logPosition // by epoch, with its parent and head
	faults   []string
}

// puller reads one log in one mode. Its fields belong to its goroutine, and after it to Finish.
type puller struct {
	*Pullers
	PulledLog
	mode   pullMode
	number int
	cursor string
	start  logPosition // of its first cursor
	at     logPosition // of cursor
	seen   []sight
}

// sight is an event that a puller saw.
type sight struct {
	LogEvent
	epoch int64
}

// wholeLog is a program's log, read from a fresh cursor.
type wholeLog struct {
	events []LogEvent
	seqs   map[string]int64 // by event ID
	end    logPosition
}

// NewPullers returns pullers that follow nothing yet.
func NewPullers(tb testing.TB, base func(ctx context.Context, puller, try int) (string, bool)) *Pullers {
	ps := &Pullers{
		Base: base, tb: tb, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		struck: make(chan struct{}), epochs: make(map[int64]logPosition), whole: make(map[string]*wholeLog),
	}
	ps.ctx, ps.quit = context.WithCancel(context.Background())
	tb.Cleanup(func() {
		ps.quit()
		ps.working.Wait()
		ps.client.CloseIdleConnections()
	})
	return ps
}

// PullInstance returns pullers of an instance.
func PullInstance(in *Instance) *Pullers {
	return NewPullers(in.TB, func(ctx context.Context, _, _ int) (string, bool) { return in.AwaitURL(ctx) })
}

// Follow starts a puller of each mode on each log: from the beginning of a program's log, and from now
// on a subscription's. The first page is read where Base sends puller 0.
func (ps *Pullers) Follow(logs ...PulledLog) {
	ps.tb.Helper()
	for _, log := range logs {
		for _, mode := range pullModes {
			p := &puller{Pullers: ps, PulledLog: log, mode: mode}
			WaitFor(ps.tb, "the first page of "+p.String(), func() bool { return p.page(ps.ctx, 0, "page[size]=1") == nil })
			p.start = p.at
			if log.Path == "" {
				p.start.seq = 0
			}
			p.number = len(ps.all)
			ps.all = append(ps.all, p)
			ps.working.Go(p.run)
		}
	}
}

func (p *puller) String() string {
	return fmt.Sprintf("puller %d of %s %s", p.number, p.PulledLog.Name, p.mode)
}

// Strike tells the pullers that the test is about to do what they must survive.
func (ps *Pullers) Strike() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.strikes++
	close(ps.struck)
	ps.struck = make(chan struct{})
}

// AwaitSights waits until the pullers have seen n more events. It returns false if ended is closed first.
func (ps *Pullers) AwaitSights(n int, ended <-chan struct{}) bool {
	ps.tb.Helper()
	count := func() int {
		ps.mu.Lock()
		defer ps.mu.Unlock()
		return ps.sights
	}
	end, alive := count()+n, true
	WaitFor(ps.tb, "the pullers to see events", func() bool {
		select {
		case <-ended:
			alive = false
		default:
		}
		return !alive || count() >= end
	})
	return alive
}

func (ps *Pullers) fault(format string, args ...any) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.faults = append(ps.faults, fmt.Sprintf(format, args...))
}

// run reads until Finish.
func (p *puller) run() {
	for try := 0; p.ctx.Err() == nil; {
		var err error
		switch p.mode {
		case byStream:
			err = p.stream(p.ctx, try)
		case byCursor:
			err = p.page(p.ctx, try, "wait=10s")
		default:
			if err = p.page(p.ctx, try, "page[size]=7"); err == nil && !p.awaitStrikes(2) {
				return
			}
		}
		if err == nil {
			continue
		}
		try++
		Pause(p.ctx, 20*time.Millisecond)
	}
}

// awaitStrikes waits for n more strikes, and returns false when Finish was called first.
func (ps *Pullers) awaitStrikes(n int) bool {
	for range n {
		ps.mu.Lock()
		struck := ps.struck
		ps.mu.Unlock()
		select {
		case <-struck:
		case <-ps.ctx.Done():
			return false
		}
	}
	return true
}

// get sends a request, and returns an error unless the response is 200.
func (p *puller) get(ctx context.Context, try int, query, media string) (*http.Response, error) {
	base, ok := p.Base(ctx, p.number, try)
	if !ok {
		return nil, context.Canceled
	}
	path := p.Path
	if path == "" {
		path = programLog
	}
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	if query != "" {
		path += separator + query
	}
	req, err := http.NewRequestWithContext(ctx, "GET", base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+p.Token)
	if media != "" {
		req.Header.Set("Accept", media)
		req.Header.Set("Last-Event-ID", p.cursor)
	}
	p.count(&p.requests)
	resp, err := p.client.Do(req)
	if err != nil {
		p.count(&p.broken)
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	resp.Body.Close()
	switch status := resp.StatusCode; {
	case status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout, p.Tolerates != nil && p.Tolerates(status):
	default:
		p.fault("%s: status %d", p, status)
	}
	p.count(&p.broken)
	return nil, fmt.Errorf("status %d", resp.StatusCode)
}

func (ps *Pullers) count(n *int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	*n++
}

// page reads the page after the cursor.
func (p *puller) page(ctx context.Context, try int, query string) error {
	if p.cursor != "" {
		query += "&page[cursor]=" + p.cursor
	}
	resp, err := p.get(ctx, try, query, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var page struct {
		Data []LogEvent
		Meta struct {
			Pagination struct{ Next string }
			Truncated  bool
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		p.count(&p.broken)
		return err
	}
	next, err := parsePosition(page.Meta.Pagination.Next)
	if err != nil {
		p.fault("%s: %v", p, err)
		return err
	}
	if page.Meta.Truncated {
		p.fault("%s got a truncated log", p)
	}
	for i := range page.Data {
		at := next
		at.seq = page.Data[i].Seq
		p.see(&page.Data[i], at)
	}
	p.move(page.Meta.Pagination.Next, next)
	return nil
}

// stream reads a stream until it ends.
func (p *puller) stream(ctx context.Context, try int) error {
	resp, err := p.get(ctx, try, "", "text/event-stream")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	id, name, data := "", "", ""
	for lines.Scan() {
		if lines.Text() != "" {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "id":
				id = value
			case "event":
				name = value
			case "data":
				data = value
			}
			continue
		}
		if name == "truncated" {
			p.fault("%s got a truncated log", p)
		}
		if id != "" {
			if err := p.streamed(id, data); err != nil {
				p.fault("%s: %v", p, err)
				return err
			}
		}
		id, name, data = "", "", ""
	}
	p.count(&p.broken)
	return errors.Join(errors.New("the stream ended"), lines.Err())
}

// streamed notes an entry of a stream, whose data is "" if it is only a position.
func (p *puller) streamed(id, data string) error {
	at, err := parsePosition(id)
	if err != nil {
		return err
	}
	if data != "" {
		var e LogEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return err
		}
		if e.Seq != at.seq {
			return fmt.Errorf("the event %d has a cursor of the position %d", e.Seq, at.seq)
		}
		p.see(&e, at)
	}
	p.move(id, at)
	return nil
}

// see notes an event that follows the puller's position.
func (p *puller) see(e *LogEvent, at logPosition) {
	if at.epoch == p.at.epoch && at.seq <= p.at.seq {
		p.fault("%s saw event %d after the position %d of the same epoch", p, at.seq, p.at.seq)
	}
	p.seen, p.at = append(p.seen, sight{*e, at.epoch}), at
	p.count(&p.sights)
}

// move continues at a cursor.
func (p *puller) move(cursor string, at logPosition) {
	if at.epoch == p.at.epoch && at.seq < p.at.seq {
		p.fault("%s was sent back from %d to %d of the same epoch", p, p.at.seq, at.seq)
	}
	p.cursor, p.at = cursor, at
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epochs[at.epoch] = at
}

// Finish reads the whole logs from fresh cursors, and lets every puller continue to the end. Nothing may
// be published any more.
func (ps *Pullers) Finish() {
	ps.tb.Helper()
	ps.quit()
	ps.working.Wait()
	for _, p := range ps.all {
		if ps.whole[p.Token] == nil {
			ps.whole[p.Token] = p.readWhole()
		}
		end := ps.whole[p.Token].end
		p.drain(func(bool) bool { return p.at.epoch == end.epoch && p.at.seq == end.seq })
	}
}

// readWhole reads the log of the puller's program.
func (p *puller) readWhole() *wholeLog {
	p.tb.Helper()
	reader := &puller{Pullers: p.Pullers, PulledLog: PulledLog{Name: "the whole log", Token: p.Token}, number: p.number}
	reader.drain(func(empty bool) bool { return empty })
	log := &wholeLog{seqs: make(map[string]int64), end: reader.at}
	for _, s := range reader.seen {
		log.events = append(log.events, s.LogEvent)
		log.seqs[s.ID] = s.Seq
	}
	return log
}

// drain reads pages until done returns true. Its argument says whether the last page was empty.
func (p *puller) drain(done func(empty bool) bool) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout())
	defer cancel()
	for try, empty := 0, false; !done(empty); {
		before := len(p.seen)
		err := p.page(ctx, try, "page[size]=100")
		if empty = err == nil && len(p.seen) == before; err != nil {
			try++
		}
		if ctx.Err() != nil {
			p.tb.Fatalf("%s does not reach the end of the log: it is at %+v: %v", p, p.at, err)
		}
	}
}

// pullCounts counts what the pullers saw.
type pullCounts struct{ seen, skipped, twice, again, lost, wrong int }

// Check compares what the pullers saw with the logs, after Finish, and logs one line of figures, which
// says what the pullers survived. Nothing may be skipped, nothing seen twice in an epoch, and nothing out
// of order. What was seen must be in the log, or with lossy may have been lost with what was not in the
// replica yet. published reports whether an event was published; nil does not check that.
func (ps *Pullers) Check(survived string, published func(id string) bool, lossy bool) {
	ps.tb.Helper()
	var n pullCounts
	for _, p := range ps.all {
		p.compare(&n, published, lossy)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.tb.Logf("pull: %d pullers through %s in %d epochs: %d events seen, %d skipped, %d twice in an epoch, %d in two epochs, "+
		"%d seen and lost, %d other faults; %d requests, %d broken off or refused", len(ps.all), survived, len(ps.epochs),
		n.seen, n.skipped, n.twice, n.again, n.lost, len(ps.faults)-n.wrong, ps.requests, ps.broken)
	for i, fault := range ps.faults {
		if i == 20 {
			ps.tb.Errorf("and %d more faults", len(ps.faults)-i)
			break
		}
		ps.tb.Error(fault)
	}
}

// compare compares what a puller saw with the whole log.
func (p *puller) compare(n *pullCounts, published func(id string) bool, lossy bool) {
	log, epochs := p.whole[p.Token], make(map[string]int64) // by the ID of an event that was seen
	fault := func(count *int, format string, args ...any) {
		*count++
		n.wrong++
		p.fault("%s "+format, append([]any{p}, args...)...)
	}
	other := 0
	for _, s := range p.seen {
		n.seen++
		seq, kept := log.seqs[s.ID]
		before, again := epochs[s.ID]
		epochs[s.ID] = s.epoch
		switch {
		case published != nil && !published(s.ID):
			fault(&other, "saw %s, which was not published", s.ID)
		case p.Wants != nil && !p.Wants(&s.LogEvent):
			fault(&other, "saw %+v, which is not for it", s.LogEvent)
		case again && before == s.epoch:
			fault(&n.twice, "saw %s, number %d, twice in an epoch", s.ID, s.Seq)
		case again && lossy:
			n.again++
		case again:
			fault(&n.again, "saw %s, number %d, twice", s.ID, s.Seq)
		case !kept && lossy:
			n.lost++
		case !kept:
			fault(&n.lost, "saw %s, number %d, which is lost", s.ID, s.Seq)
		case seq != s.Seq && !lossy:
			fault(&other, "saw %s as number %d, which is number %d", s.ID, s.Seq, seq)
		}
	}
	n.wrong -= other
	start := p.kept(p.start, log.end.epoch)
	for i := range log.events {
		e := &log.events[i]
		if _, seen := epochs[e.ID]; !seen && e.Seq > start && (p.Wants == nil || p.Wants(e)) {
			fault(&n.skipped, "skipped %s, number %d of %d; it began after %d", e.ID, e.Seq, log.end.seq, start)
		}
	}
}

// kept returns up to where the log of a later epoch is the one that a position is in.
func (ps *Pullers) kept(from logPosition, later int64) int64 {
	for e := later; e != from.epoch; {
		at, known := ps.epochs[e]
		if !known || at.parent == e {
			break
		}
		from.seq, e = min(from.seq, at.head), at.parent
	}
	return from.seq
}

// PulledFilter is a filter of content_id, for a subscription that exists to be pulled.
const PulledFilter = `{"any":[{"path":"content_id","op":"lt","value":100},{"path":"content_id","op":"gte","value":200}]}`

// FilteredLog creates an inactive subscription to events with [PulledFilter], and returns its log. Its
// url must be valid; only a ping is sent to it.
func FilteredLog(in *Instance, token, url string, names ...string) PulledLog {
	in.TB.Helper()
	var events []map[string]any
	for _, name := range names {
		events = append(events, map[string]any{"name": name, "filter": json.RawMessage(PulledFilter)})
	}
	var answer struct{ Data struct{ ID string } }
	status, err := in.Call(in.TB.Context(), token, "POST", in.URL()+"/v2/webhooks/subscriptions",
		map[string]any{"url": url, "active": false, "events": events}, &answer)
	if err != nil || status != http.StatusCreated {
		in.TB.Fatalf("create a subscription with a filter: status %d, %v", status, err)
	}
	return PulledLog{Name: "a filtered subscription", Token: token, Path: "/v2/webhooks/subscriptions/" + answer.Data.ID + "/events",
		Wants: func(e *LogEvent) bool {
			return slices.Contains(names, e.Name) && (e.ContentID < 100 || e.ContentID >= 200)
		}}
}
