package ui

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"service/webhook"
)

// filterNames are the display names of properties whose API names differ.
var filterNames = map[string]string{
	"active":             "Delivery",
	"attempts_made.from": "Attempts",
	"bulk_run_id":        "Bulk run ID",
	"closed_at":          "Resolved",
	"closed_by":          "Resolved because",
	"completed_at":       "Completed",
	"created_at":         "Created",
	"event":              "Event type",
	"event_id":           "Event ID",
	"failing":            "Health",
	"id":                 "ID",
	"losses":             "Lost events",
	"name":               "Event type",
	"next_attempt_at":    "Next attempt",
	"opened_at":          "Opened",
	"program_id":         "Program",
	"program_name":       "Name or ID",
	"received_at":        "Received",
	"recovered":          "Recovered",
	"redelivery_of":      "Resent from delivery",
	"replay_id":          "Replay ID",
	"search":             "Name, host or ID",
	"subject_id":         "Record ID",
	"token_id":           "Token ID",
	"subscription_id":    "Subscription",
	"subscription_url":   "Subscription URL",
	"split_of":           "Split from delivery",
	"state":              "Status",
	"timestamp":          "Occurred",
	"updated_at":         "Last changed",
	"user_id":            "User",
}

// filterName is the label of a filter in its form.
func filterName(name string) string {
	if s, ok := filterNames[name]; ok {
		return s
	}
	return Label(name)
}

// isBoxes reports whether a filter is shown as checkboxes.
func isBoxes(fl *webhook.Filter) bool { return fl.Kind == webhook.FilterOneOf && len(fl.Values) <= 5 }

// isShown reports whether a filter has a field that is not folded away.
func isShown(fl *webhook.Filter) bool {
	return fl.Kind == webhook.FilterEvent
}

// isSearch reports whether a filter is the search box at the beginning of the form.
func isSearch(fl *webhook.Filter) bool {
	return fl.Kind == webhook.FilterSearch || fl.Name == "program_name" || fl.Name == "subscription_id"
}

// chip is an active filter, and the address of the list without it.
type chip struct{ text, without string }

// chips are the active filters, except those shown as checkboxes.
func (v *Listing) chips(f Frame) []chip {
	var all []chip
	for i := range v.List.Filters {
		fl := &v.List.Filters[i]
		if r, ok := v.Query.Ranges[fl.Name]; ok && (fl.Name != v.TimeField() || !v.Values.Has(SpanParameter)) {
			all = append(all, chip{filterName(fl.Name) + f.Clock.shortRange(r.From, r.To), v.withFilter(fl.Name)})
		}
		if isBoxes(fl) || v.isResponse(fl.Name) || fl.Name == "program_id" && f.Program != "" {
			continue
		}
		set := v.Query.Filters[fl.Name]
		for j, value := range set {
			rest := slices.Delete(slices.Clone(set), j, j+1)
			text := value
			if fl.Kind == webhook.FilterOneOf {
				text = valueLabel(fl, value)
			} else if fl.Name == "subscription_id" {
				text = cmp.Or(v.Names[value], value)
			}
			all = append(all, chip{filterName(fl.Name) + ": " + Visible(text), v.withFilter(fl.Name, rest...)})
		}
	}
	return all
}

// withFilter returns the address of the first page of the list with other values of a filter,
// whatever form the filter had. Without values it removes the filter.
func (v *Listing) withFilter(name string, values ...string) string {
	return v.without(func(n string) bool { return isFilter(n, name) }).With("filter["+name+"]", values...)
}

// without returns a copy of the listing without the parameters for which drop returns true.
func (v *Listing) without(drop func(name string) bool) *Listing {
	other := *v
	other.Values = maps.Clone(v.Values)
	maps.DeleteFunc(other.Values, func(name string, _ []string) bool { return drop(name) })
	return &other
}

// isFilter reports whether a parameter is the filter with a name, or a bound of its range.
func isFilter(parameter, name string) bool {
	for _, end := range []string{"", ".from", ".to"} {
		if parameter == "filter["+name+end+"]" {
			return true
		}
	}
	return parameter == "filter["+name+"][]" || strings.HasPrefix(parameter, "filter["+name+"][") ||
		strings.HasPrefix(parameter, "filter."+name)
}

// responseClass is a choice for filtering by response.
type responseClass struct{ filter, value, label string }

var responseClasses = []responseClass{
	{"response_status", "2xx", "2xx"}, {"response_status", "3xx", "3xx"}, {"response_status", "4xx", "4xx"}, {"response_status", "5xx", "5xx"},
	{"error", string(webhook.ErrorTimeout), "Timeout"}, {"error", string(webhook.ErrorDNS), "DNS"}, {"error", string(webhook.ErrorConnect),
		"Connect"},
	{"error", string(webhook.ErrorTLS), "TLS"}, {"error", string(webhook.ErrorBlocked), "Blocked"},
}

// hasResponses reports whether the list can be filtered by response.
func (v *Listing) hasResponses() bool {
	return v.filter("response_status") != nil && v.filter("error") != nil
}

// countResponses returns how many kinds of responses are chosen.
func (v *Listing) countResponses() (n int) {
	for _, c := range responseClasses {
		if v.responseIs(c) {
			n++
		}
	}
	return n
}

// responseIs reports whether the list is filtered to exactly one class of responses.
func (v *Listing) responseIs(c responseClass) bool {
	return slices.Equal(v.Query.Filters[c.filter], []string{c.value})
}

// isResponse reports whether a filter's only value is shown as a class of responses.
func (v *Listing) isResponse(name string) bool {
	return v.hasResponses() && slices.ContainsFunc(responseClasses, func(c responseClass) bool { return c.filter == name && v.responseIs(c) })
}

// toggleResponse is the address with a class of responses as its filter, or without the filter if
// it is active.
func (v *Listing) toggleResponse(c responseClass) string {
	other := v.without(func(n string) bool { return isFilter(n, "response_status") || isFilter(n, "error") })
	if v.responseIs(c) {
		return other.withFilter(c.filter)
	}
	return other.withFilter(c.filter, c.value)
}

// WithTime returns the address of the list for a time range.
func (v *Listing) WithTime(from, to string) string {
	other := v.without(func(n string) bool { return n == SpanParameter || isFilter(n, v.TimeField()) })
	other.Values["filter["+v.TimeField()+".from]"] = []string{from}
	return other.With("filter["+v.TimeField()+".to]", to)
}
