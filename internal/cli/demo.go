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

	"service/api"
	"service/internal/control"
	"service/internal/server"
	"service/webhook"
)

const (
	demoProgram = "demo"
	demoUser    = "demo"
	demoAdmin   = "demo@example.com"
	demoPace    = time.Second // between two events
	demoFlaky   = 3           // the flaky receiver rejects the first attempt of every third delivery
)

// demoRetries are short so that the viewer sees retries.
var demoRetries = [webhook.MaxAttempts - 1]time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second, 20 * time.Second}

// demo runs the service on a temporary data directory with two receivers and their
// subscriptions, and publishes an event every pace. It uses the HTTP API throughout, and
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
	// The receivers outlive the service so that they respond to attempts in flight.
	receiving, stopReceiving := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReceiving()
	g.Go(func() error {
		defer stopReceiving()
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
		return nil // an error after the end of the demo does not count
	})
	return g.Wait()
}

// trafficRows is the number of traffic lines that the demo shows on a terminal.
const trafficRows = 8

// traffic prints the events and deliveries of the demo. A terminal shows the newest trafficRows
// lines, below the last text; any other output gets every line. It is safe for concurrent use and
// writes whole lines.
type traffic struct {
	mu    sync.Mutex
	w     io.Writer
	rows  int      // 0 to print every line
	shown []string // the lines on the terminal
}

func newTraffic(w io.Writer) *traffic {
	t := &traffic{w: w}
	if supportsEscapes(w) {
		t.rows = trafficRows
	}
	return t
}

// Write writes text that later lines do not overwrite.
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
		fmt.Fprintf(&b, "\x1b[%dA", n) // move up to the first line
	}
	t.shown = append(t.shown, s)
	t.shown = t.shown[max(0, len(t.shown)-t.rows):]
	b.WriteString("\x1b[?7l") // cut long lines off instead of wrapping them
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

func newDemoReceiver(name string, out *traffic, respond func(*arrival) int) (*demoReceiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := painter(out.w)
	return &demoReceiver{
		receiver: receiver{respond: respond, print: func(a *arrival) { out.line(fmt.Sprintf("%-9s  %s", name, a.line(c))) }},
		listener: l,
		known:    make(chan struct{}),
	}, nil
}

// ServeHTTP receives a delivery. The first ping may arrive before the API response with
// the signing secret; it waits for the secret, up to 5 s.
func (r *demoReceiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	select {
	case <-r.known:
	case <-req.Context().Done():
	case <-time.After(5 * time.Second):
	}
	r.receiver.ServeHTTP(w, req)
}

// demonstration acts as the operator, the partner and the publisher.
type demonstration struct {
	svc           *server.Server
	settings      *server.Config
	catalog       *webhook.Catalog
	out           *traffic
	steady, flaky *demoReceiver
	pace          time.Duration

	api apiConn
}

func (d *demonstration) run(ctx context.Context) error {
	client, err := apiClient(d.svc.CAFile())
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	owner, err := control.Dial(ctx, d.settings.Dir)
	if err != nil {
		return err
	}
	defer owner.Close()
	d.api = apiConn{send: client.Do, base: d.svc.LocalURL()}
	if d.api.token, err = owner.CreateToken(ctx, webhook.NewToken{
		ProgramID: demoProgram, UserID: demoUser, Name: "demo", Scopes: webhook.Scopes(),
	}); err != nil {
		return err
	}
	var admin webhook.Admin
	request := api.AdminRequest{Email: demoAdmin, Role: webhook.RoleOwner, Hash: webhook.NoPassword()}
	if err := owner.Call(ctx, http.MethodPost, "/v2/owner/admins", request, &admin); err != nil {
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
	fmt.Fprintf(d.out, "Admin UI  %s\n\nDemo on temporary data in %s, removed when you stop it with Ctrl-C.\n\n", link, d.settings.Dir)
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
				continue // pings cannot be published
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

// explain prints what the demo does and what to try next. link signs the viewer in.
func (d *demonstration) explain(subscriptionID, link string) {
	curl := curl(d.svc)
	subscription := "/v2/webhooks/subscriptions/" + subscriptionID
	ca := ""
	if d.svc.CAFile() != "" {
		ca = " --ca " + shellQuote(d.svc.CAFile())
	}
	fmt.Fprintf(d.out, `
What is happening
  The program (tenant) %q has a token and two subscriptions, created with POST /v2/webhooks/subscriptions.
  Both got a ping. Now POST /v2/events publishes one event per second.
  steady    receives every event
  flaky     receives content events, and first responds 503 to every third delivery;
            the service retries after about %v

What to try next
  Open the link below in a browser. It works once and signs you in as %s.
  The browser warns about the certificate because it does not know the local CA.
  Call the API, in another terminal:
    export TOKEN=%s
    %s%s/deliveries
    %s%s/ping -X POST
    %s/v2/events
  Publish an event:
    echo '{"name":"channel_updated","version":"1","channel_id":7}' | SERVICE_TOKEN=$TOKEN %s publish --url %s%s

Admin UI  %s

`, demoProgram, demoRetries[0], demoAdmin, d.api.token, curl, subscription, curl, subscription, curl,
		d.settings.Program, d.svc.URL(), ca, link)
}

// subscribe creates a subscription for a receiver and gives the receiver its signing
// secret.
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
	var response struct {
		Data struct {
			ID            string `json:"id"`
			SigningSecret string `json:"signing_secret"`
		}
	}
	if err := d.post(ctx, "/v2/webhooks/subscriptions", request, &response); err != nil {
		return "", fmt.Errorf("subscribe: %w", err)
	}
	if err := r.verifyWith(response.Data.SigningSecret); err != nil {
		return "", fmt.Errorf("subscribe: %w", err)
	}
	close(r.known)
	return response.Data.ID, nil
}

// publish publishes the catalog's example of an event type, with a new ID and the current
// time.
func (d *demonstration) publish(ctx context.Context, t *webhook.EventType) error {
	var event map[string]json.RawMessage
	if err := json.Unmarshal(t.Example, &event); err != nil {
		return fmt.Errorf("example of %s: %w", t.Name, err)
	}
	delete(event, "id") // the service sets both
	delete(event, "timestamp")
	d.out.line(fmt.Sprintf("%-9s  %s  %s", "published", time.Now().UTC().Format("15:04:05.000"), t.Name))
	var response json.RawMessage
	if err := d.post(ctx, "/v2/events", event, &response); err != nil {
		return fmt.Errorf("publish %s: %w", t.Name, err)
	}
	return nil
}

// post sends a request to the API and expects 201.
func (d *demonstration) post(ctx context.Context, path string, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	resp, answer, err := d.api.do(ctx, http.MethodPost, path, "application/json", bytes.NewReader(body))
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusCreated:
		return responseError(resp, answer)
	}
	return json.Unmarshal(answer, response)
}
