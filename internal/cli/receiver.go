package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"service/internal/control"
	"service/internal/terminal"
	"service/webhook"
)

const (
	// maxArrival is the maximum body size in bytes, larger than any delivery of the service.
	maxArrival = webhook.MaxDeliveryBytes + webhook.MaxEventBytes + 64<<10
	// maxRemembered limits the number of deliveries whose attempts are counted. At the limit, all
	// counts are reset.
	maxRemembered = 10_000
)

// receiver is a subscriber's server for development. It prints each delivery, verifies the
// signature if a secret is set, and responds. The fields above the mutex must be set before it
// serves.
type receiver struct {
	respond func(*arrival) int // returns the status of the response
	forward *forwarder         // gets the deliveries that respond accepts; may be nil
	print   func(*arrival)

	mu     sync.Mutex // also serializes print
	verify *standardwebhooks.Webhook
	times  map[string]int // attempts by delivery ID
}

// verifyWith sets the signing secret.
func (r *receiver) verifyWith(secret string) error {
	// The library accepts any base64; a signing secret has a prefix.
	if !strings.HasPrefix(secret, "whsec_") || len(secret) < len("whsec_")+32 {
		return errors.New("not a signing secret")
	}
	v, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return errors.New("not a signing secret") // err could contain the secret
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.verify = v
	return nil
}

// Results of the signature verification.
const (
	signatureVerified  = "verified"
	signatureUnchecked = "unchecked" // no secret was given
	signatureWrong     = "wrong"
)

// Signatures of an event that listen --pull forwards.
const (
	signatureMade = "signed"
	signatureNone = "none" // no secret was given
)

// arrival is one received attempt of a delivery, or one attempt to forward an event that was pulled.
type arrival struct {
	ReceivedAt     string             `json:"received_at"`
	DeliveryID     string             `json:"delivery_id"`
	SubscriptionID string             `json:"subscription_id"`
	ProgramID      string             `json:"program_id"`
	Times          int                `json:"times"` // attempts received so far, including this one
	Events         []webhook.EventRef `json:"events"`
	Signature      string             `json:"signature,omitempty"` // "" for an event that is not forwarded
	SignatureError string             `json:"signature_error,omitempty"`
	Status         int                `json:"status,omitempty"` // of the response; 0 for none
	Note           string             `json:"note,omitempty"`
	Body           json.RawMessage    `json:"body,omitempty"` // if it is JSON

	raw    []byte
	pulled bool
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "Deliveries are POST requests.", http.StatusMethodNotAllowed)
		return
	}
	// Bound the time that a slow sender occupies a connection.
	http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Minute))
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxArrival))
	if err != nil {
		http.Error(w, "The body is too large or incomplete.", http.StatusRequestEntityTooLarge)
		return
	}

	a := readArrival(req.Header, body)
	r.mu.Lock()
	r.verifyAndCount(a, req.Header)
	a.Status = r.respond(a)
	r.mu.Unlock()
	if r.forward != nil && a.Status < 300 {
		if a.Status, err = r.forward.send(req.Context(), req.Header, body); err != nil {
			a.Status, a.Note = http.StatusBadGateway, "not forwarded: "+err.Error()
		}
	}
	w.WriteHeader(a.Status)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.print(a)
}

// readArrival parses the headers and body of a delivery. If the request is not a delivery, the
// fields stay empty.
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
	a.DeliveryID = cmp.Or(h.Get("X-Service-Delivery"), d.DeliveryID)
	a.SubscriptionID = cmp.Or(h.Get("X-Service-Subscription"), d.SubscriptionID)
	a.ProgramID = cmp.Or(h.Get("X-Service-Program"), d.ProgramID)
	switch {
	case len(d.Events) == 0:
		a.Note = "not a delivery: the body has no events"
	case d.DeliveryID != a.DeliveryID || d.SubscriptionID != a.SubscriptionID || d.ProgramID != a.ProgramID:
		a.Note = "the ids in headers and body differ"
	}
	return a
}

// verifyAndCount verifies the signature and counts the attempts of the delivery. The caller must
// hold r.mu.
func (r *receiver) verifyAndCount(a *arrival, h http.Header) {
	a.Signature = signatureUnchecked
	if r.verify != nil {
		a.Signature = signatureVerified
		err := r.verify.Verify(a.raw, h)
		if err == nil && h.Get(standardwebhooks.HeaderWebhookID) != a.DeliveryID {
			err = errors.New("webhook-id is not the delivery id")
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

// printArrival returns a function that prints a delivery as text: one line, and the body
// below it if bodies is set.
func printArrival(w io.Writer, bodies bool) func(*arrival) {
	c := painter(w)
	return func(a *arrival) {
		text := a.line(c) + "\n"
		if bodies && (!a.pulled || a.Times == 1) {
			text += a.bodyText()
		}
		io.WriteString(w, text)
	}
}

// line formats an arrival as one line. Text from the sender is escaped.
func (a *arrival) line(c colors) string {
	var b strings.Builder
	clock := a.ReceivedAt[len("2006-01-02T"):len("2006-01-02T15:04:05.000")]
	if a.pulled {
		fmt.Fprintf(&b, "%s  event %s  %s", clock, terminal.Escape(a.Events[0].ID), c.paint(bold, terminal.Escape(a.Events[0].Name)))
	} else {
		fmt.Fprintf(&b, "%s  delivery %s", clock, terminal.Escape(cmp.Or(a.DeliveryID, "without an id")))
		fmt.Fprintf(&b, "  %s: %s", webhook.Count(len(a.Events), "event"), c.paint(bold, terminal.Escape(eventNames(a.Events))))
	}
	if a.Times > 1 {
		fmt.Fprintf(&b, "  attempt %d", a.Times)
	}
	switch a.Signature {
	case signatureWrong:
		b.WriteString("  " + c.paint(red, "signature WRONG ("+terminal.Escape(a.SignatureError)+")"))
	case signatureUnchecked:
		b.WriteString("  signature not verified")
	case signatureVerified:
		b.WriteString("  signature verified")
	case signatureMade:
		b.WriteString("  signed")
	case signatureNone:
		b.WriteString("  not signed")
	}
	status := green
	if a.Status >= 300 {
		status = red
	}
	if a.Status != 0 {
		b.WriteString("  " + c.paint(status, fmt.Sprintf("→ %d", a.Status)))
	}
	if a.Note != "" {
		fmt.Fprintf(&b, "  (%s)", terminal.Escape(a.Note))
	}
	return b.String()
}

// Limits of a printed body. --json prints it in full.
const (
	maxShownBody  = 16 << 10 // bytes
	maxShownLines = 60
)

// bodyText returns the body indented, with JSON formatted, and truncated at the limits.
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
		fmt.Fprintf(&b, "    … truncated: the body has %d bytes; --json prints it in full\n", len(a.raw))
	}
	return b.String()
}

// maxShownNames limits the event names in one printed line.
const maxShownNames = 5

// eventNames lists the names in order, each with its count if that is not 1.
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

// printArrivalJSON returns a function that prints a delivery as one line of JSON.
func printArrivalJSON(w io.Writer) func(*arrival) {
	return func(a *arrival) {
		if a.Events == nil {
			a.Events = []webhook.EventRef{}
		}
		b, err := json.Marshal(a)
		if err != nil { // only the body can fail to marshal
			a.Body = nil
			b, _ = json.Marshal(a)
		}
		w.Write(append(b, '\n'))
	}
}

// forwarder forwards deliveries to another URL.
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

// send forwards a delivery with the sender's headers and returns the status of the response.
func (f *forwarder) send(ctx context.Context, h http.Header, body []byte) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = h.Clone()
	// Remove hop-by-hop headers (RFC 9110, section 7.6.1).
	for _, names := range h.Values("Connection") {
		for name := range strings.SplitSeq(names, ",") {
			req.Header.Del(strings.TrimSpace(name))
		}
	}
	for _, name := range []string{
		"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Proxy-Connection", "Content-Length",
	} {
		req.Header.Del(name)
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return 0, control.WithoutURL(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // lets the transport reuse the connection
	return resp.StatusCode, nil
}
