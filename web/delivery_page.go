package web

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"service/store"
	"service/store/watch"
	"service/web/ui"
	"service/webhook"
)

// redacted replaces secrets in the shown request.
const redacted = "[redacted]"

// maxCurlBody is the maximum length in bytes of a body within the curl command; the command reads a
// longer body from a file.
const maxCurlBody = 8 << 10

// attemptParameter is the number of the attempt that the page shows.
const attemptParameter = "attempt"

func attemptQuery(number int) string { return "?" + attemptParameter + "=" + strconv.Itoa(number) }

// attemptPath returns the address of an attempt of a delivery.
func attemptPath(id string, number int) string { return deliveryPath(id) + attemptQuery(number) }

// shownEvents is how many events of a delivery are shown.
const shownEvents = 100

// deliveryRecord is the data of a delivery's page.
type deliveryRecord struct {
	store.DeliveryView
	to       ui.SubscriptionState // the state of its subscription
	attempts []attemptRecord
	body     []byte         // of the request, nil if it can no longer be built
	selected *attemptRecord // the attempt that is shown, nil before the first result
	chosen   bool           // the visitor selected it; otherwise it is the last attempt
	curl     string         // repeats the request
	api      string         // reads the same delivery over the API
	shares   []webhook.Share
}

// attemptRecord is an attempt and its differences from the previous one.
type attemptRecord struct {
	webhook.Attempt
	advice
	header  [][2]string
	parts   []attemptPart
	before  int      // number of the previous attempt with a response, 0 for none
	status  string   // the previous status if it differs, otherwise ""
	changes []change // of its header
	resized string   // how the body differs, "" if it is the same
	body    ui.Body
}

// attemptPart is a phase of an attempt's duration, with its position in the chart.
type attemptPart struct {
	class, name string
	took        time.Duration
	x, wide     string
}

func (a *attemptRecord) answered() bool {
	return a.ResponseStatus != 0 || a.ResponseHeader != "" || len(a.ResponseBody) > 0
}

// read reads a delivery for its page.
func (h *deliveryPages) read(r *request) (*deliveryRecord, error) {
	view, err := h.store.Deliveries().View(r.Context(), r.PathValue("id"))
	if err == nil && !r.mine(view.ProgramID) {
		err = webhook.NotFound("delivery")
	}
	if err != nil {
		return nil, asProblem(err)
	}
	if r.portal.in() {
		withoutResponses(view.Attempts)
	}
	d := &deliveryRecord{DeliveryView: view}
	if d.to, err = h.subscriptionState(r.Context(), time.Now(), &view.Subscription); err != nil {
		return nil, err
	}
	if d.EventJSON != nil {
		d.body = webhook.AppendBody(nil, d.ID, d.SubscriptionID, d.ProgramID, d.EventJSON)
	}
	d.attempts = attemptRecords(d.ID, view.Attempts)
	for i := range d.attempts {
		if r.portal.in() {
			d.attempts[i].advice = partnerAdvice(&d.attempts[i].Attempt)
		}
	}
	if err := d.selectAttempt(r.URL.Query().Get(attemptParameter)); err != nil {
		return nil, asProblem(err)
	}
	d.curl = d.asCurl()
	if d.shares, err = h.store.Deliveries().Shares().List(r.Context(), d.ID); err != nil {
		return nil, err
	}
	d.api = h.curl.Command("GET", "/v2/webhooks/subscriptions/"+d.SubscriptionID+"/deliveries/"+d.ID, "")
	return d, nil
}

func (h *deliveryPages) show(r *request, d *deliveryRecord) (response, error) {
	f := h.frame(r, "Delivery of "+ui.Visible(d.name()))
	if !d.Status.Final() || d.Splitting {
		stream := ui.At(r.Context(), deliveryPath(d.ID)+"/stream")
		if d.chosen {
			stream += attemptQuery(d.selected.Number)
		}
		f.Live = &ui.Live{Stream: stream, From: d.state(), Page: f.Address, Noun: "attempt"}
	}
	return response{page: deliveryPage(f, d)}, nil
}

// withoutResponses removes what only admins may see from attempts, as the API does.
func withoutResponses(attempts []webhook.Attempt) {
	for i := range attempts {
		a := &attempts[i]
		a.ResponseHeader, a.ResponseBody, a.ResponseTruncated, a.ErrorFact = "", nil, false, ""
		a.Phases = webhook.Phases{}
	}
}

// state changes whenever the content of the page changes.
func (d *deliveryRecord) state() string {
	return fmt.Sprintf("%s-%d-%d-%d-%d-%d-%d", stateOf(&d.Delivery), d.AttemptsMade, len(d.attempts), len(d.Redeliveries), len(d.Splits),
		d.Undelivered, d.Erased)
}

// stream sends the changes of a delivery to its page.
func (h *deliveryPages) stream(r *request, d *deliveryRecord) (_ response, err error) {
	f := h.frame(r, "")
	return response{stream: func(s *stream) error {
		watcher := h.store.WatchDeliveries()
		defer watcher.Close()
		shown := s.lastID
		// An event may stand for several changes without naming the deliveries.
		concerns := func() bool {
			all := watcher.Take().Deliveries
			_, named := all[d.Num]
			_, unnamed := all[0]
			return named || unnamed || len(all) >= watch.MaxChanged
		}
		for {
			// Read once at first: the delivery may have changed before the watch began.
			if d, err = h.read(r); err != nil {
				return err
			}
			if is := d.state(); is != shown {
				f.Clock.Now = time.Now()
				if err := s.send(is, deliveryUpdate(f, d)); err != nil {
					return err
				}
				shown = is
			}
			if err := s.await(watcher.C, concerns); err != nil {
				return err
			}
		}
	}}, nil
}

// attemptRecords compares each attempt with the previous one.
func attemptRecords(id string, attempts []webhook.Attempt) []attemptRecord {
	all := make([]attemptRecord, len(attempts))
	longest := time.Millisecond
	for _, a := range attempts {
		longest = max(longest, a.Duration, phaseSum(a.Phases))
	}
	previous := -1
	for i := range attempts {
		a := &all[i]
		a.Attempt, a.advice = attempts[i], adviceOf(&attempts[i])
		a.header = headerLines(a.ResponseHeader)
		a.parts = phaseParts(&a.Attempt, longest)
		number := strconv.Itoa(a.Number)
		a.body = responseBody("body-"+number, "Response body of attempt "+number, &a.Attempt)
		a.body.Download = deliveryPath(id) + "/attempts/" + number + "/body.txt"
		n, err := strconv.ParseInt(headerValue(a.header, "Content-Length"), 10, 64)
		if err == nil && n >= int64(len(a.ResponseBody)) && a.body.Packed == 0 {
			a.body.Size = n
		}
		if !a.answered() || a.ResponseRemoved {
			continue
		}
		if previous >= 0 {
			p := &all[previous]
			a.before = p.Number
			if outcomeText(&p.Attempt) != outcomeText(&a.Attempt) {
				a.status = outcomeText(&p.Attempt)
			}
			a.changes = changesOf(p.header, a.header)
			a.resized = bodyChange(&p.Attempt, &a.Attempt)
		}
		previous = i
	}
	return all
}

func phaseSum(p webhook.Phases) time.Duration { return p.DNS + p.Connect + p.TLS + p.FirstByte }

// splitWidth is the width of the chart of an attempt's phases, in its own units.
const splitWidth = 1000

// phaseParts divides the duration of an attempt into its phases; longest is the duration that
// fills the whole width.
func phaseParts(a *webhook.Attempt, longest time.Duration) []attemptPart {
	rest := "Rest of response"
	if a.Error != webhook.ErrorNone {
		rest = "Until it failed"
	}
	var all []attemptPart
	x := 0.0
	for _, p := range []attemptPart{
		{class: "dns", name: "DNS", took: a.Phases.DNS},
		{class: "connect", name: "Connect", took: a.Phases.Connect},
		{class: "tls", name: "TLS", took: a.Phases.TLS},
		{class: "first-byte", name: "First byte", took: a.Phases.FirstByte},
		{class: "rest", name: rest, took: a.Duration - phaseSum(a.Phases)},
	} {
		// Durations are stored in milliseconds: a shorter remainder is a rounding error.
		if p.took <= 0 || p.class == "rest" && p.took < time.Millisecond {
			continue
		}
		wide := float64(p.took) / float64(longest) * splitWidth
		p.x, p.wide = ui.SVGLength(x), ui.SVGLength(max(wide, 2)) // minimum visible width
		x += wide
		all = append(all, p)
	}
	return all
}

// phaseText formats the duration of a phase, which may be very short.
func phaseText(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < 10*time.Millisecond:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64) + " ms"
	}
	return ui.Latency(d)
}

// endpointName returns the description of the subscription, or else its host.
func (d *deliveryRecord) endpointName() string {
	return cmp.Or(firstLineOf(d.Subscription.Description), hostOnly(d.Subscription.URL))
}

// titleTypes is how many event types the title of a delivery names.
const titleTypes = 2

// name is the title of the delivery: its event types, each with its count.
func (d *deliveryRecord) name() string {
	row := deliveryRow{Delivery: d.Delivery}
	types := row.eventTypes()
	switch n := len(types); {
	case n == 0:
		return "no events"
	case n > titleTypes:
		return strings.Join(types[:titleTypes], ", ") + " and " + strconv.Itoa(n-titleTypes) + " more"
	}
	return strings.Join(types, ", ")
}

// isTest reports whether the delivery sends a test event.
func (d *deliveryRecord) isTest() bool {
	return d.Own && len(d.EventJSON) == 1 && webhook.IsTestEvent(d.EventJSON[0])
}

// total is the duration of the delivery so far.
func (d *deliveryRecord) total(now time.Time) string {
	if d.CompletedAt.IsZero() {
		return ui.Uptime(now.Sub(d.CreatedAt)) + " so far"
	}
	if took := d.CompletedAt.Sub(d.CreatedAt); took < time.Minute {
		return ui.Latency(took)
	} else {
		return ui.Uptime(took)
	}
}

// held says when a due delivery that waits for its subscription is sent, "" if the delivery does
// not wait. The time of its next attempt is in the past and says nothing.
func (d *deliveryRecord) held(now time.Time) string {
	switch sub := &d.Subscription; {
	case d.Status.Final() || !d.ClaimedAt.IsZero() || d.Own || d.NextAttemptAt.After(now):
		return ""
	case !sub.Active:
		return "when the paused subscription is resumed"
	case sub.Status == webhook.HealthFailing:
		return "when the endpoint works again"
	}
	return ""
}

// next describes when and why the next attempt takes place, "" if there is none.
func (d *deliveryRecord) next() string {
	number := strconv.Itoa(d.AttemptsMade+1) + " of " + strconv.Itoa(webhook.MaxAttempts)
	var why []string
	switch {
	case d.Status.Final():
		return ""
	case !d.ClaimedAt.IsZero():
		return "Attempt " + strconv.Itoa(d.AttemptsMade) + " of " + strconv.Itoa(webhook.MaxAttempts) + " is in flight."
	case d.AttemptsMade == 0:
		why = append(why, "Attempt "+number+" starts as soon as the subscription's limits allow: on deliveries in flight and on "+
			"requests per second, even after a 429 or 503 that asked for a pause.")
	default:
		last := &d.attempts[len(d.attempts)-1]
		if last.Error == webhook.ErrorInterrupted {
			why = append(why, "Attempt "+number+" follows immediately: the service stopped during the last one.")
		} else {
			why = append(why, "Attempt "+number+" follows automatically.")
		}
		if after := headerValue(last.header, "Retry-After"); last.ResponseStatus == http.StatusServiceUnavailable && after != "" {
			why = append(why, "The endpoint asked to wait: Retry-After: "+ui.Visible(after)+".")
		}
	}
	sub := &d.Subscription
	if d.Own || sub.Active && sub.Status != webhook.HealthFailing {
		return strings.Join(why, " ")
	}
	if d.AttemptsMade == 0 {
		why = nil // the limits do not matter yet
	}
	switch {
	case !sub.Active:
		why = append(why, "The subscription is paused: only pings and tests are sent until it is resumed.")
	default:
		why = append(why, "The subscription is failing: only probes are sent until one succeeds. "+
			"This delivery waits until then, or is itself sent as a probe.")
	}
	return strings.Join(why, " ")
}

// cannotRedeliver explains why the events cannot be resent, "" if they can.
func (d *deliveryRecord) cannotRedeliver() string {
	switch {
	case !d.Subscription.DeletedAt.IsZero():
		return "The subscription is deleted."
	case !d.Subscription.Active && !d.Own:
		return "The subscription is paused: resume it first."
	case d.AllErased:
		return "Its events were erased."
	case d.body == nil && d.Erased == 0:
		return "Its events were older than the retention period and were removed."
	}
	return ""
}

// delivered describes how many events of a failed delivery another delivery has delivered.
func (d *deliveryRecord) delivered() string {
	return ui.Number(int64(d.deliveredEvents())) + " of " + webhook.Count(len(d.Events), "event") + " delivered"
}

// deliveredOrErased is delivered with the number of erased events.
func (d *deliveryRecord) deliveredOrErased() string {
	if d.Erased == 0 {
		return d.delivered()
	}
	return d.delivered() + ", " + ui.Number(int64(d.Erased)) + " erased"
}

// failedAlone describes how many events of a delivery failed again when sent one by one.
func failedAlone(n int) string {
	if n == 1 {
		return "1 event failed again in a delivery of its own"
	}
	return webhook.Count(n, "event") + " failed again in deliveries of their own"
}

// redelivered returns how many events of a failed delivery the receiver already has.
func (d *deliveryRecord) redelivered() int {
	if d.Status != webhook.StatusFailed || d.Own || !d.Subscription.DeletedAt.IsZero() {
		return 0
	}
	return d.deliveredEvents()
}

// deliveredEvents returns how many events of a failed delivery were delivered since. Until an erasure has
// ended, an erased event may still be undelivered.
func (d *deliveryRecord) deliveredEvents() int {
	return max(len(d.Events)-d.Undelivered-d.Erased, 0)
}

// unfinished reports whether resending is all that remains to be done for a failed delivery: its
// events are neither delivered nor in newer deliveries.
func (d *deliveryRecord) unfinished() bool {
	return d.Status == webhook.StatusFailed && !d.Splitting && d.RecoveredAt.IsZero() && (d.Left > 0 || d.Undelivered == 0) && !d.AllErased
}

// cannotCancel explains why the delivery cannot be canceled, "" if it can.
func (d *deliveryRecord) cannotCancel() string {
	switch {
	case d.Splitting:
		return ""
	case d.Status.Final():
		return "Already completed."
	case !d.ClaimedAt.IsZero():
		return "An attempt is in flight. Cancel the delivery after it ends."
	}
	return ""
}

// sentAt is the start of the attempt whose request the page shows, the zero time before the first
// attempt.
func (d *deliveryRecord) sentAt() time.Time {
	if !d.ClaimedAt.IsZero() || len(d.attempts) == 0 {
		return d.ClaimedAt
	}
	return d.attempts[len(d.attempts)-1].StartedAt
}

// requestHeader returns the header of the last attempt in the order it was sent, with secrets
// redacted.
func (d *deliveryRecord) requestHeader() [][2]string {
	head := webhook.RequestHead{DeliveryID: d.ID, SubscriptionID: d.SubscriptionID, ProgramID: d.ProgramID, At: d.sentAt(), Signature: "v1," +
		redacted,
		Trace: d.Trace.Attempt(d.ID, max(d.AttemptsMade, 1)), Test: d.isTest()}
	if d.Subscription.HasAuthorizationHeader {
		head.Authorization = redacted
	}
	for _, name := range d.Subscription.HeaderNames {
		head.Headers = append(head.Headers, webhook.Header{Name: name, Value: redacted})
	}
	lines := head.AppendHeader(nil)
	if head.At.IsZero() {
		for i := range lines {
			if lines[i][0] == "webhook-timestamp" {
				lines[i][1] = "(Unix time of the attempt)"
			}
		}
	}
	slices.SortStableFunc(lines, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	host := ""
	if u, err := url.Parse(d.Subscription.URL); err == nil {
		host = u.Host
	}
	first := [][2]string{{"Host", host}}
	if i := slices.IndexFunc(lines, func(l [2]string) bool { return l[0] == "User-Agent" }); i >= 0 {
		first = append(first, lines[i])
		lines = slices.Delete(lines, i, i+1)
	}
	if d.body != nil {
		first = append(first, [2]string{"Content-Length", strconv.Itoa(len(d.body))})
	}
	return append(first, lines...)
}

// requestLine is the first line of the request. It replaces a query, which may contain a secret of
// the subscriber.
func (d *deliveryRecord) requestLine() string {
	path := "/"
	if u, err := url.Parse(d.Subscription.URL); err == nil {
		if path = u.EscapedPath(); path == "" {
			path = "/"
		}
		if u.RawQuery != "" {
			path += "?…"
		}
	}
	return "POST " + path + " HTTP/1.1"
}

// requestBody is the body of the request for display.
func (d *deliveryRecord) requestBody() *ui.Body {
	return &ui.Body{ID: "request-body", Name: "Request body", Data: d.body, Size: -1, Download: deliveryPath(d.ID) + "/body.json.txt"}
}

// bodyGone says why there is no body of the request.
func (d *deliveryRecord) bodyGone() string {
	if d.Erased > 0 {
		return "The body is no longer available: an event of it was erased."
	}
	return "The body is no longer available: the events were older than the retention period and were removed."
}

// bodyFile is the name of the file with the body of the request.
func (d *deliveryRecord) bodyFile() string { return "delivery-" + d.ID + ".json.txt" }

// asCurl returns a command that repeats the request of the last attempt with the current time and
// its signature. It refers to secrets as $SECRET, $TOKEN and $QUERY.
func (d *deliveryRecord) asCurl() string {
	var b strings.Builder
	signed, data := `printf %s `+ui.ShellQuoteText(d.ID+".")+`"$TIMESTAMP.$BODY"`, `"$BODY"`
	if len(d.body) > maxCurlBody || d.body == nil {
		signed, data = `{ printf %s `+ui.ShellQuoteText(d.ID+".")+`"$TIMESTAMP."; cat `+d.bodyFile()+`; }`, "@"+d.bodyFile()
	} else {
		b.WriteString("BODY=" + ui.ShellQuoteText(string(d.body)) + "\n")
	}
	b.WriteString("TIMESTAMP=$(date +%s)\n" + decodeSecret + "\nSIGNATURE=v1,$(" + signed + " |\n  " + signInput + ")\n")
	target, query, _ := strings.Cut(d.Subscription.URL, "?")
	b.WriteString("curl ")
	if query != "" {
		b.WriteString(ui.ShellQuoteText(target+"?") + `"$QUERY"`)
	} else {
		b.WriteString(ui.ShellQuoteText(target))
	}
	for _, l := range d.requestHeader() {
		switch l[0] {
		case "Host", "Content-Length":
		case "Authorization":
			b.WriteString(" \\\n  -H \"Authorization: $TOKEN\"")
		case "webhook-signature":
			b.WriteString(" \\\n  -H \"webhook-signature: $SIGNATURE\"")
		case "webhook-timestamp":
			b.WriteString(" \\\n  -H \"webhook-timestamp: $TIMESTAMP\"")
		default:
			b.WriteString(" \\\n  -H " + ui.ShellQuoteText(l[0]+": "+l[1]))
		}
	}
	b.WriteString(" \\\n  --data-binary " + data)
	return b.String()
}

// curlNote says how to run the command.
func (d *deliveryRecord) curlNote() string {
	text := "In bash, set SECRET to the signing secret of the subscription"
	if d.Subscription.HasAuthorizationHeader {
		text += ", TOKEN to the value of the Authorization header"
	}
	if len(d.Subscription.HeaderNames) > 0 {
		text += ", replace " + redacted + " with the values of its own headers"
	}
	if strings.Contains(d.Subscription.URL, "?") {
		text += ", QUERY to the query of the URL"
	}
	return text + " and run the command. It computes SIGNATURE with the current time, because endpoints reject old timestamps."
}

// body sends the body of the request as a file.
func (h *deliveryPages) body(r *request, d *deliveryRecord) (response, error) {
	if d.body == nil {
		return response{}, &problem{status: http.StatusGone, title: "The body is gone", text: d.bodyGone()}
	}
	return textFile(d.bodyFile(), d.body), nil
}

// attemptBody sends the stored part of a response body as a file.
func (h *deliveryPages) attemptBody(r *request, d *deliveryRecord) (response, error) {
	for i := range d.attempts {
		if n := strconv.Itoa(d.attempts[i].Number); n == r.PathValue("number") {
			if d.attempts[i].ResponseRemoved {
				return response{}, &problem{status: http.StatusGone, title: "The response is gone",
					text: "The response of this attempt is no longer stored."}
			}
			file := textFile("delivery-"+d.ID+"-attempt-"+n+".txt", d.attempts[i].ResponseBody)
			if d.attempts[i].body.Packed > 0 { // unlike the page, the file is as received
				file.file.name += ".gz"
				file.file.contentType = "application/gzip"
			}
			return file, nil
		}
	}
	return notFound(r)
}

// textFile returns bytes from outside as a file. Its headers make browsers interpret it only as
// text.
func textFile(name string, data []byte) response {
	return response{file: &file{name: name, contentType: "text/plain; charset=utf-8", write: func(to io.Writer) error {
		_, err := to.Write(data)
		return err
	}}}
}

func (h *deliveryPages) confirmRedeliver(r *request, d *deliveryRecord) (response, error) {
	return response{page: redeliverPage(h.frame(r, "Resend"), d)}, nil
}

func (h *deliveryPages) redeliver(r *request, d *deliveryRecord) (response, error) {
	var again webhook.Delivery
	err := h.store.Write(r, func(sw store.Write) (err error) {
		again, err = sw.Deliveries().Redeliver(d.ProgramID, d.SubscriptionID, d.ID, r.actor())
		return err
	})
	return saved(err, deliveryPath(again.ID), webhook.Count(len(d.Events), "event")+" resent in 1 delivery: this one. It is sent as "+
		"soon as the limits on deliveries in flight allow.")
}

func (h *deliveryPages) confirmCancel(r *request, d *deliveryRecord) (response, error) {
	return response{page: cancelPage(h.frame(r, "Cancel delivery"), d)}, nil
}

func (h *deliveryPages) cancel(r *request, d *deliveryRecord) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		return sw.Deliveries().Cancel(d.ProgramID, d.SubscriptionID, d.ID, r.actor())
	})
	text := "Delivery cancelled. It will not be sent again."
	if d.Splitting {
		text = "Cancelled. The events that had not been sent again will not be."
	}
	return saved(err, deliveryPath(d.ID), text)
}

// snippet is code that verifies a delivery in one language.
type snippet struct{ language, code string }

// Shell commands that create a signature: the first sets KEY from SECRET, the second signs its
// standard input with KEY.
const (
	decodeSecret = `KEY=$(printf %s "${SECRET#whsec_}" | base64 -d | od -An -tx1 -v | tr -d ' \n')`
	signInput    = `openssl dgst -sha256 -mac HMAC -macopt "hexkey:$KEY" -binary | base64`
)

// verifySnippets verify the signature of a delivery, as any library of Standard
// Webhooks does. SECRET is the signing secret of the subscription.
func verifySnippets() []snippet {
	return []snippet{
		{"Shell", "# prints the signature that webhook-signature must contain; SECRET is whsec_…, ID and TIMESTAMP\n" +
			"# are the headers webhook-id and webhook-timestamp, body.json is the body as received\n" +
			decodeSecret + "\n" +
			`{ printf %s "$ID.$TIMESTAMP."; cat body.json; } |` + "\n" +
			`  ` + signInput + ` | sed 's/^/v1,/'`},
		{"Node", "import { Webhook } from \"standardwebhooks\";\n\n" +
			"// body: the bytes of the request as received, before JSON parsing\n" +
			"const delivery = new Webhook(process.env.SECRET).verify(body, headers);"},
		{"Python", "from standardwebhooks import Webhook\n\n" +
			"# body: the bytes of the request as received\n" +
			"delivery = Webhook(os.environ[\"SECRET\"]).verify(body, headers)"},
		{"Go", "import standardwebhooks \"github.com/standard-webhooks/standard-webhooks/libraries/go\"\n\n" +
			"wh, err := standardwebhooks.NewWebhook(os.Getenv(\"SECRET\"))\n// …\n" +
			"err = wh.Verify(body, r.Header) // body: as received, before json.Unmarshal"},
	}
}
