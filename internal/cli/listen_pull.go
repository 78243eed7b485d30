package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"service/dispatcher/client"
	"service/internal/terminal"
	"service/webhook"
)

// pullFlags are the flags of listen that are for --pull.
type pullFlags struct {
	Pull        string `env:"-" placeholder:"SUBSCRIPTION" help:"ID of a subscription whose events to read over the API instead of receiving deliveries."`
	CursorFile  string `env:"-" placeholder:"FILE" help:"With --pull: file that keeps the position in the events. Default: SUBSCRIPTION.cursor in the current directory."`
	From        string `env:"-" placeholder:"T" help:"With --pull and no cursor file yet: time at which to begin, such as 2026-03-14. Default: now."`
	HeadersFile string `env:"-" placeholder:"FILE" help:"With --pull and --forward: file with headers to send, one Name: value per line, such as the Authorization of the subscription."`
	Program     string `env:"-" placeholder:"ID" help:"With --pull and a token of the scope platform: program of the subscription."`
	URL         string `name:"url" default:"https://127.0.0.1:8443" placeholder:"URL" help:"Base URL of the API, for --pull."`
	Token       string `env:"SERVICE_TOKEN" placeholder:"TOKEN" help:"Access token with the scope webhooks.read, for --pull. Prefer --token-file: other users can see command lines."`
	TokenFile   string `env:"SERVICE_TOKEN_FILE" placeholder:"FILE" help:"File with the token."`
	CA          string `name:"ca" placeholder:"FILE" help:"PEM file of certificates to trust instead of the system's, such as the server's ca.pem."`
}

// refuse adds the errors of flags that are not for this way to listen.
func (c *listenCmd) refuse(f *configErrors, conf *configuration, pull bool) {
	if pull {
		for _, name := range []string{"listen", "status", "fail-first"} {
			if conf.given[name] {
				f.add(name, "cannot be used with --pull")
			}
		}
		return
	}
	for _, flag := range [][2]string{
		{"cursor-file", c.CursorFile}, {"from", c.From}, {"headers-file", c.HeadersFile}, {"program", c.Program},
	} {
		if flag[1] != "" {
			f.add(flag[0], "needs --pull")
		}
	}
}

// Waits and limits of listen --pull.
const (
	pullMinWait = 500 * time.Millisecond // the first wait before another try; it doubles up to pullMaxWait
	pullMaxWait = 10 * time.Second
	// pullSilence is after which silence a stream is given up. The server sends something every 15 s.
	pullSilence = time.Minute
	// forwardTimeout is long enough for a short look in a debugger.
	forwardTimeout = 30 * time.Second
	// forwardGrace is how long an event in flight may take after Ctrl-C.
	forwardGrace = 700 * time.Millisecond
)

// pull prints and forwards the events of a subscription until ctx ends.
func (c *listenCmd) pull(ctx context.Context, std Streams, conf *configuration) error {
	var f configErrors
	c.refuse(&f, conf, true)
	if !webhook.IsID(c.Pull) {
		f.add("pull", "must be the ID of a subscription, such as 0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5")
	}
	w := &follower{
		apiConn: apiConn{base: f.apiURL("url", c.URL), program: c.Program}, from: c.From,
		minWait: pullMinWait, maxWait: pullMaxWait, silence: pullSilence, print: c.printer(std),
		note: func(format string, args ...any) {
			fmt.Fprintln(std.Err, terminal.Line(spelled(fmt.Sprintf(format, args...), commandName())))
		},
	}
	var err error
	if w.token, err = secret("token", c.Token, c.TokenFile); err != nil {
		return err
	}
	if w.token == "" {
		f.add("token", "is required: an access token with the scope %s", webhook.ScopeWebhooksRead)
	}
	if err := c.pullForward(&f, w); err != nil {
		return err
	}
	if err := f.err(); err != nil {
		return err
	}
	https, err := apiClient(c.CA)
	if err != nil {
		return err
	}
	defer https.CloseIdleConnections()
	w.send = https.Do
	if w.cursor, err = openCursor(cmp.Or(c.CursorFile, c.Pull+".cursor"), c.Pull); err != nil {
		return err
	}
	c.greet(w)
	return w.run(ctx)
}

// pullForward makes the follower forward events, if it shall.
func (c *listenCmd) pullForward(f *configErrors, w *follower) error {
	c.checkForward(f)
	if c.Forward == "" {
		if c.HeadersFile != "" {
			f.add("headers-file", "needs --forward")
		}
		return nil
	}
	all, err := webhook.ParseDestinations([]string{"0.0.0.0/0", "::/0"}) // the URL is the developer's own
	if err != nil {
		return err
	}
	w.forward = &eventForwarder{
		client:  client.New(&client.Config{Timeout: forwardTimeout, MaxIdle: 1, Destinations: all, AllowHTTP: true}),
		to:      client.NewTarget(c.Forward),
		minWait: pullMinWait, maxWait: pullMaxWait, grace: forwardGrace, print: w.print,
	}
	key, err := secret("secret", c.Secret, c.SecretFile)
	if err != nil {
		return err
	}
	if key != "" {
		signing, err := webhook.ParseSigningSecret(key)
		if err != nil {
			f.addSecret()
		}
		w.forward.secrets = []webhook.SigningSecret{signing}
	}
	if c.HeadersFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.HeadersFile)
	if err != nil {
		return fmt.Errorf("--headers-file: %w", err)
	}
	return w.forward.addHeaders(f, string(text))
}

// addHeaders adds the headers of a subscription: one Name: value per line.
func (d *eventForwarder) addHeaders(f *configErrors, text string) error {
	headers, fault := webhook.ParseHeaders(text)
	if fault != nil {
		f.add("headers-file", "%s", fault.Detail)
		return nil
	}
	for _, h := range headers {
		switch {
		case !strings.EqualFold(h.Name, "Authorization"):
			d.headers = append(d.headers, h)
		case d.authorization != "":
			f.add("headers-file", "Authorization is given twice")
		default:
			d.authorization = h.Value
		}
	}
	for _, v := range webhook.CheckHeaders(d.headers) {
		f.add("headers-file", "%s %s", v.Parameter, v.Detail)
	}
	return nil
}

// greet says what the follower does.
func (c *listenCmd) greet(w *follower) {
	begin := "from now on"
	switch {
	case w.cursor.cursor != "":
		begin = "from the cursor on"
		if w.from != "" {
			w.note("--from has no effect, because %s has a cursor. To begin at that time, choose another file with --cursor-file.", w.cursor.path)
		}
	case w.from != "":
		begin = "from " + w.from + " on"
	}
	w.note("Pulling the events of subscription %s %s, until Ctrl-C. The cursor is in %s.", c.Pull, begin, w.cursor.path)
	if w.forward == nil {
		return
	}
	w.note("Forwarding each to %s until it responds with a 2xx.", c.Forward)
	if w.forward.secrets == nil {
		w.note("Requests are not signed. To sign them, set --secret-file.")
	}
}

// checkHeaders notes the headers that a delivery to the subscription would have and the forwarded
// request has not.
func (w *follower) checkHeaders(ctx context.Context) error {
	var s struct {
		Data struct {
			HasAuthorization bool     `json:"has_authorization_header"`
			HeaderNames      []string `json:"header_names"`
		}
	}
	if err := w.read(ctx, &s); err != nil {
		return err
	}
	var missing []string
	if s.Data.HasAuthorization && w.forward.authorization == "" {
		missing = append(missing, "Authorization")
	}
	for _, name := range s.Data.HeaderNames {
		if !w.forward.sends(name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		w.note("Deliveries also have %s, whose values the API does not return. To send them, set --headers-file.", strings.Join(missing, ", "))
	}
	return nil
}

// eventForwarder sends each event as a delivery of its own, with the code that sends deliveries.
type eventForwarder struct {
	client           *client.Client
	to               *client.Target
	secrets          []webhook.SigningSecret // empty to leave the requests unsigned
	authorization    string
	headers          []webhook.Header
	minWait, maxWait time.Duration
	grace            time.Duration
	print            func(*arrival)
}

// sends reports whether a header is sent.
func (d *eventForwarder) sends(name string) bool {
	for _, h := range d.headers {
		if strings.EqualFold(h.Name, name) {
			return true
		}
	}
	return false
}

// send sends an event until the response is a 2xx, and prints each attempt. When ctx ends, it returns
// the error of ctx once the attempt in flight has ended, after at most grace.
func (d *eventForwarder) send(ctx context.Context, a *arrival) error {
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(d.grace, cancel) })()
	if a.Signature = signatureNone; d.secrets != nil {
		a.Signature = signatureMade
	}
	wait := newBackoff(d.minWait, d.maxWait)
	for a.Times = 1; ; a.Times++ {
		attempt := d.client.Send(sending, &client.Request{
			DeliveryID: a.DeliveryID, SubscriptionID: a.SubscriptionID, ProgramID: a.ProgramID,
			To: d.to, Authorization: d.authorization, Headers: d.headers, Secrets: d.secrets, Body: a.raw, Number: a.Times,
		})
		if attempt.Error == webhook.ErrorInterrupted {
			return cmp.Or(ctx.Err(), errors.New("the event could not be sent"))
		}
		a.ReceivedAt, a.Status, a.Note = webhook.FormatTime(time.Now()), attempt.ResponseStatus, ""
		if attempt.Result == webhook.ResultSuccess {
			d.print(a)
			return nil
		}
		pause := wait.next(attempt.RetryAfter)
		a.Note = "next attempt in " + pause.String()
		if attempt.Error != webhook.ErrorNone {
			a.Note = "not forwarded: " + cmp.Or(attempt.ErrorFact, string(attempt.Error)) + "; " + a.Note
		}
		d.print(a)
		if err := pauseFor(ctx, pause); err != nil {
			return err
		}
	}
}

// eventsPath returns the path of the subscription's events.
func (w *follower) eventsPath() string {
	if w.cursor.cursor != "" || w.from == "" {
		return w.path() + "/events"
	}
	return w.path() + "/events?" + url.Values{"from": {w.from}}.Encode()
}
