package webhook

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ChannelKind is how a channel sends alerts.
type ChannelKind string

const (
	ChannelWebhook ChannelKind = "webhook" // signed, like a delivery
	ChannelSlack   ChannelKind = "slack"   // a webhook in Slack's format
	ChannelEmail   ChannelKind = "email"   // through the operator's SMTP server
)

// AlertChannel is a destination for alerts.
type AlertChannel struct {
	ID     string
	Kind   ChannelKind
	Name   string
	URL    string        // for webhooks; may contain a secret
	To     []string      // email addresses
	Secret SigningSecret // for ChannelWebhook
	Alerts []AlertName   // alerts that are sent to it
	Active bool

	CreatedAt, UpdatedAt time.Time
}

// Target returns the destination of the channel, without parts that may be secret.
func (c *AlertChannel) Target() string {
	if c.Kind == ChannelEmail {
		return strings.Join(c.To, ", ")
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return ""
	}
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		return u.Scheme + "://" + u.Host + "/…"
	}
	return u.Scheme + "://" + u.Host
}

// Limits of a channel.
const (
	MaxChannels    = 20
	maxChannelName = 100 // bytes
	maxAddresses   = 20
)

// CheckChannel returns what is wrong with a channel, by its fields name, kind, url,
// to and alerts. smtp says whether the service can send email.
func CheckChannel(c *AlertChannel, rules SubscriptionRules, smtp bool) []Validation {
	var all []Validation
	fail := func(code, parameter, detail string) { all = append(all, Validation{code, detail, parameter}) }
	switch {
	case c.Name == "":
		fail(InvalidRequired, "name", "is required")
	case len(c.Name) > maxChannelName:
		fail(InvalidTooLong, "name", fmt.Sprintf("must be at most %d bytes", maxChannelName))
	}
	switch c.Kind {
	case ChannelWebhook, ChannelSlack:
		if c.URL == "" {
			fail(InvalidRequired, "url", "is required")
			break
		}
		all = append(all, rules.CheckAlertURL(c.URL)...)
	case ChannelEmail:
		if !smtp {
			fail(InvalidValue, "kind", "needs an SMTP server: start the service with --smtp-host and --smtp-from")
		}
		switch {
		case len(c.To) == 0:
			fail(InvalidRequired, "to", "is required")
		case len(c.To) > maxAddresses:
			fail(InvalidTooMany, "to", fmt.Sprintf("must be at most %d addresses", maxAddresses))
		}
		for _, address := range c.To {
			all = append(all, CheckEmail("to", address)...)
		}
	default:
		fail(InvalidValue, "kind", "must be one of webhook, slack, email")
	}
	if len(c.Alerts) == 0 {
		fail(InvalidRequired, "alerts", "must have at least one alert")
	}
	for _, name := range c.Alerts {
		if !slices.Contains(AlertNames(), name) {
			fail(InvalidValue, "alerts", "contains an unknown alert")
		}
	}
	return all
}

// CheckAlertURL returns what is wrong with a URL that receives alerts. It must pass CheckURL and
// contain no user name or password.
func (r *SubscriptionRules) CheckAlertURL(s string) []Validation {
	fail := func(detail string) []Validation { return []Validation{{InvalidFormat, detail, "url"}} }
	if u, err := url.Parse(s); err == nil && u.User != nil {
		return fail("must not contain a user name or password; put a secret into its path or query")
	}
	if encodesControl(s) {
		return fail("must not contain percent-encoded control characters such as %0d%0a")
	}
	return r.CheckURL(s)
}

// AlertTest is the name of a test alert.
const AlertTest AlertName = "alert_test"

// NewTestAlert returns the JSON of a test alert.
func NewTestAlert(at time.Time) ([]byte, error) {
	return json.Marshal(struct {
		ID        string    `json:"id"`
		Timestamp string    `json:"timestamp"`
		Name      AlertName `json:"name"`
		Version   string    `json:"version"`
		Message   string    `json:"message"`
		Action    string    `json:"action"`
	}{NewID(), FormatTime(at), AlertTest, EventVersion, "This is a test of an alert channel.", "No action is needed."})
}

// AlertText is an alert as text for people.
type AlertText struct {
	Subject string   // one line
	Lines   []string // "" for an empty line
}

var alertSubjects = map[AlertName]string{
	AlertFailing:   "is failing",
	AlertRecovered: "has recovered",
	AlertDisabled:  "was disabled",
	AlertFailed:    "failed events",
	AlertLost:      "lost events",
}

// ParseAlertText formats the JSON of an alert as text. baseURL is the URL of the
// admin UI, "" for no link.
func ParseAlertText(raw []byte, baseURL string) (t AlertText, err error) {
	var j alertJSON
	if err := json.Unmarshal(raw, &j); err != nil {
		return t, err
	}
	s := &j.Subscription
	name, _, _ := strings.Cut(strings.TrimSpace(s.Description), "\n")
	if name == "" {
		name = s.URL
	}
	subject, known := alertSubjects[AlertName(j.Name)]
	if !known {
		return AlertText{"Test alert", []string{j.Message}}, nil
	}
	t.Subject = oneLine(name) + " " + subject
	line := func(texts ...string) { t.Lines = append(t.Lines, strings.Join(texts, "")) }
	line(j.Message)
	line()
	line("Subscription: ", oneLine(s.URL), " (", s.ID, ")")
	if j.FailingSince != nil {
		line("Failing since: ", *j.FailingSince)
	}
	if a := j.LastAttempt; a != nil {
		switch {
		case a.ResponseStatus != nil:
			line("Last response: ", strconv.Itoa(*a.ResponseStatus))
		case a.Error != nil:
			line("Last error: ", a.Error.Detail)
		}
	}
	if j.FailedEvents != nil {
		line("Failed events: ", strconv.FormatInt(*j.FailedEvents, 10))
	}
	if j.LostEvents != nil {
		line("Lost events: ", strconv.FormatInt(*j.LostEvents, 10))
	}
	line()
	line(j.Action)
	if page := j.page(baseURL); page != "" {
		line()
		line(page)
	}
	return t, nil
}

// oneLine returns outside text without control characters, shortened for a subject.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
	return Shorten(strings.TrimSpace(s), 200)
}

// SlackBody returns the body of a request to a webhook in Slack's format.
func (t *AlertText) SlackBody() ([]byte, error) {
	text := "*" + t.Subject + "*\n" + strings.Join(t.Lines, "\n")
	return json.Marshal(map[string]string{"text": strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)})
}

// Body returns the body of an email.
func (t *AlertText) Body() string { return strings.Join(t.Lines, "\n") + "\n" }
