package webhook

import (
	_ "embed" // for the guide
	"fmt"
	"strings"
	"text/template"
	"time"
)

// Receiving contains the settings of an installation that matter to developers of a receiver.
type Receiving struct {
	BaseURL   string // of the API, without a trailing slash
	Timeout   time.Duration
	Retry     RetryPolicy
	Health    HealthPolicy
	BatchSize int
	Window    time.Duration // the wait for more events before a delivery
	Retention time.Duration

	RetentionDelivered time.Duration // of successful deliveries
	MaxInFlight        int           // default, per subscription

	Egress string // which addresses deliveries come from, in the operator's words; "" if unknown
}

//go:embed receiving.md
var receivingText string

// Guide returns the guide for receivers as Markdown.
func (r *Receiving) Guide() string {
	var b strings.Builder
	text := template.Must(template.New("receiving.md").Parse(receivingText))
	if err := text.Execute(&b, r.words()); err != nil {
		panic(fmt.Errorf("receiving.md: %w", err)) // every test would detect it
	}
	return b.String()
}

// Checklist returns the checklist of the guide, as Markdown without links.
func (r *Receiving) Checklist() []string {
	_, text, _ := strings.Cut(r.Guide(), "\n## Checklist\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var all []string
	for line := range strings.Lines(text) {
		if item, ok := strings.CutPrefix(line, "- "); ok {
			all = append(all, strings.TrimSpace(item))
		}
	}
	return all
}

// receivingWords are the values in the guide.
type receivingWords struct {
	BaseURL, Timeout, Waits, Retention, Batch, Batching, Failing, Egress string
	Attempts                                                             int
}

func (r *Receiving) words() receivingWords {
	w := receivingWords{
		BaseURL: r.BaseURL, Timeout: InWords(r.Timeout), Retention: InWords(r.Retention), Attempts: MaxAttempts,
		Egress: r.Egress,
	}
	w.Waits = r.Waits()
	w.Batch = fmt.Sprintf("at most %d with together %d KiB; a larger event comes alone", r.BatchSize, MaxDeliveryBytes>>10)
	w.Batching = "A delivery takes all events that wait when the subscription has a free slot, " + w.Batch + ".\n" +
		"An event for an idle subscription is sent immediately and alone; under load, events are batched."
	if r.Window > 0 {
		w.Batching = "The first event waits for others for " + InWords(r.Window) + ". A delivery then takes all events that wait, " +
			w.Batch + "."
	}
	w.Failing = r.failing()
	if w.Egress == "" {
		w.Egress = "Ask the operator which addresses deliveries come from, if a firewall has to let them in. The signature, and not\n" +
			"the address, shows that a delivery is genuine."
	}
	return w
}

// failing says when a subscription becomes failing.
func (r *Receiving) failing() string {
	var when []string
	if n := r.Health.FailingAfter; n > 0 {
		when = append(when, Count(n, "attempt")+" without a response or with a 5xx, in a row over at least a minute")
	}
	if n := r.Health.RejectingAfter; n > 0 {
		when = append(when, Count(n, "other response")+" than 2xx in a row")
	}
	if when == nil {
		return "The operator has turned the detection of failing subscriptions off."
	}
	text := "A subscription becomes `failing` after " + strings.Join(when, ", or after ") + "."
	if r.Health.DisableAfter > 0 {
		text += " If it stays so for " + InWords(r.Health.DisableAfter) + ", it is set inactive."
	}
	return text
}

// Waits lists the waits between the attempts of a delivery.
func (r *Receiving) Waits() string {
	waits := make([]string, len(r.Retry.Waits))
	for i, d := range r.Retry.Waits {
		waits[i] = InWords(d)
	}
	last := len(waits) - 1
	text := strings.Join(waits[:last], ", ") + " and " + waits[last]
	if r.Retry.Jitter > 0 {
		text += fmt.Sprintf(", each varied by up to %.3g %%", 100*r.Retry.Jitter)
	}
	return text
}

// InWords formats a duration in the largest unit that divides it.
func InWords(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}} {
		if n := d / u.unit; d%u.unit == 0 && n > 0 && !(u.name == "days" && n == 1) {
			return fmt.Sprintf("%d %s", n, u.name)
		}
	}
	return d.String()
}
