package ui

import (
	"context"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/a-h/templ"
	"github.com/google/go-cmp/cmp"

	"service/webhook"
)

// childText is a child of a component.
func childText(s string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, templ.EscapeString(s))
		return err
	})
}

// with returns a component with its children.
func with(part templ.Component, children ...templ.Component) templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
		return part.Render(templ.WithChildren(ctx, templ.Join(children...)), w)
	})
}

// aSection is a section of the gallery.
func aSection(id, name string, parts ...templ.Component) templ.Component {
	return templ.ComponentFunc(func(ctx context.Context, w io.Writer) error {
		io.WriteString(w, `<section aria-labelledby="`+id+`"><h2 id="`+id+`">`+name+`</h2>`)
		err := templ.Join(parts...).Render(ctx, w)
		io.WriteString(w, `</section>`)
		return err
	})
}

const oddText = "\"'><script>alert(1)</script>\u202egnp.exe\x00\x1b[31m\xff\u200b"

var update = flag.Bool("update", false, "rewrite the golden page in testdata")

// now is the time of the page.
var now = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)

var sections = []Section{
	{"/", "overview", "Overview"},
	{"/subscriptions", "subscriptions", "Subscriptions"},
	{"/deliveries", "deliveries", "Deliveries"},
	{"/events", "events", "Events"},
	{"/event-types", "types", "Event types"},
	{"/tokens", "tokens", "Tokens"},
	{"/system", "system", "System"},
	{"/audit", "audit", "Audit"},
}

func galleryCharts() (steps, latency Chart) {
	steps = Chart{
		ID: "per-minute", Name: "Deliveries per minute", StepName: "Minute",
		Labels: []string{"05:00", "05:01", "05:02", "05:03", "05:04", "05:05", "05:06"},
		Series: []Series{
			{"Success", "success", []float64{40, 42, 38, 60, 71, 55, 48}},
			{"Failed, can be retried", "retryable", []float64{0, 0, 12, 20, 4, 0, 0}},
			{"Failed, not retried", "failed", []float64{1, 0, 2, 0, 5, 1, 0}},
		},
	}
	latency = Chart{
		ID: "latency", Name: "Latency", StepName: "Minute", Labels: steps.Labels,
		Series: []Series{
			{"p50", "", []float64{41, 40, 43, math.NaN(), 61, 45, 40}},
			{"p95", "", []float64{120, 118, 160, math.NaN(), 300, 190, 130}},
		},
		Format: func(v float64) string { return Number(int64(v)) + " ms" },
	}
	return steps, latency
}

func galleryFrame(c Clock) Frame {
	return Frame{
		Title: "Gallery", Section: "/deliveries", Address: "/deliveries", Stylesheet: "/assets/style.css", Script: "/assets/app.js",
		Icon: "/assets/icon.svg", Clock: c, Keys: true, Admin: "ada@example.com", Note: &Note{NoteSuccess, "3 deliveries were resent."},
		Nav: []Group{{Name: "Work", Sections: sections}}, Program: "acme", Programs: []string{"acme", "globex-emea", "northwind"},
		Live: &Live{Stream: "/deliveries/stream", Page: "/deliveries", Noun: "delivery"},
	}
}

// gallery is a page with all components.
func gallery(t *testing.T) templ.Component {
	c := Clock{Now: now}
	f := galleryFrame(c)
	const id = "0195f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"
	steps, latency := galleryCharts()
	row1 := with(Row("d-1"),
		with(Cell("", "tick-cell"), SelectRow("id", id, "Select the delivery")),
		with(Cell("Status"), StateBadge("success", "")),
		with(Cell("ID"), IDLink("/deliveries/"+id, id)),
		with(Cell("Events"), childText("user_created")),
		with(Cell("Age"), c.Ago(now.Add(-90*time.Second))),
		with(Cell("Latency", "number"), childText("41 ms")))
	row2 := with(Row("d-2"),
		with(Cell("", "tick-cell"), SelectRow("id", "2", "Select the delivery")),
		with(Cell("Status"), StateBadge("retryable", "")),
		with(Cell("ID"), CopyID(id)),
		with(Cell("Events"), childText(Visible(oddText))),
		with(Cell("Next attempt"), c.Until(now.Add(4*time.Minute))),
		with(Cell("Latency", "number"), None()))
	table := with(Panel(), with(Table("Deliveries", Column{Name: "Selected", Class: "w-tick", Hidden: true, Select: "Select all on this page"},
		Column{Name: "Status", Class: "w-state"},
		Column{Name: "ID", Class: "w-id"}, Column{Name: "Events"}, Column{Name: "When", Class: "w-time"},
		Column{Name: "Latency", Class: "number"}), row1, row2))
	// fields that the other form lacks
	wrong := parsed(t, c, webhook.IncidentList, "/incidents?filter[stauts]=x&filter[closed_by]=unknown")
	set := parsed(t, c, webhook.DeliveryList,
		"/deliveries?program=acme&span=24h&filter[status]=failed,retryable&filter[response_status]=5xx&sort=-created_at")
	numbered := parsed(t, c, webhook.SubscriptionList, "/subscriptions?page[number]=6")
	feed := parsed(t, c, webhook.DeliveryList, "/deliveries?page[cursor]=abc")
	formFaults := FieldErrors(webhook.Invalid(
		webhook.Validation{Code: webhook.InvalidFormat, Parameter: "url", Detail: "must be an absolute URL"},
		webhook.Validation{Code: webhook.InvalidUnknownField, Parameter: "elsewhere", Detail: oddText},
	), map[string][2]string{"url": {"url", "URL"}})
	pretty := []byte(`{"id":"` + id + `","n":[1,-2.50e3,true,null,{}, []],"text":"a \u202e b","name":"` + "\u202e" + `x"}`)
	return with(Layout(f),
		with(RecordTitle("Delivery", "user_created and 2 more", templ.Join(StateBadge("failed", ""), FullID(id))),
			ActionLink("/x", "edit", "Edit"), ActionButton("/x", "again", "Resend", ""), ActionButton("/x", "delete", "Cancel",
				"Already completed")),
		aSection("g-alarms", "Alarms",
			with(Banner(NoteFailed), childText("Something failed: "+Visible(oddText))),
			with(Banner(NoteWarning), childText("Something needs attention."))),
		aSection("g-tables", "Tables", FilterBar(f, set), table, PagerBar(numbered.Pages(312)), PagerBar(feed.FeedPages("", "def")),
			APIExample("curl https://service.example/v2/events")),
		aSection("g-faults", "A list with faulty filters", FilterBar(Frame{Clock: c}, wrong)),
		aSection("g-forms", "Forms", FormErrors(formFaults),
			Field(FieldProps{ID: "url", Name: "url", Label: "URL", Kind: "url", Value: "x", Error: FieldErrorText(formFaults, "url"),
				Hint: "Where deliveries are sent."}),
			Field(FieldProps{ID: "kind", Name: "kind", Label: "Kind", Kind: "select", Value: "b", Options: []Option{{"a", "First"},
				{"b", "Second"}}}),
			Field(FieldProps{ID: "events", Name: "events", Label: "Events", Kind: "textarea", Value: "a\nb"}),
			Checkbox(FieldProps{ID: "active", Name: "active", Label: "Active", Hint: "Events are delivered."}, true)),
		aSection("g-facts", "Facts", with(DetailList(),
			with(Detail("Created"), c.At(now.Add(-26*time.Hour))), with(Detail("State"),
				SubscriptionBadge(NewSubscriptionState(&webhook.Subscription{Active: true, Status: webhook.HealthHealthy},
					webhook.Stat{Success: 9, Failed: 3}))), with(Detail("ID"), FullID(id)))),
		aSection("g-code", "Bodies",
			BodyBlock(&Body{ID: "response", Name: "Response body", Data: pretty, Size: -1, Download: "/x"}),
			BodyBlock(&Body{ID: "cut", Name: "Text", Data: []byte("<b>not bold</b>\r\nline\ttab " + strings.ToValidUTF8(oddText, "?") +
				strings.Repeat(" long", 60)), Cut: true, Size: 1 << 20}),
			BodyBlock(&Body{ID: "binary", Name: "Binary", Data: []byte("\x89PNG\r\n\x1a\n\x00\x01\x02"), Size: -1}),
			BodyBlock(&Body{ID: "empty", Name: "Nothing", Size: -1}),
			JSONBlock("Example", []byte(`{"name":"user_created"}`)),
			HeaderTable("Request headers", [][2]string{{"Content-Type", "application/json"}, {"X-Odd", oddText}})),
		aSection("g-charts", "Charts", StackedBars(&steps), Lines(&latency)),
		aSection("g-empty", "Empty states",
			with(EmptyState("Nothing has been sent yet.", "A new subscription is sent a ping at once."),
				Command("service token create --program acme")),
			NoMatches("/deliveries", ""), NoMatches("/deliveries", "/deliveries?page[cursor]=x"), LoadError("The attempts", "/x", id)),
		aSection("g-confirm", "Confirmation",
			with(Confirm(Confirmation{Action: "/x", Button: "Delete the subscription", Danger: true, CancelTo: "/y",
				Hidden: [][2]string{{"id", "1"}}}), childText("It ends permanently.")),
			Confirm(Confirmation{Action: "/x", Button: "Resend", CancelTo: "/y", Refused: "The subscription is deleted."})),
	)
}

// betweenTags marks where a line break does not change the display: not within a body's text, whose
// tokens are spans.
var betweenTags = strings.NewReplacer("><div", ">\n<div", "><section", ">\n<section", "><p", ">\n<p", "><li", ">\n<li", "><form",
	">\n<form",
	"><tr", ">\n<tr", "><td", ">\n<td", "><symbol", ">\n<symbol", "><meta", ">\n<meta", "><details", ">\n<details", "><rect", ">\n<rect",
	"><label", ">\n<label")

// TestGallery renders all components on one page, which a browser test uses too.
func TestGallery(t *testing.T) {
	got := betweenTags.Replace(rendered(t, gallery(t))) + "\n"
	const file = "testdata/gallery.html"
	if *update {
		must(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test ./web/ui -update accepts it):\n%s", file, diff)
	}
	for _, live := range []string{"<script>", "<b>", " style=", "\u202e", "\x00", "\x1b", "\u200b"} {
		if strings.Contains(got, live) {
			t.Errorf("the gallery has %q", live)
		}
	}
	if !strings.Contains(got, "⟨U+202E⟩") {
		t.Error("the gallery does not spell out the mark that turns the direction of writing")
	}
}

func TestFaultsOfAnotherError(t *testing.T) {
	if got := FieldErrors(errors.New("the disk is full"), nil); got != nil {
		t.Errorf("got %v, want nil: an internal error is not shown to the visitor", got)
	}
}
