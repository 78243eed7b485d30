package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"service/api"
	"service/internal/move"
	"service/store"
	"service/store/storetest"
	"service/test/seed"
	"service/webhook"
)

// The promises of a move.
const (
	promiseOwner  = "one installation sends the deliveries of a program"
	promiseFrozen = "a program that moves is frozen for seconds"
	promiseThere  = "a program is active at one installation"
	promiseAgain  = "an event is sent again only if an attempt was interrupted"
)

// fate is the effect of the network on a request between two installations.
type fate string

const (
	fatePass       fate = "pass"
	fateSlow       fate = "delay it"
	fateDrop       fate = "drop it"
	fateMute       fate = "drop the response"
	fateTwice      fate = "repeat it"
	fateLate       fate = "repeat it later"
	fateCut        fate = "cut its body"
	fateOff        fate = "drop all for a minute"
	fateCrashFirst fate = "crash the target before it"
	fateCrashAfter fate = "crash the target after it"
	fateCrashFrom  fate = "crash the source when the target has it"
)

// The operations of a plan of moves.
const (
	doMove   operation = "move a program"
	doKill   operation = "crash an installation"
	doAnswer operation = "change what receivers do"
	doWait   operation = "wait"
	doCutOff operation = "cut the network off, or join it"
)

// movePlan is a drawn history of programs that move between two installations.
type movePlan struct {
	Programs int
	Ordered  []bool // of the subscriptions, which belong to the programs in turn
	Fates    []fate // of the requests in turn
	Steps    []moveStep
}

type moveStep struct {
	Do   operation
	N    int
	Wait time.Duration
}

func (p movePlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d programs, ordered %t, fates %q\n", p.Programs, p.Ordered, p.Fates)
	for _, st := range p.Steps {
		fmt.Fprintf(&b, "%s (%d), wait %s\n", st.Do, st.N, st.Wait)
	}
	return b.String()
}

func movePlans() *rapid.Generator[movePlan] {
	steps := rapid.Custom(func(t *rapid.T) moveStep {
		return moveStep{
			Do: rapid.SampledFrom([]operation{doPublish, doMove, doPublish, doMove, doWait, doAnswer, doKill, doCutOff, doPublish}).Draw(t, "do"),
			N:  rapid.IntRange(0, 15).Draw(t, "n"),
			Wait: rapid.SampledFrom([]time.Duration{0, 100 * time.Millisecond, time.Second, 3 * time.Second, 20 * time.Second, 20 * time.Minute}).
				Draw(t, "wait"),
		}
	})
	fates := rapid.SampledFrom([]fate{fatePass, fatePass, fatePass, fatePass, fateSlow, fateTwice, fateMute, fateDrop, fateLate, fateCut,
		fateOff, fateCrashFirst, fateCrashAfter, fateCrashFrom})
	return rapid.Custom(func(t *rapid.T) movePlan {
		return movePlan{
			Programs: rapid.IntRange(1, 2).Draw(t, "programs"),
			Ordered:  rapid.SliceOfN(rapid.Bool(), 1, 4).Draw(t, "ordered"),
			Fates:    rapid.SliceOfN(fates, 4, 30).Draw(t, "fates"),
			Steps:    rapid.SliceOfN(steps, 8, 40).Draw(t, "steps"),
		}
	})
}

// site is one of the two installations.
type site struct {
	*testbed
	number  int
	handler http.Handler
	source  *move.Source
	target  *move.Target
	end     context.CancelFunc // of the moves and the housekeeping
	ended   sync.WaitGroup
	down    bool // killed; guarded by moveSimulation.mu
	token   string
	conns   chan net.Conn // of the other installation
}

// moveSimulation plays one plan of moves and compares it with a model.
type moveSimulation struct {
	t       *testing.T
	plan    *movePlan
	catalog *webhook.Catalog
	seen    *tally
	at      [2]*site
	late    sync.WaitGroup // requests that the network repeats

	mu        sync.Mutex
	violation *violation
	calm      bool // the network works from now on
	off       bool // nothing passes
	offUntil  time.Time
	requests  int
	owner     map[string]int  // number of the installation that may send, by program
	activated map[string]bool // moves
	subs      []*movedSubscription
	mode      mode // of all receivers
}

// movedSubscription is a subscription and the events that its receiver has received.
type movedSubscription struct {
	id      string
	program string
	ordered bool
	events  []string        // accepted, in order
	unsure  map[string]bool // published while an installation crashed
	first   []string        // in the order in which they came first
	got     map[string]*movedEvent
}

type movedEvent struct {
	delivery    string    // the last
	attempts    int       // of that delivery
	acceptedAt  time.Time // the receiver responded 200; zero before
	interrupted bool      // the result of an attempt may not have been recorded
}

func (m *moveSimulation) violate(promise, format string, args ...any) {
	if m.violation == nil {
		m.violation = &violation{promise, fmt.Sprintf(format, args...)}
	}
}

// playMoves plays a plan. It returns the violation that it found, nil for none.
func playMoves(t *testing.T, dir string, p *movePlan, catalog *webhook.Catalog, seen *tally) (found *violation) {
	defer func() {
		if r := recover(); r != nil && found == nil { // the bubble deadlocked
			found = &violation{promiseIdle, fmt.Sprint(r, "\n", bubbleStacks())}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		m := &moveSimulation{t: t, plan: p, catalog: catalog, seen: seen, owner: make(map[string]int), activated: make(map[string]bool),
			mode: modeOK}
		for i := range m.at {
			w := &testbed{t: t, dir: fmt.Sprint(dir, "/", i), subscribers: make(map[netip.Addr]*subscriber),
				cfg: Config{BatchSize: 3, RetryPolicy: exactRetryPolicy()}}
			m.at[i] = &site{testbed: w, number: i, conns: make(chan net.Conn)}
			if err := os.MkdirAll(w.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			m.openSite(m.at[i])
			m.at[i].token = m.newToken(m.at[i], webhook.NewToken{UserID: "ops", Scopes: []webhook.Scope{webhook.ScopePlatform}})
			server := &http.Server{Handler: m.unreliable(m.at[i])}
			go server.Serve(siteListener{m.at[i].conns})
		}
		m.createPrograms()
		for _, st := range p.Steps {
			m.takeStep(st)
		}
		m.finishMoves()
		for _, s := range m.at {
			m.closeSite(s)
			close(s.conns)
			for _, r := range s.subscribers {
				close(r.conns)
			}
		}
		m.late.Wait()
		time.Sleep(10 * time.Minute) // until idle connections are closed
		found = m.violation
	})
	return found
}

// siteListener accepts the connections of the other installation.
type siteListener struct{ conns chan net.Conn }

func (l siteListener) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (siteListener) Close() error   { return nil }
func (siteListener) Addr() net.Addr { return &net.TCPAddr{} }

func (m *moveSimulation) newToken(s *site, n webhook.NewToken) string {
	_, secret, err := storetest.CreateToken(context.Background(), s.d.store, n)
	if err != nil {
		m.t.Fatal(err)
	}
	return secret
}

// openSite starts an installation.
func (m *moveSimulation) openSite(s *site) {
	s.openStore()
	logger := slog.New(slog.DiscardHandler)
	other := 1 - s.number
	s.target = &move.Target{Store: s.d.store, Catalog: m.catalog, Retry: exactRetryPolicy(), Logger: logger}
	s.source = &move.Source{Store: s.d.store, Catalog: m.catalog, Cut: s.d.Cut, Logger: logger,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case m.at[other].conns <- theirs:
				return ours, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
	handler := api.New(api.Config{Store: s.d.store, Catalog: m.catalog, Moves: s.target, Logger: logger})
	m.mu.Lock() // a request may still be on its way
	s.handler = handler
	m.mu.Unlock()
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	source, st := s.source, s.d.store
	s.ended.Go(func() {
		if err := source.Run(ctx); err != nil && !m.siteDown(s) {
			m.fails("the moves ended with %v", err)
		}
	})
	s.ended.Go(func() { st.Housekeep(ctx) })
	s.runDispatcher()
}

func (m *moveSimulation) fails(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.violate(promiseOperates, format, args...)
}

func (m *moveSimulation) siteDown(s *site) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return s.down
}

// crashSite ends an installation as kill -9 does: nothing more is stored.
func (m *moveSimulation) crashSite(s *site) {
	m.mu.Lock()
	if m.calm { // the request came before
		m.mu.Unlock()
		return
	}
	down := s.down
	s.down = true
	if !down {
		for _, sub := range m.subs {
			for _, e := range sub.got {
				e.interrupted = e.interrupted || e.acceptedAt.IsZero() || time.Since(e.acceptedAt) < time.Second
			}
		}
	}
	m.mu.Unlock()
	if !down {
		s.d.store.Close()
	}
}

// restartSite starts an installation that was killed.
func (m *moveSimulation) restartSite(s *site) {
	m.closeSite(s)
	m.mu.Lock()
	s.down = false
	m.mu.Unlock()
	m.openSite(s)
}

// closeSite ends the goroutines of an installation.
func (m *moveSimulation) closeSite(s *site) {
	down := m.siteDown(s)
	s.end()
	s.ended.Wait()
	s.target.Close()
	s.stop()
	err := <-s.done
	if err = errors.Join(err, s.d.store.Close()); err != nil && !down {
		m.fails("installation %d ended with %v", s.number, err)
	}
}

// createPrograms creates the programs and their subscriptions at the first installation.
func (m *moveSimulation) createPrograms() {
	s := m.at[0]
	for _, program := range simulatedPrograms[:m.plan.Programs] {
		m.newToken(s, webhook.NewToken{ProgramID: program, UserID: "u", Scopes: webhook.Scopes()})
		m.owner[program] = 0
	}
	for i, ordered := range m.plan.Ordered {
		sub := &movedSubscription{program: simulatedPrograms[i%m.plan.Programs], ordered: ordered,
			unsure: make(map[string]bool), got: make(map[string]*movedEvent)}
		m.subs = append(m.subs, sub)
		url := ""
		for _, at := range m.at {
			r := at.subscriber(nil)
			r.handler = func(w http.ResponseWriter, req *http.Request) { m.receiveFrom(at, sub, w, req) }
			url = r.url
		}
		names := []string{"content_updated"}
		stored, _, err := storetest.CreateSubscription(context.Background(), s.d.store, sub.program, "u",
			&webhook.SubscriptionFields{URL: &url, Events: &names, Ordered: &ordered})
		if sub.id = stored.ID; err != nil {
			m.t.Fatal(err)
		}
	}
}

// receiveFrom is the receiver of a subscription.
func (m *moveSimulation) receiveFrom(from *site, sub *movedSubscription, w http.ResponseWriter, req *http.Request) {
	var d struct {
		ID     string `json:"delivery_id"`
		Events []webhook.EventRef
	}
	if json.NewDecoder(req.Body).Decode(&d) != nil || d.Events[0].Name == webhook.EventPing {
		return
	}
	m.mu.Lock()
	if owner := m.owner[sub.program]; owner != from.number && !from.down {
		m.violate(promiseOwner, "%s is at installation %d, and %d has sent to it", sub.program, owner, from.number)
	}
	answer := m.mode
	for _, e := range d.Events {
		m.noteArrival(sub, d.ID, e.ID)
	}
	m.mu.Unlock()
	if answer == modeSlow {
		time.Sleep(3 * time.Second)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range d.Events {
		known := sub.got[e.ID]
		if answer != modeBusy && known.acceptedAt.IsZero() {
			known.acceptedAt = time.Now()
		}
		// The attempts of a frozen program are cut after two seconds.
		known.interrupted = known.interrupted || answer == modeSlow || from.down
	}
	if answer == modeBusy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// noteArrival records that an event has arrived in a delivery. The caller holds m.mu.
func (m *moveSimulation) noteArrival(sub *movedSubscription, delivery, event string) {
	known := sub.got[event]
	if known == nil {
		known = &movedEvent{delivery: delivery}
		sub.got[event] = known
		sub.first = append(sub.first, event)
	}
	if !known.acceptedAt.IsZero() && !known.interrupted {
		m.violate(promiseAgain, "an event of %s", sub.program)
	}
	if known.delivery != delivery {
		if known.attempts < webhook.MaxAttempts && !known.interrupted {
			m.violate(promiseOnce, "an event of %s came in a second delivery, after %d attempts of the first", sub.program, known.attempts)
		}
		known.delivery, known.attempts = delivery, 0
	}
	if known.attempts++; known.attempts > webhook.MaxAttempts {
		m.violate(promiseFive, "a delivery of %s", sub.program)
	}
}

// unreliable returns the handler of requests from the other installation: each request has the fate
// that the plan gives it.
func (m *moveSimulation) unreliable(s *site) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		does := m.plan.Fates[m.requests%len(m.plan.Fates)]
		if m.requests++; m.calm {
			does = fatePass
		}
		if m.off || time.Now().Before(m.offUntil) || s.down || m.at[1-s.number].down {
			does = fateDrop
		}
		m.seen.count(operation("network: " + does))
		m.mu.Unlock()
		switch does {
		case fateSlow:
			time.Sleep(time.Duration(1+m.requests%7) * time.Second)
		case fateOff:
			m.cutOff(time.Minute)
			panic(http.ErrAbortHandler)
		case fateDrop:
			panic(http.ErrAbortHandler)
		case fateCrashFirst:
			m.crashSite(s)
			panic(http.ErrAbortHandler)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		var sent io.Reader = bytes.NewReader(body)
		if does == fateCut && len(body) > 0 {
			sent = io.MultiReader(bytes.NewReader(body[:len(body)/2]), brokenBody{})
		}
		recorded := m.passOn(s, r, sent)
		switch does {
		case fateTwice:
			recorded = m.passOn(s, r, bytes.NewReader(body))
		case fateLate:
			again := r.Clone(context.WithoutCancel(r.Context()))
			m.late.Go(func() {
				time.Sleep(time.Duration(1+len(body)%40) * time.Second)
				if !m.siteDown(s) {
					m.passOn(s, again, bytes.NewReader(body))
				}
			})
		case fateCrashAfter:
			m.crashSite(s)
		case fateCrashFrom:
			m.crashSite(m.at[1-s.number])
		}
		if recorded == nil || does == fateMute || does == fateCut || m.siteDown(s) || m.siteDown(m.at[1-s.number]) {
			panic(http.ErrAbortHandler)
		}
		for name, values := range recorded.header {
			w.Header()[name] = values
		}
		w.WriteHeader(cmp.Or(recorded.status, http.StatusOK))
		_, _ = w.Write(recorded.body.Bytes())
	})
}

// cutOff makes the network drop everything for some time.
func (m *moveSimulation) cutOff(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.offUntil = time.Now().Add(d)
}

// brokenBody is the end of a body on a broken connection.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// recordedResponse is an unsent response.
type recordedResponse struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recordedResponse) Header() http.Header            { return r.header }
func (r *recordedResponse) WriteHeader(status int)         { r.status = cmp.Or(r.status, status) }
func (r *recordedResponse) Write(b []byte) (int, error)    { return r.body.Write(b) }
func (*recordedResponse) SetReadDeadline(time.Time) error  { return nil }
func (*recordedResponse) SetWriteDeadline(time.Time) error { return nil }
func (*recordedResponse) EnableFullDuplex() error          { return nil }

// passOn forwards a request to an installation. It returns nil if the handler gave up.
func (m *moveSimulation) passOn(s *site, r *http.Request, body io.Reader) (w *recordedResponse) {
	defer func() {
		if recover() != nil {
			w = nil
		}
	}()
	parts := strings.Split(r.URL.Path, "/") // /v2/programs/ID/move/MOVE/activate
	m.mu.Lock()
	if id := parts[len(parts)-2]; parts[len(parts)-1] == "activate" && !m.activated[id] {
		m.activated[id] = true
		m.owner[parts[3]] = s.number
	}
	handler := s.handler
	m.mu.Unlock()
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(body)
	w = &recordedResponse{header: make(http.Header)}
	handler.ServeHTTP(w, again)
	return w
}

func (m *moveSimulation) takeStep(st moveStep) {
	program := simulatedPrograms[st.N%m.plan.Programs]
	if st.N%2 == 0 {
		m.restartDown()
	}
	m.seen.count(st.Do)
	switch st.Do {
	case doPublish:
		m.publishTo(program, 1+st.N)
	case doMove:
		m.beginMove(program)
	case doKill:
		m.crashSite(m.at[st.N%2])
	case doAnswer:
		m.mu.Lock()
		m.mode = []mode{modeOK, modeSlow, modeBusy}[st.N%3]
		m.mu.Unlock()
	case doCutOff:
		m.mu.Lock()
		m.off = st.N%2 == 0
		m.mu.Unlock()
	}
	if st.Wait > 0 {
		time.Sleep(st.Wait)
		synctest.Wait()
	}
	m.checkFrozen()
}

func (m *moveSimulation) restartDown() {
	for _, s := range m.at {
		if m.siteDown(s) {
			m.restartSite(s)
		}
	}
}

// checkFrozen checks that no program is frozen for longer than a move may freeze it.
func (m *moveSimulation) checkFrozen() {
	for _, s := range m.at {
		if m.siteDown(s) {
			continue
		}
		for program := range m.owner {
			if y := s.d.store.Programs().Move(program); y != nil && y.Status == webhook.ProgramMoving && time.Since(y.BeganAt) > 15*time.Second {
				m.mu.Lock()
				m.violate(promiseFrozen, "%s since %s", program, time.Since(y.BeganAt))
				m.mu.Unlock()
			}
		}
	}
}

// publishTo publishes events at the installation that accepts them.
func (m *moveSimulation) publishTo(program string, n int) {
	for range n {
		id := webhook.NewID()
		var taken []int
		unsure := false
		for _, s := range m.at {
			if m.siteDown(s) {
				continue
			}
			if _, err := s.d.store.Programs().Get(context.Background(), program); err != nil {
				continue // no token of the program is valid there
			}
			_, err := s.d.store.Events().Publish(context.Background(), program, []webhook.Event{
				{ID: id, Name: "content_updated", ReceivedAt: time.Now(), JSON: simulatedJSON(id, "content_updated", 0)}})
			var refused *webhook.Error
			switch {
			case err == nil:
				taken = append(taken, s.number)
			case m.siteDown(s):
				unsure = true
			case !errors.As(err, &refused):
				m.fails("publish: %v", err)
			}
		}
		m.mu.Lock()
		if len(taken) > 1 {
			m.violate(promiseThere, "both accepted an event of %s", program)
		}
		for _, sub := range m.subs {
			if sub.program == program && len(taken) > 0 {
				sub.events = append(sub.events, id)
			} else if sub.program == program && unsure {
				sub.unsure[id] = true
			}
		}
		m.mu.Unlock()
	}
}

// beginMove begins to move a program to the other installation.
func (m *moveSimulation) beginMove(program string) *move.Job {
	m.mu.Lock()
	from := m.at[m.owner[program]]
	to, down := m.at[1-from.number], from.down
	m.mu.Unlock()
	if down {
		return nil
	}
	job, _, err := from.source.Start(context.Background(), program,
		&store.MoveTarget{URL: fmt.Sprint("http://127.0.0.1:", 1+to.number), Token: to.token}, webhook.AuditEntry{Admin: webhook.Terminal})
	var refused *webhook.Error
	if err != nil && !errors.As(err, &refused) && !m.siteDown(from) {
		m.fails("a move of %s: %v", program, err)
	}
	return job
}

// finishMoves ends all faults, and checks that each program is active at one installation, that all
// events have arrived, and that each program can move.
func (m *moveSimulation) finishMoves() {
	m.mu.Lock()
	m.calm, m.off, m.mode = true, false, modeOK
	m.mu.Unlock()
	m.settleMoves()
	for i := range m.plan.Programs {
		program := simulatedPrograms[i]
		before := m.owner[program]
		m.publishTo(program, 2)
		var job *move.Job
		for range 10 { // a stale part of an earlier move may be removed first
			if job = m.beginMove(program); job == nil {
				continue
			}
			if err := job.Follow(context.Background(), func(string) {}); err != nil {
				m.mu.Lock()
				m.violate(promiseOperates, "a last move of %s: %v", program, err)
				m.mu.Unlock()
			}
			break
		}
		if m.violation == nil && m.owner[program] == before {
			m.violate(promiseThere, "%s did not move", program)
		}
		m.publishTo(program, 2)
	}
	m.settleMoves()
}

// settleMoves waits until all published events are delivered, and compares.
func (m *moveSimulation) settleMoves() {
	m.restartDown()
	m.late.Wait()
	m.restartDown()
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, program := range simulatedPrograms[:m.plan.Programs] {
		var status [2]string
		for i, s := range m.at {
			status[i] = "none"
			if p, err := s.d.store.Programs().Get(context.Background(), program); err == nil {
				status[i] = p.Status()
			}
		}
		owner := m.owner[program]
		if status[owner] != "active" || !slices.Contains([]string{"none", webhook.ProgramMoved, webhook.ProgramArriving}, status[1-owner]) {
			m.violate(promiseThere, "%s should be at installation %d, the states are %q", program, owner, status)
		}
	}
	for _, sub := range m.subs {
		m.compareReceived(sub)
	}
}

// compareReceived compares the events that a receiver got with the published ones. The caller holds
// m.mu.
func (m *moveSimulation) compareReceived(sub *movedSubscription) {
	stored, err := m.at[m.owner[sub.program]].deliveries(sub.program, sub.id)
	if err != nil {
		m.violate(promiseOperates, "%v", err)
	}
	inDelivery := make(map[string]int)
	for _, d := range stored {
		if !d.Status.Final() {
			m.violate(promiseEnds, "a delivery of %s is %s in the end", sub.program, d.Status)
		}
		for _, e := range d.Events {
			if e.Name != webhook.EventPing && d.SplitOf == "" {
				inDelivery[e.ID]++
			}
		}
	}
	for _, id := range sub.events {
		e := sub.got[id]
		switch {
		case e == nil || e.acceptedAt.IsZero() && e.attempts < webhook.MaxAttempts && !e.interrupted:
			m.violate(promiseKept, "an event of %s", sub.program)
		case inDelivery[id] != 1:
			m.violate(promiseOnce, "an event of %s is in %d deliveries", sub.program, inDelivery[id])
		}
	}
	for id := range sub.got {
		if !slices.Contains(sub.events, id) && !sub.unsure[id] {
			m.violate(promiseOwed, "%s has got an event that nobody published", sub.program)
		}
	}
	known := slices.DeleteFunc(slices.Clone(sub.first), func(id string) bool { return sub.unsure[id] })
	if sub.ordered && !slices.IsSortedFunc(known, func(a, b string) int {
		return cmp.Compare(slices.Index(sub.events, a), slices.Index(sub.events, b))
	}) {
		m.violate(promiseOrdered, "%s", sub.program)
	}
}

// Programs move between two installations over a network that delays, drops, repeats and cuts
// requests, while either crashes: nothing is lost, sent twice or sent by both.
func TestMoves(t *testing.T) {
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	var seen tally
	gen := movePlans()
	dir := memoryDir(t)
	n := cmp.Or(*simulationPlans, simulatedPlans()/5)
	seeds := seed.Kept(t)
	first := cmp.Or(*simulationSeed, seed.Fresh(t))
	for i := range uint64(n) {
		seeds = append(seeds, first+i)
	}
	for _, number := range seeds {
		p := gen.Example(int(number))
		at := fmt.Sprint(dir, "/", number)
		if v := playMoves(t, at, &p, catalog, &seen); v != nil {
			t.Errorf("plan %d broke a promise: %s: %s\nto play it again: go test ./dispatcher -run '^TestMoves$' -simulation.seed=%[1]d "+
				"-simulation.plans=1\n%[4]s", number, v.promise, v.detail, p)
			break
		}
		os.RemoveAll(at)
	}
	for _, o := range slices.Sorted(maps.Keys(seen.done)) {
		t.Logf("%7d times: %s", seen.done[o], o)
	}
}
