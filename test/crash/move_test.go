package crash

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"service/test/harness"
	"service/webhook"
)

var (
	moveKills   = flag.Int("crash.move-kills", 3, "how often TestMoveKilled kills one of the installations")
	pulledMoves = flag.Int("crash.moves", 3, "how often TestPulledMoves moves the program")
	moveEvents  = flag.Int("crash.move-events", 3_000, "how many events TestMoveKilled publishes before the first move")
)

const (
	moveSubscriptions = 50
	maxFrozen         = 5 * time.Second // without a kill
)

// moveAttempt is the receivers' record of a delivery.
type moveAttempt struct {
	body     [sha256.Size]byte
	attempts int
}

// moveReceivers are the receivers of all subscriptions. Every fifth refuses the first attempt of
// every third delivery.
type moveReceivers struct {
	t  *testing.T
	mu sync.Mutex
	// deliveries by subscription and ID, events by subscription and number.
	deliveries [moveSubscriptions]map[string]*moveAttempt
	events     [moveSubscriptions]map[int]bool
	senders    []string // by the User-Agent, in the order of their attempts, without repetitions
	count      int
}

func (r *moveReceivers) handler(n int) http.Handler {
	r.deliveries[n], r.events[n] = make(map[string]*moveAttempt), make(map[int]bool)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := harness.ReadBody(req)
		if err != nil {
			return // the sender was killed
		}
		sum, id, agent := sha256.Sum256(body), req.Header.Get("Webhook-Id"), req.Header.Get("User-Agent")
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.count++; len(r.senders) == 0 || r.senders[len(r.senders)-1] != agent {
			r.senders = append(r.senders, agent)
		}
		d := r.deliveries[n][id]
		if d == nil {
			d = &moveAttempt{body: sum}
			r.deliveries[n][id] = d
		}
		if d.attempts++; d.attempts > webhook.MaxAttempts {
			r.t.Errorf("attempt %d of delivery %s", d.attempts, id)
		}
		if d.body != sum {
			r.t.Errorf("delivery %s has other bytes in attempt %d", id, d.attempts)
		}
		if n%5 == 0 && len(r.deliveries[n])%3 == 0 && d.attempts == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for number := range harness.Numbers(body) {
			r.events[n][number] = true
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// missing returns how many of the accepted events have not arrived.
func (r *moveReceivers) missing(accepted []int) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, number := range accepted {
		for i := range r.events {
			if r.events[i] != nil && !r.events[i][number] {
				n++
			}
		}
	}
	return n
}

// installation is one of the two installations.
type installation struct {
	*harness.Instance
	base      string
	tokenFile string        // a file with a platform token of this installation
	requests  *harness.Hold // of a move to this installation
	to        string        // base URL for a move to this installation; passes requests on
}

// newInstallation starts an installation that always listens on the same port, because an
// installation's address does not change.
func newInstallation(t *testing.T, binary string) *installation {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	in := &installation{base: "http://" + addr, tokenFile: filepath.Join(t.TempDir(), "token")}
	in.Instance = harness.NewInstance(t, binary, t.TempDir(), "--listen", addr, "--log-level", "warn", "--retry-schedule", "1s,1s,2s,5s",
		"--grace", "1s")
	in.MustStart()
	out, err := exec.Command(binary, "token", "create", "--data", in.Data, "--scope", "platform", "--user", "operator").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(in.tokenFile, out, 0o600); err != nil {
		t.Fatal(err)
	}
	in.requests = &harness.Hold{Pass: &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // the installation was killed
	}}
	in.to = harness.Listen(t, in.requests)
	return in
}

// status returns the status of the program, "" if the installation does not have it.
func (in *installation) status() string {
	out, err := in.Command("program", "list", "--data", in.Data, "--json")
	if err != nil {
		return "unknown"
	}
	var programs []struct{ ID, Status string }
	if json.Unmarshal([]byte(out), &programs) != nil {
		return "unknown"
	}
	for _, p := range programs {
		if p.ID == "acme" {
			return p.Status
		}
	}
	return ""
}

// moveTest publishes events while a program moves.
type moveTest struct {
	t         *testing.T
	in        [2]*installation
	token     string
	receivers *moveReceivers
	pullers   *harness.Pullers

	mu       sync.Mutex
	accepted []int
	sent     map[string]bool // ids of events
}

// publish publishes a batch until an installation accepts it.
func (m *moveTest) publish(ctx context.Context, first, count int) {
	events := make([]map[string]any, count)
	m.mu.Lock()
	for i := range events {
		id := uuid.NewString()
		m.sent[id] = true
		events[i] = map[string]any{
			"id": id, "name": harness.NumberedEvent, "version": "1", "content_id": first + i, "channel_ids": []int{11},
		}
	}
	m.mu.Unlock()
	for try := 0; ctx.Err() == nil; try++ {
		in := m.in[try%2]
		status, err := in.Call(ctx, m.token, "POST", in.base+"/v2/events", map[string]any{"events": events}, nil)
		if err == nil && (status == http.StatusCreated || status == http.StatusOK) {
			m.mu.Lock()
			defer m.mu.Unlock()
			for i := range count {
				m.accepted = append(m.accepted, first+i)
			}
			return
		}
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout && !isStranger(status) {
			m.t.Errorf("publish: status %d", status)
			return
		}
		harness.Pause(ctx, 20*time.Millisecond)
	}
}

// isStranger reports whether a status is that of an installation in which the program has not arrived:
// it does not know the token, and limits such requests. There is no other limit.
func isStranger(status int) bool {
	return status == http.StatusUnauthorized || status == http.StatusTooManyRequests
}

// pull attaches pullers. Half of them use one installation, whichever has the program, so that their
// requests are forwarded; the others change to the other one after an error.
func (m *moveTest) pull(subscription string) {
	m.t.Helper()
	m.pullers = harness.NewPullers(m.t, func(ctx context.Context, puller, try int) (string, bool) {
		n := puller / 2
		if puller%2 == 1 {
			n += try
		}
		return m.in[n%2].base, ctx.Err() == nil
	})
	m.pullers.Tolerates = isStranger
	m.pullers.Follow(
		harness.PulledLog{Name: "the program", Token: m.token},
		harness.PulledLog{Name: "a subscription", Token: m.token, Path: "/v2/webhooks/subscriptions/" + subscription + "/events"},
		harness.FilteredLog(m.in[0].Instance, m.token, harness.Listen(m.t, http.NotFoundHandler()), harness.NumberedEvent),
	)
}

// checkPulled ends the pullers and compares what they saw with the log.
func (m *moveTest) checkPulled(survived string) {
	m.t.Helper()
	m.pullers.Finish()
	m.pullers.Check(survived, func(id string) bool { return m.sent[id] }, false)
}

// owner waits until the program is active in one installation, and returns which.
func (m *moveTest) owner() (owner int) {
	m.t.Helper()
	harness.WaitFor(m.t, "one active installation", func() bool {
		a, b := m.in[0].status(), m.in[1].status()
		if a == "active" && b == "active" {
			m.t.Fatal("the program is active in both installations")
		}
		owner = 0
		if b == "active" {
			owner = 1
		}
		return a == "active" || b == "active"
	})
	return owner
}

var frozenFor = regexp.MustCompile(`Frozen for ([0-9.a-zµ]+)\.`)

// moveProgress is the output of a move.
type moveProgress struct {
	mu     sync.Mutex
	text   bytes.Buffer
	frozen chan struct{} // closed when the program is frozen
}

func (p *moveProgress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const line = "Frozen: requests"
	before := bytes.Contains(p.text.Bytes(), []byte(line))
	p.text.Write(b)
	if !before && bytes.Contains(p.text.Bytes(), []byte(line)) {
		close(p.frozen)
	}
	return len(b), nil
}

func (p *moveProgress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(strings.TrimSpace(p.text.String()), "\n", " | ")
}

// took returns how long the program was frozen, 0 if it has not moved.
func (p *moveProgress) took() (frozen time.Duration) {
	if found := frozenFor.FindStringSubmatch(p.String()); found != nil {
		frozen, _ = time.ParseDuration(found[1])
	}
	return frozen
}

// move begins to move the program away from its owner.
func (m *moveTest) move(from int) (p *moveProgress, done <-chan error) {
	cmd := exec.Command(m.in[from].Binary, "program", "move", "acme", "--data", m.in[from].Data, "--to", m.in[1-from].to, "--token-file",
		m.in[1-from].tokenFile)
	cmd.Env = harness.Environment()
	p = &moveProgress{frozen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = p, p
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	return p, ended
}

// newMoveTest starts two installations, one of which has the program with subscriptions.
func newMoveTest(t *testing.T, subscriptions int) (m *moveTest, subs []string) {
	m = &moveTest{t: t, receivers: &moveReceivers{t: t}, sent: make(map[string]bool)}
	m.in[0] = newInstallation(t, harness.Build(t))
	m.in[1] = newInstallation(t, renamedSender(t, harness.Build(t)))
	m.token = m.in[0].Token("acme")
	for i := range subscriptions {
		subs = append(subs, m.in[0].Subscribe(m.token, harness.Subscription{
			URL: harness.Listen(t, m.receivers.handler(i)), Events: harness.Events(harness.NumberedEvent),
		}))
	}
	return m, subs
}

// TestPulledMoves moves a program between two installations while its events are published and pulled:
// no event is skipped or repeated, whichever installation a puller asks.
func TestPulledMoves(t *testing.T) {
	n := harness.Drill(t, 1, *pulledMoves)
	m, subs := newMoveTest(t, 2)
	m.pull(subs[0])
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for next := 1; ctx.Err() == nil; next += 2 {
			m.publish(ctx, next, 2)
			harness.Pause(ctx, 20*time.Millisecond)
		}
	})
	defer publishing.Wait()
	defer stop()
	for range n {
		m.pullers.AwaitSights(100+rand.IntN(300), nil)
		m.pullers.Strike()
		m.moveAlive()
	}
	m.pullers.AwaitSights(300, nil)
	stop()
	publishing.Wait()
	m.checkPulled(fmt.Sprint(n, " moves"))
	m.awaitAll()
}

// TestMoveKilled moves a program with retries and a replay in progress between two installations,
// and kills both at random moments. No accepted event is lost, none is sent more than 5 times, and
// the two never send at the same time. By hand: -crash.move-kills 20 -crash.move-events 100000.
func TestMoveKilled(t *testing.T) {
	harness.Long(t)
	m, subs := newMoveTest(t, moveSubscriptions)
	m.pull(subs[0])
	next := 1
	for ; next <= *moveEvents; next += 100 {
		m.publish(t.Context(), next, 100)
	}
	from := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	for _, sub := range subs[:2] {
		status, err := m.in[0].Call(t.Context(), m.token, "POST", m.in[0].base+"/v2/webhooks/subscriptions/"+sub+"/replays",
			map[string]any{"only": "all", "from": from}, nil)
		if err != nil || status != http.StatusAccepted {
			t.Fatalf("replay: %d, %v", status, err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		// Each event causes 50 deliveries. With more, the moves of a long test would keep growing.
		for ; ctx.Err() == nil; next += 2 {
			m.publish(ctx, next, 2)
			time.Sleep(200 * time.Millisecond)
		}
	})
	frozen := []time.Duration{m.moveAlive()}
	typical := m.in[1].requests.Count()
	moves := 1
	for kill := range *moveKills {
		if m.killed(kill, typical) {
			moves++
		}
	}
	frozen = append(frozen, m.moveAlive())
	moves++
	stop()
	publishing.Wait()
	m.checkPulled(fmt.Sprint(moves, " moves with ", *moveKills, " kills"))
	m.awaitAll()
	if took := slices.Max(frozen); took > maxFrozen {
		t.Errorf("the program was frozen for %v, want at most %v", took, maxFrozen)
	}
	r := m.receivers
	if got := len(r.senders) - 1; got > moves {
		t.Errorf("the sender changed %d times in %d moves: %v", got, moves, r.senders)
	}
	t.Logf("%d kills, %d moves, %d events, %d attempts, frozen without a kill for %v", *moveKills, moves, len(m.accepted), r.count, frozen)
	for _, in := range m.in {
		in.MustStop(in.Last())
		if faults := harness.DatabaseFaults(t, in.Data); len(faults) > 0 {
			t.Errorf("the database has faults: %v", faults)
		}
	}
}

// killed moves the program and kills one of the installations while a request of the move is held:
// a random one of the typical number, or in every other move a request after the program is frozen.
// It reports whether the program has moved.
func (m *moveTest) killed(kill, typical int) bool {
	m.t.Helper()
	owner := m.owner()
	requests := m.in[1-owner].requests
	number, frozen := 1+rand.IntN(typical), kill%2 == 1
	var held <-chan struct{}
	release := func() {}
	if !frozen {
		held, release = requests.Next(number, rand.IntN(2) == 0)
	}
	p, done := m.move(owner)
	if frozen {
		select {
		case <-p.frozen:
			number = 1 + rand.IntN(3)
			held, release = requests.Next(number, rand.IntN(2) == 0)
		case <-done:
			m.t.Fatalf("the move ended before the program was frozen: %s", p)
		}
	}
	var err error
	ended := false
	select {
	case <-held:
	case err = <-done: // with fewer requests than the number
		ended = true
	}
	which := rand.IntN(2)
	m.pullers.Strike()
	m.in[which].Kill(m.in[which].Last())
	m.in[which].MustStart()
	release()
	if !ended {
		err = <-done
	}
	m.t.Logf("kill %d: installation %d of owner %d, at request %d (frozen %v, ended %v), %v: %s", kill+1, which, owner, number, frozen, ended,
		err, p)
	return m.owner() != owner
}

// moveAlive moves the program without a kill, and returns how long the program was frozen. On a
// busy machine a move may reach its freeze limit; moveAlive then repeats the move.
func (m *moveTest) moveAlive() time.Duration {
	m.t.Helper()
	for try := 1; ; try++ {
		p, done := m.move(m.owner())
		err := <-done
		m.t.Logf("no kill: %v: %s", err, p)
		switch {
		case err == nil:
			return p.took()
		case try == 5 || !strings.Contains(p.String(), "the program was frozen for"):
			m.t.Fatalf("move: %v", err)
		}
	}
}

// awaitAll waits until every accepted event has arrived, as long as events keep arriving.
func (m *moveTest) awaitAll() {
	m.t.Helper()
	for missing := m.receivers.missing(m.accepted); missing > 0; {
		harness.WaitFor(m.t, "another event", func() bool { return m.receivers.missing(m.accepted) < missing })
		missing = m.receivers.missing(m.accepted)
	}
}

// renamedSender returns a copy of a binary with another User-Agent of the same length, which is
// faster than another build.
func renamedSender(t *testing.T, binary string) string {
	t.Helper()
	text, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	const agent = "Service-Webhooks/"
	renamed := bytes.ReplaceAll(text, []byte(agent+"1.0"), []byte(agent+"2.0"))
	if bytes.Equal(renamed, text) {
		t.Fatal("the binary does not have the User-Agent")
	}
	name := filepath.Join(t.TempDir(), "service")
	if err := os.WriteFile(name, renamed, 0o700); err != nil {
		t.Fatal(err)
	}
	return name
}
