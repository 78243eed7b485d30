package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"service/internal/control"
	"service/internal/server"
	"service/webhook"
)

// What the demo is made of.
const (
	demoProgram = "demo"
	demoUser    = "demo"
	demoAdmin   = "demo@example.com"
	demoPace    = time.Second // between two events
	demoFlaky   = 3           // the flaky receiver refuses every third delivery at first
)

// demoRetries are short, so that a retry is seen by who looks on.
var demoRetries = [webhook.MaxAttempts - 1]time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second}

// demo is serve on a throw-away data directory, with receivers, subscriptions
// and an event every pace, all of it through the HTTP API. It
// removes the directory when ctx ends.
func demo(ctx context.Context, s *server.Config, allowed []string, std Streams, pace time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "service-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s.Dir, s.AllowHTTP, s.RetryPolicy.Waits, s.Replica = dir, true, demoRetries, nil
	if s.Destinations, err = webhook.ParseDestinations(append(allowed, "127.0.0.1")); err != nil {
		return err
	}
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		return err
	}

	out := newTraffic(std.Out)
	refused := 0
	steady, err := newDemoReceiver("steady", out, func(*arrival) int { return http.StatusOK })
	if err != nil {
		return err
	}
	defer steady.listener.Close()
	flaky, err := newDemoReceiver("flaky", out, func(a *arrival) int {
		if a.Times > 1 {
			return http.StatusOK
		}
		if refused++; refused%demoFlaky == 0 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	if err != nil {
		return err
	}
	defer flaky.listener.Close()

	svc, err := server.Open(ctx, s)
	if err != nil {
		return keyFlag{}.explain(err)
	}
	g, running := errgroup.WithContext(ctx)
	// The receivers outlive the service: attempts in flight want their answer.
	receiving, served := context.WithCancel(context.WithoutCancel(ctx))
	defer served()
	g.Go(func() error {
		defer served()
		return svc.Run(running)
	})
	for _, r := range []*demoReceiver{steady, flaky} {
		g.Go(func() error { return server.Serve(receiving, &http.Server{Handler: r}, r.listener, time.Second) })
	}
	g.Go(func() error {
		d := &demonstration{svc: svc, settings: s, catalog: catalog, out: out, steady: steady, flaky: flaky, pace: pace}
		if err := d.run(running); err != nil && running.Err() == nil {
			return fmt.Errorf("demo: %w", err)
		}
		return nil // also when the end of the demo is why it failed
	})
	return g.Wait()
}

// trafficRows are the lines of traffic that the demo keeps on a terminal.
const trafficRows = 8

// traffic prints what happens in the demo. On a terminal the newest trafficRows lines
// stay, below the text written last; elsewhere every line does. It is safe for concurrent
// use, and writes whole lines.
type traffic struct {
	mu    sync.Mutex
	w     io.Writer
	rows  int      // 0: every line stays
	shown []string // the lines on the terminal
}

func newTraffic(w io.Writer) *traffic {
	t := &traffic{w: w}
	if moves(w) {
		t.rows = trafficRows
	}
	return t
}

// Write writes text that stays.
func (t *traffic) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown = nil
	return t.w.Write(b)
}

// line writes a line of traffic.
func (t *traffic) line(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == 0 {
		io.WriteString(t.w, s+"\n")
		return
	}
	var b strings.Builder
	if n := len(t.shown); n > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", n) // up to the first line
	}
	t.shown = append(t.shown, s)
	t.shown = t.shown[max(0, len(t.shown)-t.rows):]
	b.WriteString("\x1b[?7l") // a long line is cut off, not wrapped
	for _, one := range t.shown {
		b.WriteString("\r\x1b[K" + one + "\n")
	}
	b.WriteString("\x1b[?7h")
	io.WriteString(t.w, b.String())
}

// demoReceiver is a subscriber's server in the demo.
type demoReceiver struct {
	receiver
	listener net.Listener
	known    chan struct{} // closed once the signing secret is known
}

func newDemoReceiver(name string, out *traffic, answer func(*arrival) int) (*demoReceiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := painter(out.w)
	return &demoReceiver{
		receiver: receiver{answer: answer, print: func(a *arrival) { out.line(fmt.Sprintf("%-9s  %s", name, a.line(c))) }},
		listener: l,
		known:    make(chan struct{}),
	}, nil
}

// ServeHTTP receives a delivery. The first ping can be here before the answer
// that holds the signing secret, and waits for it.
func (r *demoReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	select {
	case <-r.known:
	case <-req.Context().Done():
	case <-time.After(5 * time.Second):
	}
	r.receiver.ServeHTTP(w, req)
}

// demonstration plays the parts of an operator, a partner and the platform.
type demonstration struct {
	svc           *server.Server
	settings      *server.Config
	catalog       *webhook.Catalog
	out           *traffic
	steady, flaky *demoReceiver
	pace          time.Duration

	client *http.Client
	token  string
}

func (d *demonstration) run(ctx context.Context) error {
	var err error
	if d.client, err = apiClient(d.svc.CAFile()); err != nil {
		return err
	}
	defer d.client.CloseIdleConnections()
	if _, d.token, err = d.svc.Store().Tokens().Create(ctx, webhook.NewToken{
		ProgramID: demoProgram, UserID: demoUser, Name: "demo", Scopes: webhook.Scopes(),
	}); err != nil {
		return err
	}

	admin, err := control.AuditedStore{Store: d.svc.Store(), Version: version()}.CreateAdmin(ctx, demoAdmin, webhook.NoPassword())
	if err != nil {
		return err
	}

	var all, some []string
	for _, t := range d.catalog.Types() {
		all = append(all, t.Name)
		if strings.HasPrefix(t.Name, "content_") {
			some = append(some, t.Name)
		}
	}
	link := d.svc.SignInLink(admin.ID)
	fmt.Fprintf(d.out, "Admin UI  %s\n\nA demo of the service. Its data is in %s, which is removed when it ends (Ctrl-C).\n\n", link, d.settings.Dir)
	steadyID, err := d.subscribe(ctx, d.steady, all)
	if err != nil {
		return err
	}
	if _, err := d.subscribe(ctx, d.flaky, some); err != nil {
		return err
	}
	d.explain(steadyID, link)

	tick := time.NewTicker(d.pace)
	defer tick.Stop()
	for {
		for _, t := range d.catalog.Types() {
			if t.Name == webhook.EventPing {
				continue // it cannot be published
			}
			if err := d.publish(ctx, t); err != nil {
				return err
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// explain says what is happening and what to try next. The link signs in.
func (d *demonstration) explain(subscriptionID, link string) {
	curl := curl(d.svc)
	subscription := "/v2/webhooks/subscriptions/" + subscriptionID
	ca := ""
	if d.svc.CAFile() != "" {
		ca = " --ca " + shellQuote(d.svc.CAFile())
	}
	fmt.Fprintf(d.out, `
What is happening
  The program %q has a token and two subscriptions, each made by POST /v2/webhooks/subscriptions;
  a ping went out to both at once. Now an event is published about once a second by POST /v2/events.
  steady    receives every event
  flaky     receives the events of content, and answers every third delivery with 503 at first:
            the service tries again after about %v

What to try next
  Open the link below in a browser. It signs you in as %s, once; the browser warns, since it
  does not know the local CA.
  Look at it over the API, in another terminal:
    export TOKEN=%s
    %s%s/deliveries
    %s%s/ping -X POST
    %s/v2/events
  Publish an event of your own:
    echo '{"name":"channel_updated","version":"1","channel_id":7}' | SERVICE_TOKEN=$TOKEN %s publish --url %s%s

Admin UI  %s

`, demoProgram, demoRetries[0], demoAdmin, d.token, curl, subscription, curl, subscription, curl, d.settings.Program, d.svc.URL(), ca, link)
}

// subscribe makes a subscription for a receiver and tells it the secret.
func (d *demonstration) subscribe(ctx context.Context, r *demoReceiver, names []string) (id string, err error) {
	type event struct {
		Name string `json:"name"`
	}
	request := struct {
		URL    string  `json:"url"`
		Events []event `json:"events"`
	}{URL: "http://" + r.listener.Addr().String() + "/"}
	for _, name := range names {
		request.Events = append(request.Events, event{name})
	}
	var answer struct {
		Data struct {
			ID            string `json:"id"`
			SigningSecret string `json:"signing_secret"`
		}
	}
	if err := d.post(ctx, "/v2/webhooks/subscriptions", request, &answer); err != nil {
		return "", fmt.Errorf("subscribe: %w", err)
	}
	if err := r.verifyWith(answer.Data.SigningSecret); err != nil {
		return "", fmt.Errorf("subscribe: %w", err)
	}
	close(r.known)
	return answer.Data.ID, nil
}

// publish publishes a sample event: the catalog's example, as if it happened
// just now.
func (d *demonstration) publish(ctx context.Context, t *webhook.EventType) error {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(t.Example, &event); err != nil {
		return fmt.Errorf("example of %s: %w", t.Name, err)
	}
	delete(event, "id") // the service fills both in
	delete(event, "timestamp")
	d.out.line(fmt.Sprintf("%-9s  %s  %s", "published", time.Now().UTC().Format("15:04:05.000"), t.Name))
	var answer json.RawMessage
	if err := d.post(ctx, "/v2/events", event, &answer); err != nil {
		return fmt.Errorf("publish %s: %w", t.Name, err)
	}
	return nil
}

// post makes one request of the API, which must answer 201.
func (d *demonstration) post(ctx context.Context, path string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.svc.URL()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+d.token)
	resp, err := d.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusCreated {
		return refusal(resp, b)
	}
	return json.Unmarshal(b, answer)
}
