package web

import (
	"bytes"
	"context"
	"errors"
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

// text is a child of a part.
func text(s string) templ.Component {
	return templ.ComponentFunc(func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, templ.EscapeString(s))
		return err
	})
}

// with is a part with its children.
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

const hostile = "\"'><script>alert(1)</script>\u202egnp.exe\x00\x1b[31m\xff\u200b"

func aListing(t *testing.T, list *webhook.List, path, query string) *listing {
	t.Helper()
	return ask(t, path+"?"+query).mustList(t, list)
}

// gallery is a page with all the parts.
func gallery(t *testing.T) templ.Component {
	c := clock{now: aNow}
	f := frame{
		title: "Gallery", path: "/deliveries", here: "/deliveries", stylesheet: "/assets/style.css", script: "/assets/app.js", icon: "/assets/icon.svg",
		clock: c, keys: true, admin: "ada@example.com", note: &note{noteDone, "3 deliveries are sent again."},
		nav: sections, program: "acme", programs: []string{"acme", "globex-emea", "northwind"},
		live: &liveTail{stream: "/deliveries/stream", here: "/deliveries", noun: "delivery"},
	}
	const id = "0195f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"
	steps := chart{
		id: "per-minute", name: "Deliveries per minute", steps: "Minute",
		labels: []string{"05:00", "05:01", "05:02", "05:03", "05:04", "05:05", "05:06"},
		series: []series{
			{"Success", "success", []float64{40, 42, 38, 60, 71, 55, 48}},
			{"Retryable", "retryable", []float64{0, 0, 12, 20, 4, 0, 0}},
			{"Failed", "failed", []float64{1, 0, 2, 0, 5, 1, 0}},
		},
	}
	latency := chart{
		id: "latency", name: "Latency", steps: "Minute", labels: steps.labels,
		series: []series{
			{"p50", "", []float64{41, 40, 43, math.NaN(), 61, 45, 40}},
			{"p95", "", []float64{120, 118, 160, math.NaN(), 300, 190, 130}},
		},
		format: func(v float64) string { return grouped(int64(v)) + " ms" },
	}
	row1 := with(row("d-1"),
		with(cell("", "tick-cell"), tick("id", id, "Select the delivery")),
		with(cell("Status"), stateBadge("success", "")),
		with(cell("Delivery"), idLink(deliveryPath(id), id)),
		with(cell("Events"), text("user_created")),
		with(cell("Age"), c.ago(aNow.Add(-90*time.Second))),
		with(cell("Latency", "number"), text("41 ms")))
	row2 := with(row("d-2"),
		with(cell("", "tick-cell"), tick("id", "2", "Select the delivery")),
		with(cell("Status"), stateBadge("retryable", "")),
		with(cell("Delivery"), copyID(id)),
		with(cell("Events"), text(visible(hostile))),
		with(cell("Next attempt"), c.until(aNow.Add(4*time.Minute))),
		with(cell("Latency", "number"), none()))
	all := tickAll("Select all that are shown")
	table := with(panel(), all, with(table("Deliveries", column{"Select", "w-tick", true}, column{"Status", "w-state", false}, column{"Delivery", "w-id", false},
		column{"Events", "", false}, column{"When", "w-time", false}, column{"Latency", "number", false}), row1, row2))
	wrong := aListing(t, webhook.DeliveryList, "/deliveries", "filter[stauts]=x&filter[response_status]=6xx")
	set := aListing(t, webhook.DeliveryList, "/deliveries", "program=acme&span=24h&filter[status]=failed,retryable&filter[response_status]=5xx&sort=-created_at")
	numbered := aListing(t, webhook.SubscriptionList, "/subscriptions", "page[number]=6")
	feed := aListing(t, webhook.DeliveryList, "/deliveries", "page[cursor]=abc")
	formFaults := faultsOf(webhook.Invalid(
		webhook.Validation{Code: webhook.InvalidFormat, Parameter: "url", Detail: "must be an absolute URL"},
		webhook.Validation{Code: webhook.InvalidUnknownField, Parameter: "elsewhere", Detail: hostile},
	), map[string][2]string{"url": {"url", "URL"}})
	pretty := []byte(`{"id":"` + id + `","n":[1,-2.50e3,true,null,{}, []],"text":"a \u202e b","name":"` + "\u202e" + `x"}`)
	return with(layout(f),
		with(recordTitle("Delivery", "user_created and 2 more", id, "failed"),
			actionLink("/x", "edit", "Edit"), actionButton("/x", "again", "Redeliver", ""), actionButton("/x", "delete", "Cancel", "It has ended already.")),
		contents([2]string{"g-tables", "Tables"}, [2]string{"g-forms", "Forms"}, [2]string{"g-code", "Bodies"}, [2]string{"g-charts", "Charts"}),
		aSection("g-alarms", "Alarms",
			with(alarm(noteFailed), text("Something failed: "+visible(hostile))), with(alarm(noteMind), text("Something to be heeded."))),
		aSection("g-tables", "Tables", filterBar(f, set), table, pagerBar(numbered.pages(312)), pagerBar(feed.feed("", "def")), sameOverAPI("curl https://service.example/v2/events")),
		aSection("g-faults", "A list that cannot be had", filterBar(frame{clock: c}, wrong)),
		aSection("g-forms", "Forms", faults(formFaults),
			field(fieldProps{id: "url", name: "url", label: "URL", kind: "url", value: "x", fault: faultOf(formFaults, "url"), hint: "Where deliveries are sent."}),
			field(fieldProps{id: "kind", name: "kind", label: "Kind", kind: "select", value: "b", options: []option{{"a", "First"}, {"b", "Second"}}}),
			field(fieldProps{id: "events", name: "events", label: "Events", kind: "textarea", value: "a\nb"}),
			checkbox(fieldProps{id: "active", name: "active", label: "Active", hint: "Events are delivered."}, true)),
		aSection("g-facts", "Facts", with(facts(),
			with(fact("Created"), c.at(aNow.Add(-26*time.Hour))), with(fact("State"), subscriptionState(true, webhook.HealthFailing)), with(fact("Id"), wholeID(id)))),
		aSection("g-code", "Bodies",
			bodyBlock(&body{id: "response", name: "Response body", data: pretty, size: -1, download: "/x"}),
			bodyBlock(&body{id: "cut", name: "Text", data: []byte("<b>not bold</b>\r\nline\ttab " + strings.ToValidUTF8(hostile, "?") + strings.Repeat(" long", 60)), cut: true, size: 1 << 20}),
			bodyBlock(&body{id: "binary", name: "Binary", data: []byte("\x89PNG\r\n\x1a\n\x00\x01\x02"), size: -1}),
			bodyBlock(&body{id: "empty", name: "Nothing", size: -1}),
			jsonBlock("Example", []byte(`{"name":"user_created"}`)),
			headers("Request headers", [][2]string{{"Content-Type", "application/json"}, {"X-Odd", hostile}})),
		aSection("g-charts", "Charts", stackedBars(&steps), lines(&latency), sparkline("9 of 10 were delivered", []float64{1, 3, 2, math.NaN(), 4, 9}, 9)),
		aSection("g-empty", "Empty states",
			with(nothing("Nothing has been sent yet.", "A new subscription is sent a ping at once."), command("service token create --program acme")),
			nothingMatches("/deliveries", ""), nothingMatches("/deliveries", "/deliveries?page[cursor]=x"), notLoaded("The attempts", "/x", id)),
		aSection("g-confirm", "Confirmation",
			with(confirm(confirmation{action: "/x", button: "Delete the subscription", danger: true, back: "/y", hidden: [][2]string{{"id", "1"}}}), text("It ends for good.")),
			confirm(confirmation{action: "/x", button: "Redeliver", back: "/y", refused: "The subscription is deleted."})),
	)
}

// betweenTags is where a page can be divided into lines without changing what
// it shows: not within a body's text, whose pieces are spans.
var betweenTags = strings.NewReplacer("><div", ">\n<div", "><section", ">\n<section", "><p", ">\n<p", "><li", ">\n<li", "><form", ">\n<form",
	"><tr", ">\n<tr", "><td", ">\n<td", "><symbol", ">\n<symbol", "><meta", ">\n<meta", "><details", ">\n<details", "><rect", ">\n<rect", "><label", ">\n<label")

// TestGallery holds all the parts in one page, which the browser looks at too.
func TestGallery(t *testing.T) {
	var b bytes.Buffer
	if err := gallery(t).Render(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	got := betweenTags.Replace(b.String()) + "\n"
	const file = "testdata/gallery.html"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; go test ./web -update accepts it):\n%s", file, diff)
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
	if got := faultsOf(errors.New("the disk is full"), nil); got != nil {
		t.Errorf("got %v, want nil: what is no mistake of the visitor is shown to nobody", got)
	}
}
