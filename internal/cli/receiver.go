package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/internal/terminal"
	"service/webhook"
)

const (
	// maxArrival bounds the body of a delivery, in bytes: more than the
	// service puts into one.
	maxArrival = webhook.MaxDeliveryBytes + webhook.MaxEventBytes + 64<<10
	// maxRemembered bounds the deliveries whose attempts are counted; then the
	// count starts over.
	maxRemembered = 10_000
)

// receiver is a subscriber's server for development: it shows each delivery,
// verifies its signature when it has a secret, and answers. Its fields but
// those under the mutex are set before it serves.
type receiver struct {
	answer  func(*arrival) int // the status to answer with
	forward *forwarder         // what is answered with a success goes here instead; may be nil
	print   func(*arrival)

	mu     sync.Mutex // also keeps the printed lines whole and in order
	verify *standardwebhooks.Webhook
	times  map[string]int // by delivery id
}

// verifyWith sets the signing secret.
func (r *receiver) verifyWith(secret string) error {
	// The library takes anything that is base64; a secret begins with its mark.
	if !strings.HasPrefix(secret, "whsec_") || len(secret) < len("whsec_")+32 {
		return errors.New("not a signing secret")
	}
	v, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return errors.New("not a signing secret") // the cause could quote it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verify = v
	return nil
}

// What a receiver can say of a signature.
const (
	signatureVerified  = "verified"
	signatureUnchecked = "unchecked" // there is no secret to verify it with
	signatureWrong     = "wrong"
)

// arrival is a delivery as it came.
type arrival struct {
	ReceivedAt     string             `json:"received_at"`
	DeliveryID     string             `json:"delivery_id"`
	SubscriptionID string             `json:"subscription_id"`
	ProgramID      string             `json:"program_id"`
	Times          int                `json:"times"` // how often it has come, this time included
	Events         []webhook.EventRef `json:"events"`
	Signature      string             `json:"signature"`
	SignatureError string             `json:"signature_error,omitempty"`
	Status         int                `json:"status"` // the answer
	Note           string             `json:"note,omitempty"`
	Body           json.RawMessage    `json:"body,omitempty"` // only when it is JSON

	raw []byte
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "Deliveries are POST requests.", http.StatusMethodNotAllowed)
		return
	}
	// A sender that trickles must not hold a connection for ever.
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxArrival))
	if err != nil {
		http.Error(w, "The body is too large or did not come.", http.StatusRequestEntityTooLarge)
		return
	}

	a := readArrival(req.Header, body)
	r.mu.Lock()
	r.judge(a, req.Header)
	a.Status = r.answer(a)
	r.mu.Unlock()
	if r.forward != nil && a.Status < 300 {
		if a.Status, err = r.forward.pass(req.Context(), req.Header, body); err != nil {
			a.Status, a.Note = http.StatusBadGateway, "not forwarded: "+err.Error()
		}
	}
	w.WriteHeader(a.Status)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(a)
}

// readArrival reads what a delivery says of itself. What is not a delivery
// leaves the fields empty.
func readArrival(h http.Header, body []byte) *arrival {
	a := &arrival{ReceivedAt: webhook.FormatTime(time.Now()), raw: body}
	var d struct {
		DeliveryID     string             `json:"delivery_id"`
		SubscriptionID string             `json:"subscription_id"`
		ProgramID      string             `json:"program_id"`
		Events         []webhook.EventRef `json:"events"`
	}
	if json.Unmarshal(body, &d) == nil {
		a.Events, a.Body = d.Events, body
	}
	a.DeliveryID = or(h.Get("X-Service-Delivery"), d.DeliveryID)
	a.SubscriptionID = or(h.Get("X-Service-Subscription"), d.SubscriptionID)
	a.ProgramID = or(h.Get("X-Service-Program"), d.ProgramID)
	switch {
	case len(d.Events) == 0:
		a.Note = "this is not a delivery: its body has no events"
	case d.DeliveryID != a.DeliveryID || d.SubscriptionID != a.SubscriptionID || d.ProgramID != a.ProgramID:
		a.Note = "the headers and the body name different ids"
	}
	return a
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// judge verifies the signature and counts how often the delivery has come. The
// caller holds r.mu.
func (r *receiver) judge(a *arrival, h http.Header) {
	a.Signature = signatureUnchecked
	if r.verify != nil {
		a.Signature = signatureVerified
		err := r.verify.Verify(a.raw, h)
		if err == nil && h.Get(standardwebhooks.HeaderWebhookID) != a.DeliveryID {
			err = errors.New("webhook-id is not the delivery's id")
		}
		if err != nil {
			a.Signature = signatureWrong
			a.SignatureError = strings.TrimPrefix(err.Error(), "unable to verify payload, err: ")
		}
	}
	if r.times == nil || len(r.times) == maxRemembered {
		r.times = make(map[string]int)
	}
	r.times[a.DeliveryID]++
	a.Times = r.times[a.DeliveryID]
}

// printArrival prints each delivery for people: a line, and the body below it.
func printArrival(w io.Writer, bodies bool) func(*arrival) {
	c := painter(w)
	return func(a *arrival) {
		text := a.line(c) + "\n"
		if bodies {
			text += a.bodyText()
		}
		io.WriteString(w, text)
	}
}

// line renders an arrival. All that came from the sender is made harmless.
func (a *arrival) line(c colors) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  delivery %s", a.ReceivedAt[len("2006-01-02T"):len("2006-01-02T15:04:05.000")], terminal.Escape(or(a.DeliveryID, "without an id")))
	fmt.Fprintf(&b, "  %s: %s", webhook.Count(len(a.Events), "event"), c.paint(bold, terminal.Escape(eventNames(a.Events))))
	if a.Times > 1 {
		fmt.Fprintf(&b, "  attempt %d", a.Times)
	}
	switch a.Signature {
	case signatureWrong:
		b.WriteString("  " + c.paint(red, "signature WRONG ("+terminal.Escape(a.SignatureError)+")"))
	case signatureUnchecked:
		b.WriteString("  signature not verified")
	default:
		b.WriteString("  signature verified")
	}
	status := green
	if a.Status >= 300 {
		status = red
	}
	b.WriteString("  " + c.paint(status, fmt.Sprintf("→ %d", a.Status)))
	if a.Note != "" {
		fmt.Fprintf(&b, "  (%s)", terminal.Escape(a.Note))
	}
	return b.String()
}

// Bounds of a body that is printed for people. --json prints all of it.
const (
	maxShownBody  = 16 << 10 // bytes
	maxShownLines = 60
)

// bodyText renders the body, indented, JSON over several lines, cut at the bounds.
func (a *arrival) bodyText() string {
	var indented bytes.Buffer
	body := a.raw
	if a.Body != nil && json.Indent(&indented, a.Body, "", "  ") == nil {
		body = indented.Bytes()
	}
	if len(body) == 0 {
		return ""
	}
	shown := body[:min(len(body), maxShownBody)]
	var b strings.Builder
	lines := 0
	for line := range strings.Lines(strings.TrimRight(string(shown), "\r\n")) {
		if lines++; lines > maxShownLines {
			break
		}
		b.WriteString("    " + terminal.Escape(strings.TrimRight(line, "\r\n")) + "\n")
	}
	if lines > maxShownLines || len(shown) < len(body) {
		fmt.Fprintf(&b, "    … cut off: the body has %d bytes, and --json prints all of them\n", len(a.raw))
	}
	return b.String()
}

// maxShownNames bounds the event names in one printed line.
const maxShownNames = 5

// eventNames lists the names in order, each with its number if it is not 1.
func eventNames(events []webhook.EventRef) string {
	var names []string
	count := make(map[string]int)
	for _, e := range events {
		if count[e.Name] == 0 {
			names = append(names, e.Name)
		}
		count[e.Name]++
	}
	more := ""
	if n := len(names) - maxShownNames; n > 0 {
		names, more = names[:maxShownNames], fmt.Sprintf(" and %d more", n)
	}
	for i, name := range names {
		if n := count[name]; n > 1 {
			names[i] = fmt.Sprintf("%s ×%d", name, n)
		}
	}
	return strings.Join(names, ", ") + more
}

// printArrivalJSON prints each delivery as one line of JSON.
func printArrivalJSON(w io.Writer) func(*arrival) {
	return func(a *arrival) {
		if a.Events == nil {
			a.Events = []webhook.EventRef{}
		}
		b, err := json.Marshal(a)
		if err != nil { // the body is the only part that could not be rendered
			a.Body = nil
			b, _ = json.Marshal(a)
		}
		w.Write(append(b, '\n'))
	}
}

// forwarder passes deliveries on to another URL.
type forwarder struct {
	url    string
	client *http.Client
}

func forwardClient() *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// pass sends the delivery on with the sender's headers, and returns the status
// of the answer.
func (f *forwarder) pass(ctx context.Context, h http.Header, body []byte) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = h.Clone()
	// These are between two neighbours (RFC 9110, section 7.6.1), and so are
	// those that Connection names.
	for _, names := range h.Values("Connection") {
		for name := range strings.SplitSeq(names, ",") {
			req.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Connection", "Content-Length"} {
		req.Header.Del(name)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		var urlErr *url.Error
		if errors.As(err, &urlErr) {
			err = urlErr.Err
		}
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	return resp.StatusCode, nil
}
