package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/test/harness"
)

// wireRequest is a request as it was received.
type wireRequest struct {
	head   string // with the request line and the empty line
	body   []byte
	answer chan int // the status to respond with; closed to break the connection
}

// listenOnWire receives requests on a loopback port, and returns its base URL.
func listenOnWire(t *testing.T) (base string, requests <-chan *wireRequest) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := make(chan *wireRequest, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go serveWire(conn, c)
		}
	}()
	return "http://" + l.Addr().String(), c
}

func serveWire(conn net.Conn, requests chan<- *wireRequest) {
	defer conn.Close()
	for in := bufio.NewReader(conn); ; {
		r := &wireRequest{answer: make(chan int, 1)}
		size := 0
		for line := ""; line != "\r\n"; {
			var err error
			if line, err = in.ReadString('\n'); err != nil {
				return
			}
			if value, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				size, _ = strconv.Atoi(strings.TrimSpace(value))
			}
			r.head += line
		}
		r.body = make([]byte, size)
		if _, err := io.ReadFull(in, r.body); err != nil {
			return
		}
		if harness.IsPing(r.body) {
			r.answer <- 200
		} else {
			requests <- r
		}
		status, ok := <-r.answer
		if !ok {
			return
		}
		fmt.Fprintf(conn, "HTTP/1.1 %d %s\r\nContent-Length: 0\r\n\r\n", status, http.StatusText(status))
	}
}

// header returns the headers of the request.
func (r *wireRequest) header(t *testing.T) http.Header {
	t.Helper()
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(r.head)))
	if err != nil {
		t.Fatal(err)
	}
	return req.Header
}

// deliveryID is the delivery ID in the body of a request, and eventID that of its only event.
var (
	deliveryID = regexp.MustCompile(`"delivery_id":"([^"]+)"`)
	eventID    = regexp.MustCompile(`"events":\[\{"id":"([^"]+)"`)
	itsOwn     = regexp.MustCompile(`(?m)^(X-Service-Delivery|webhook-id|webhook-timestamp|webhook-signature): (.*)\r$`)
)

func (r *wireRequest) event() string { return string(eventID.FindSubmatch(r.body)[1]) }

// pulledFrom is an installation with a subscription, whose events are pulled.
type pulledFrom struct {
	*harness.Instance
	t                           *testing.T
	dir                         string
	token, subscription, secret string
	base                        string // of the receiver
	requests                    <-chan *wireRequest
	command                     *exec.Cmd
	printed                     *typedOutput
	published                   int
}

func newPulledFrom(t *testing.T) *pulledFrom {
	dir := t.TempDir()
	p := &pulledFrom{Instance: harness.NewInstance(t, harness.Build(t), filepath.Join(dir, "data")), t: t, dir: dir, printed: new(typedOutput)}
	p.MustStart()
	p.base, p.requests = listenOnWire(t)
	p.token = p.Token("acme")
	var created struct {
		Data struct {
			ID            string
			SigningSecret string `json:"signing_secret"`
		}
	}
	status, err := p.Call(t.Context(), p.token, "POST", p.URL()+"/v2/webhooks/subscriptions", map[string]any{
		"url": p.base + "/hook?a=b", "events": harness.Events(harness.NumberedEvent),
		"authorization_header": "Basic  x", "headers": map[string]string{"X-Own": "1", "x-other": "zwei Wörter"},
	}, &created)
	if err != nil || status != 201 {
		t.Fatalf("create a subscription: status %d, %v", status, err)
	}
	p.subscription, p.secret = created.Data.ID, created.Data.SigningSecret
	for name, text := range map[string]string{
		"secret": p.secret, "token": p.token, "headers": "Authorization: Basic  x\nX-Own: 1\nx-other: zwei Wörter\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// publish publishes n events.
func (p *pulledFrom) publish(n int) {
	p.t.Helper()
	for range n {
		p.Publish(p.token, harness.AppendEvent(nil, p.published))
		p.published++
	}
}

// pull starts service listen --pull.
func (p *pulledFrom) pull(flags ...string) {
	p.t.Helper()
	args := slices.Concat([]string{"listen", "--pull", p.subscription, "--url", p.URL(), "--token-file", "token"}, flags)
	p.command = exec.Command(p.Binary, args...)
	p.command.Dir, p.command.Env = p.dir, harness.Environment()
	p.command.Stdout, p.command.Stderr = p.printed, p.printed
	if err := p.command.Start(); err != nil {
		p.t.Fatal(err)
	}
	kill := p.command.Process.Kill
	p.t.Cleanup(func() {
		if p.t.Failed() {
			p.t.Logf("service listen printed:\n%s", p.printed)
		}
		kill()
	})
}

func (p *pulledFrom) next() *wireRequest { return harness.Receive(p.t, "a request", p.requests) }

// verify verifies the signature of a request.
func (p *pulledFrom) verify(r *wireRequest) {
	p.t.Helper()
	verifier, err := standardwebhooks.NewWebhook(p.secret)
	if err == nil {
		err = verifier.Verify(r.body, r.header(p.t))
	}
	if err != nil {
		p.t.Errorf("%v:\n%s%s", err, r.head, r.body)
	}
}

// An event that listen --pull forwards is the same request as a delivery of the event alone, byte for
// byte but for the ID, the time and the signature that follows from them.
func TestPullForwardsLikeADelivery(t *testing.T) {
	p := newPulledFrom(t)
	p.publish(1)
	delivered := p.next()
	delivered.answer <- 200
	p.pull("--from", "2020-01-01", "--forward", p.base+"/hook?a=b", "--secret-file", "secret", "--headers-file", "headers")
	forwarded := p.next()
	forwarded.answer <- 500
	again := p.next()
	again.answer <- 200
	for _, r := range []*wireRequest{delivered, forwarded, again} {
		p.verify(r)
		id := deliveryID.FindSubmatch(r.body)[1]
		if got := r.header(t).Get("webhook-id"); got != string(id) || r.header(t).Get("X-Service-Delivery") != got {
			t.Errorf("got the ids %s in the headers, and %s in the body", got, id)
		}
		if n := len(itsOwn.FindAllString(r.head, -1)); n != 4 {
			t.Errorf("got %d of the four headers that differ in\n%s", n, r.head)
		}
	}
	if !bytes.Equal(again.body, forwarded.body) || again.header(t).Get("webhook-id") != forwarded.header(t).Get("webhook-id") {
		t.Errorf("repeated as\n%s\nwas\n%s", again.body, forwarded.body)
	}
	head := func(r *wireRequest) string { return itsOwn.ReplaceAllString(r.head, "$1: …\r") }
	if head(forwarded) != head(delivered) {
		t.Errorf("got the headers\n%s\nwant those of a delivery\n%s", head(forwarded), head(delivered))
	}
	body := func(r *wireRequest) string {
		return string(deliveryID.ReplaceAll(r.body, []byte(`"delivery_id":"…"`)))
	}
	if body(forwarded) != body(delivered) {
		t.Errorf("got the body\n%s\nwant that of a delivery\n%s", body(forwarded), body(delivered))
	}
	if want := "X-Own: 1\r\n"; !strings.Contains(head(delivered), want) || !strings.Contains(head(delivered), "Authorization: Basic  x\r\n") {
		t.Errorf("the delivery has no %q:\n%s", want, head(delivered))
	}
	harness.WaitFor(t, "the attempts to be printed", func() bool { return strings.Contains(p.printed.String(), "attempt 2  signed  → 200") })
	if got := p.printed.String(); !strings.Contains(got, "event "+forwarded.event()+"  content_published  signed  → 500  (next attempt in ") {
		t.Errorf("got %s", got)
	}
	p.command.Process.Signal(os.Interrupt)
	if err := p.command.Wait(); err != nil {
		t.Errorf("after an interrupt: got %v, want status 0", err)
	}
}

// A process that is killed at any moment, and started again, skips no event, and repeats no more than
// the one that was in flight, with the same ID and bytes.
func TestPullKilled(t *testing.T) {
	kills := harness.Drill(t, 4, 40)
	p := newPulledFrom(t)
	flags := []string{"--forward", p.base + "/hook", "--secret-file", "secret"}
	if status, err := p.Call(t.Context(), p.token, "PUT", p.URL()+"/v2/webhooks/subscriptions/"+p.subscription,
		map[string]bool{"active": false}, nil); err != nil || status != 200 {
		t.Fatalf("pause: status %d, %v", status, err)
	}
	p.pull(flags...)
	harness.WaitFor(t, "the first cursor", func() bool {
		_, err := os.Stat(filepath.Join(p.dir, p.subscription+".cursor"))
		return err == nil
	})
	var last *wireRequest
	next, repeated := 0, 0
	// receive receives one event, which is the next, or the last one again after a kill.
	receive := func(killed bool) *wireRequest {
		t.Helper()
		r := p.next()
		p.verify(r)
		for number := range harness.Numbers(r.body) {
			switch {
			case number == next:
				next++
			case killed && last != nil && number == next-1 && bytes.Equal(r.body, last.body):
				repeated++
			default:
				t.Fatalf("got the event %d, want %d, killed: %t\n%s", number, next, killed, r.body)
			}
		}
		last = r
		return r
	}
	for kill := range kills {
		p.publish(3)
		for first := kill > 0; next < p.published-1; first = false {
			receive(first).answer <- 200
		}
		r := receive(false)
		switch kill % 4 {
		case 0: // in flight
		case 1: // it failed before
			r.answer <- 503
			r = p.next()
			if !bytes.Equal(r.body, last.body) {
				t.Fatalf("repeated as\n%s\nwas\n%s", r.body, last.body)
			}
		case 2, 3: // accepted, and printed or not, saved or not
			r.answer <- 200
			if kill%8 > 3 {
				harness.WaitFor(t, "the attempt to be printed", func() bool {
					return strings.Contains(p.printed.String(), r.event()+"  content_published  signed  → 200")
				})
			}
		}
		p.command.Process.Kill()
		p.command.Wait()
		if kill%4 < 2 {
			close(r.answer)
		}
		p.pull(flags...)
	}
	p.publish(1)
	for first := true; next < p.published; first = false {
		receive(first).answer <- 200
	}
	t.Logf("%d kills, %d events, %d repeated", kills, next, repeated)
	if want := kills / 2; repeated < want {
		t.Errorf("got %d repeated events, want at least the %d that were in flight", repeated, want)
	}
}
