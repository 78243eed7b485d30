package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"service/store"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// channelPages are the pages of alert channels.
type channelPages struct{ *site }

// channelSends is how many of the last alerts the channel page shows.
const channelSends = 20

// channelPath returns the path of a channel's page.
func channelPath(id string) string { return "/alerts/" + url.PathEscape(id) }

// channelRow is a channel in the list, with its last alert.
type channelRow struct {
	webhook.AlertChannel
	last *store.AlertSend // nil for none
}

// channelList is the page of all channels.
type channelList struct {
	rows   []channelRow
	flag   bool // --alert-url is set
	smtp   bool
	alerts []record.Alert // the newest
}

func (h *channelPages) list(r *request) (response, error) {
	l := channelList{flag: h.cfg.AlertURL, smtp: h.cfg.Email}
	channels, err := h.store.Alerts().Channels(r.Context())
	if err != nil {
		return response{}, err
	}
	for _, c := range channels {
		row := channelRow{AlertChannel: c}
		sends, err := h.store.Alerts().Sends(r.Context(), c.ID, 1)
		if err != nil {
			return response{}, err
		}
		if len(sends) > 0 {
			row.last = &sends[0]
		}
		l.rows = append(l.rows, row)
	}
	if l.alerts, err = h.store.Alerts().Last(r.Context(), healthRows); err != nil {
		return response{}, err
	}
	return response{page: channelListPage(h.frame(r, "Alerts"), &l)}, nil
}

// channelForm is the form that creates a channel, or changes one.
type channelForm struct {
	channel webhook.AlertChannel // with the URL as it was typed
	to      string
	editing bool
	target  string // the current target of the edited channel
	smtp    bool
	errors  []ui.FieldError
}

// channelFields maps the parameters of errors to the fields of the form.
func channelFields() map[string][2]string {
	return map[string][2]string{
		"name": {"name", "Name"}, "kind": {"kind", "Kind"}, "url": {"url", "URL"}, "to": {"to", "Email addresses"},
		"alerts": {"alert-" + string(webhook.AlertFailing), "Alerts"}, "channels": {"name", "Channels"},
	}
}

func (h *channelPages) newForm(r *request) (response, error) {
	f := channelForm{smtp: h.cfg.Email, channel: webhook.AlertChannel{Kind: webhook.ChannelSlack, Alerts: webhook.AlertNames(), Active: true}}
	return response{page: channelFormPage(h.frame(r, "New alert channel"), &f)}, nil
}

// readForm reads the form into a channel.
func (h *channelPages) readForm(r *request, c *webhook.AlertChannel) *channelForm {
	form := r.PostForm
	c.Name, c.Active = strings.TrimSpace(form.Get("name")), form.Has("active")
	c.Alerts = nil
	for _, name := range webhook.AlertNames() {
		if slices.Contains(form["alert"], string(name)) {
			c.Alerts = append(c.Alerts, name)
		}
	}
	f := &channelForm{smtp: h.cfg.Email, to: strings.TrimSpace(form.Get("to"))}
	if c.Kind == "" {
		c.Kind = webhook.ChannelKind(form.Get("kind"))
	}
	if given := strings.TrimSpace(form.Get("url")); given != "" {
		c.URL = given
	}
	if c.Kind == webhook.ChannelEmail {
		c.URL, c.To = "", nil
		for address := range strings.FieldsFuncSeq(f.to, func(r rune) bool { return r == ',' || r == ';' || r == ' ' || r == '\n' }) {
			c.To = append(c.To, webhook.NormalizeEmail(address))
		}
	}
	f.channel = *c
	return f
}

func (h *channelPages) check(r *request, c *webhook.AlertChannel) error {
	return validationError(webhook.CheckChannel(c, *h.rules(r), h.cfg.Email))
}

// create creates a channel. The response shows the signing secret of a webhook, once.
func (h *channelPages) create(r *request) (response, error) {
	c := webhook.AlertChannel{}
	f := h.readForm(r, &c)
	c.Active = true
	err := h.check(r, &c)
	if err == nil {
		err = h.store.Write(r, func(sw store.Write) (err error) {
			if c, err = sw.Channels().Create(c); err != nil {
				return err
			}
			return sw.Audit(r.entry(webhook.ActionAlertChannelCreate, "", c.ID, channelDetail(&c)))
		})
	}
	if f.errors = ui.FieldErrors(err, channelFields()); f.errors != nil {
		return response{page: channelFormPage(h.frame(r, "New alert channel"), f), status: http.StatusUnprocessableEntity}, nil
	}
	if err != nil {
		return response{}, err
	}
	if c.Kind == webhook.ChannelWebhook {
		return response{page: channelSecretPage(h.frame(r, "Alert channel created"), &c), secret: true}, nil
	}
	return done(channelPath(c.ID), "Channel created. Send a test alert to check it.")
}

// channelDetail describes a channel for the audit log.
func channelDetail(c *webhook.AlertChannel) string {
	return string(c.Kind) + " " + c.Name + ": " + c.Target()
}

func (h *channelPages) find(r *request) (webhook.AlertChannel, error) {
	c, err := h.store.Alerts().Channel(r.Context(), r.PathValue("id"))
	return c, asProblem(err)
}

// channelView is the page of one channel.
type channelView struct {
	webhook.AlertChannel
	sends  []store.AlertSend
	tested *store.AlertSend // the test alert whose result the page shows, nil for none
}

func (h *channelPages) show(r *request, c webhook.AlertChannel) (response, error) {
	v := channelView{AlertChannel: c}
	if num, err := strconv.ParseInt(r.URL.Query().Get("test"), 10, 64); err == nil {
		if s, err := h.store.Alerts().Send(r.Context(), num); err == nil && s.ChannelID == c.ID && s.Name == webhook.AlertTest {
			v.tested = &s
		}
	}
	var err error
	v.sends, err = h.store.Alerts().Sends(r.Context(), c.ID, channelSends)
	f := h.frame(r, ui.Visible(c.Name))
	f.Address = channelPath(c.ID)
	return response{page: channelPage(f, &v)}, err
}

func (h *channelPages) editForm(r *request, c webhook.AlertChannel) (response, error) {
	f := channelForm{editing: true, target: c.Target(), to: strings.Join(c.To, ", "), smtp: h.cfg.Email, channel: c}
	f.channel.URL = "" // the URL may contain a secret
	return response{page: channelFormPage(h.frame(r, "Edit "+ui.Visible(c.Name)), &f)}, nil
}

func (h *channelPages) update(r *request, c webhook.AlertChannel) (response, error) {
	target, name := c.Target(), c.Name
	f := h.readForm(r, &c)
	err := h.check(r, &c)
	if err == nil {
		err = h.store.Write(r, func(sw store.Write) error {
			if err := sw.Channels().Update(c); err != nil {
				return err
			}
			return sw.Audit(r.entry(webhook.ActionAlertChannelUpdate, "", c.ID, channelDetail(&c)))
		})
	}
	if f.errors = ui.FieldErrors(err, channelFields()); f.errors != nil {
		f.editing, f.target = true, target
		if !slices.ContainsFunc(f.errors, func(e ui.FieldError) bool { return e.ID == "url" }) {
			f.channel.URL = ""
		}
		return response{page: channelFormPage(h.frame(r, "Edit "+ui.Visible(name)), f), status: http.StatusUnprocessableEntity}, nil
	}
	if err != nil {
		return response{}, asProblem(err)
	}
	return done(channelPath(c.ID), "Channel saved.")
}

// test sends a test alert, and waits for its result.
func (h *channelPages) test(r *request, c webhook.AlertChannel) (response, error) {
	watch := h.store.Watch()
	defer watch.Close()
	var num int64
	err := h.store.Write(r, func(sw store.Write) (err error) {
		if num, err = sw.Channels().Test(c.ID); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAlertChannelTest, "", c.ID, channelDetail(&c)))
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), pingWait)
	defer cancel()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true // the page says that it is still being sent
		case <-watch.C:
			if !watch.Take().AlertSends {
				continue
			}
			s, err := h.store.Alerts().Send(ctx, num)
			ended = err != nil || !s.AttemptedAt.IsZero()
		}
	}
	return response{location: channelPath(c.ID) + "?test=" + strconv.FormatInt(num, 10)}, nil
}

// testResult describes the result of a test alert.
func testResult(kind webhook.ChannelKind, s *store.AlertSend) string {
	result := sendResult(kind, s)
	switch {
	case s.AttemptedAt.IsZero():
		return "the test alert is still being sent; its result is listed under Recent alerts"
	case s.Status == webhook.StatusSuccess:
		return "test alert sent (" + result + ")"
	case s.Status == webhook.StatusRetryable:
		return "test alert not sent (" + result + "); it is retried"
	}
	return "test alert not sent (" + result + ")"
}

func (h *channelPages) confirmDelete(r *request, c webhook.AlertChannel) (response, error) {
	return response{page: channelDeletePage(h.frame(r, "Delete "+ui.Visible(c.Name)), &c)}, nil
}

func (h *channelPages) delete(r *request, c webhook.AlertChannel) (response, error) {
	err := h.store.Write(r, func(sw store.Write) error {
		if err := sw.Channels().Delete(c.ID); err != nil {
			return err
		}
		return sw.Audit(r.entry(webhook.ActionAlertChannelDelete, "", c.ID, channelDetail(&c)))
	})
	if err != nil {
		return response{}, asProblem(err)
	}
	return done("/alerts", "Channel deleted.")
}

// channelKinds are the options of the field Kind.
func channelKinds() []ui.Option {
	return []ui.Option{
		{Value: string(webhook.ChannelSlack), Label: "Slack-compatible webhook"},
		{Value: string(webhook.ChannelEmail), Label: "Email"},
		{Value: string(webhook.ChannelWebhook), Label: "Webhook (signed JSON)"},
	}
}

func channelKind(k webhook.ChannelKind) string {
	for _, o := range channelKinds() {
		if o.Value == string(k) {
			return o.Label
		}
	}
	return string(k)
}

// alertMeaning says when the service sends an alert.
func alertMeaning(name webhook.AlertName) string {
	switch name {
	case webhook.AlertFailing:
		return "Several attempts in a row failed and the circuit breaker of a subscription opened: its events wait."
	case webhook.AlertRecovered:
		return "The endpoint of a failing subscription accepts deliveries again."
	case webhook.AlertDisabled:
		return "A subscription failed for longer than --disable-after and was disabled."
	case webhook.AlertFailed:
		return "Events failed for good although the endpoint accepts others; at most one alert an hour per subscription."
	case webhook.AlertLost:
		return "Events were older than the retention period and were removed before they could be delivered."
	}
	return ""
}

// sendResult describes the result of sending an alert to a channel of a kind.
func sendResult(kind webhook.ChannelKind, s *store.AlertSend) string {
	switch {
	case s.AttemptsMade == 0 || s.AttemptedAt.IsZero():
		return "not sent yet"
	case s.Error != webhook.ErrorNone:
		return errorTitles[s.Error]
	case kind == webhook.ChannelEmail:
		return smtpResult(s.ResponseStatus)
	case s.ResponseStatus != 0:
		return outcomeText(&webhook.Attempt{ResponseStatus: s.ResponseStatus})
	}
	return ""
}

// smtpResult describes a reply code of a mail server.
func smtpResult(code int) string {
	text := "the mail server rejected the message"
	switch {
	case code >= 200 && code < 300:
		return "accepted by the mail server"
	case code == 530 || code == 534 || code == 535:
		text = "the mail server rejected the user name or password; check --smtp-user and --smtp-password-file"
	case code == 550 || code == 551 || code == 553:
		text = "the mail server rejected an address"
	case code == 452 || code == 552:
		text = "the mailbox is full"
	case code >= 400 && code < 500:
		text = "the mail server cannot accept the message now"
	}
	return strconv.Itoa(code) + ": " + text
}

// sendName names an alert that was sent to a channel.
func sendName(s *store.AlertSend) string {
	if s.Name == webhook.AlertTest {
		return "Test"
	}
	return alertTitle(s.Name)
}
