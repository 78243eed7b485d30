package webhook

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCheckChannel(t *testing.T) {
	rules := SubscriptionRules{}
	good := AlertChannel{Kind: ChannelSlack, Name: "on call", URL: "https://hooks.example/T0/B0", Alerts: []AlertName{AlertFailing}}
	for name, test := range map[string]struct {
		change func(c *AlertChannel)
		smtp   bool
		want   []string // parameters
	}{
		"good":            {func(*AlertChannel) {}, false, nil},
		"empty":           {func(c *AlertChannel) { *c = AlertChannel{} }, false, []string{"alerts", "kind", "name"}},
		"long name":       {func(c *AlertChannel) { c.Name = strings.Repeat("x", 101) }, false, []string{"name"}},
		"http":            {func(c *AlertChannel) { c.URL = "http://hooks.example/" }, false, []string{"url"}},
		"inside":          {func(c *AlertChannel) { c.URL = "https://10.0.0.1/" }, false, []string{"url"}},
		"password in URL": {func(c *AlertChannel) { c.URL = "https://u:p@hooks.example/" }, false, []string{"url"}},
		"no URL":          {func(c *AlertChannel) { c.URL = "" }, false, []string{"url"}},
		"no mail server":  {func(c *AlertChannel) { c.Kind, c.To = ChannelEmail, []string{"a@b.example"} }, false, []string{"kind"}},
		"mail":            {func(c *AlertChannel) { c.Kind, c.To = ChannelEmail, []string{"a@b.example", "c@d.example"} }, true, nil},
		"no address":      {func(c *AlertChannel) { c.Kind = ChannelEmail }, true, []string{"to"}},
		"bad address":     {func(c *AlertChannel) { c.Kind, c.To = ChannelEmail, []string{"a@b.example", "Bcc: x"} }, true, []string{"to"}},
		"line break in address": {func(c *AlertChannel) {
			c.Kind, c.To = ChannelEmail, []string{"a@b.example", "a%0d%0abcc:x@d.example"}
		}, true, []string{"to"}},
		"line break in URL":   {func(c *AlertChannel) { c.URL = "https://hooks.example/a%0D%0AHost:x" }, false, []string{"url"}},
		"line break in query": {func(c *AlertChannel) { c.URL = "https://hooks.example/?a=%0a" }, false, []string{"url"}},
		"line break for Slack": {func(c *AlertChannel) {
			c.Kind, c.URL = ChannelSlack, "https://hooks.example/%0d"
		}, false, []string{"url"}},
		"encoded":       {func(c *AlertChannel) { c.URL = "https://hooks.example/a%20b?c=%2Fd" }, false, nil},
		"unknown alert": {func(c *AlertChannel) { c.Alerts = []AlertName{"x"} }, false, []string{"alerts"}},
	} {
		c := good
		test.change(&c)
		var got []string
		for _, v := range CheckChannel(&c, rules, test.smtp) {
			got = append(got, v.Parameter)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// The text of an alert has lines without control characters, whatever the
// subscription's name, and is escaped for Slack.
func TestAlertText(t *testing.T) {
	a := Alert{
		Name: AlertFailing, At: time.Unix(0, 0),
		Subscription: Subscription{ID: "s-1", URL: "https://hooks.example/in?secret=x", Description: "Partner <X> & Co\r\nBcc: evil@example.com"},
		Failures:     Failures{Count: 3, Since: time.Unix(60, 0), Reason: FailingUnreachable},
		Attempt:      &Attempt{ResponseStatus: 503}, DeliveryID: "d-1",
	}
	raw, err := a.JSON()
	if err != nil {
		t.Fatal(err)
	}
	text, err := ParseAlertText(raw, "https://service.example")
	if err != nil {
		t.Fatal(err)
	}
	body := text.Body()
	for _, want := range []string{"Subscription: https://hooks.example/in (s-1)", "Failing since: 1970-01-01T00:01:00.000Z",
		"Last response: 503", "https://service.example/subscriptions/s-1"} {
		if !strings.Contains(body, want) {
			t.Errorf("want %q in the text, got:\n%s", want, body)
		}
	}
	if text.Subject != "Partner <X> & Co is failing" || strings.Contains(body, "secret") || strings.ContainsAny(text.Subject, "\r\n") {
		t.Errorf("got subject %q:\n%s", text.Subject, body)
	}
	slack, err := text.SlackBody()
	if err != nil || strings.Contains(string(slack), "<X>") || !strings.Contains(string(slack), `"text":"*Partner`) {
		t.Errorf("got Slack body %s (%v)", slack, err)
	}
	test, err := NewTestAlert(time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := ParseAlertText(test, ""); err != nil || text.Subject != "Test alert" || len(text.Lines) != 1 {
		t.Errorf("got test alert %+v (%v)", text, err)
	}
}
