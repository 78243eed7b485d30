package web

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// searchPages find records by ID, by name and by the values of payload fields.
type searchPages struct{ *site }

const (
	maxFound       = 10  // records of a kind that a search lists
	maxFoundOwn    = 100 // records of a kind within which a partner's search looks
	maxFoundEvents = 25  // events on a page of a search for a value
	maxSuggested   = 5   // records of a kind that are suggested while the visitor types
	// searchTime is the maximum time to read events for one page.
	searchTime = 2 * time.Second
)

// searchResult is the result of a search.
type searchResult struct {
	subscriptions []webhook.Subscription
	states        subscriptionStates // of the subscriptions in the result
	programs      []string
	byID          []record.Found

	// A search for the value of a field.
	field, value string
	span         string // the searched time range for ui.Span, "" for any
	events       record.EventsFound
	results      []record.EventResult // of the events
	older        string               // address that continues with older events, "" at the end
}

func (s *searchResult) count() int {
	return len(s.subscriptions) + len(s.programs) + len(s.byID) + len(s.events.Events)
}

// fieldValue matches a search for the value of a payload field. It does not match URLs.
var fieldValue = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]*):\s*(\S.*)$`)

// show shows the results of a search. It redirects to the record if there is only one.
func (h *searchPages) show(r *request) (response, error) {
	given := r.URL.Query()
	q := strings.TrimSpace(given.Get("q"))
	f := h.frame(r, "Search")
	f.Find = q
	if m := fieldValue.FindStringSubmatch(q); m != nil && !strings.HasPrefix(m[2], "//") && !r.portal.in() {
		return h.showEvents(r, f, &searchResult{field: m[1], value: m[2], span: given.Get(ui.SpanParameter)})
	}
	s, err := h.find(r, q, maxFound)
	if err != nil {
		return response{}, err
	}
	if s.count() == 1 {
		return response{location: s.only()}, nil
	}
	if s.states, err = h.subscriptionStates(r.Context(), r.clock.Now, s.subscriptions); err != nil {
		return response{}, err
	}
	a := response{page: foundPage(f, s)}
	if q != "" && s.count() == 0 {
		a.status = http.StatusNotFound
	}
	return a, nil
}

// find looks for records by the beginning of their ID, and by names and URLs.
func (h *searchPages) find(r *request, q string, limit int) (*searchResult, error) {
	if r.portal.in() {
		return h.findOwn(r, q, limit)
	}
	s := new(searchResult)
	var err error
	if s.byID, err = h.store.Search().Prefix(r.Context(), q, limit); err != nil {
		return nil, err
	}
	s.subscriptions, s.programs, err = h.store.Search().Text(r.Context(), q, limit)
	return s, err
}

// findOwn is find for a partner: subscriptions, deliveries and events of the partner's program.
func (h *searchPages) findOwn(r *request, q string, limit int) (*searchResult, error) {
	s := new(searchResult)
	if q == "" {
		return s, nil
	}
	own, err := h.findSubscriptions(r, q, limit)
	if err != nil {
		return nil, err
	}
	s.subscriptions = subscriptionsOf(own)
	s.byID, err = h.store.Search().Prefix(r.Context(), q, maxFoundOwn)
	s.byID = slices.DeleteFunc(s.byID, func(f record.Found) bool {
		return !r.mine(f.ProgramID) || f.Kind != record.FoundDelivery && f.Kind != record.FoundEvent
	})
	s.byID = s.byID[:min(len(s.byID), limit)]
	return s, err
}

// only returns the page of the only result.
func (s *searchResult) only() string {
	switch {
	case len(s.byID) > 0:
		return foundPath(&s.byID[0])
	case len(s.subscriptions) > 0:
		return subscriptionPath(s.subscriptions[0].ID)
	}
	return programPath(s.programs[0])
}

// showEvents lists the events with a value in a field, the newest first.
func (h *searchPages) showEvents(r *request, f ui.Frame, s *searchResult) (response, error) {
	search := record.EventSearch{
		ProgramID: r.program, Field: s.field, Value: s.value, Limit: maxFoundEvents, Within: searchTime,
		Cursor: r.URL.Query().Get("page[cursor]"),
	}
	if _, long := ui.Span(s.span); long > 0 {
		search.From = r.clock.Now.Add(-long)
	} else {
		s.span = ""
	}
	var err error
	if s.events, err = h.store.Events().Search(r.Context(), search); err != nil {
		return response{}, asProblem(err)
	}
	if s.results, err = h.store.Events().Results(r.Context(), s.events.Events); err != nil {
		return response{}, err
	}
	if s.events.More != "" {
		s.older = s.address(f, s.span, s.events.More)
	}
	a := response{page: foundEventsPage(f, s)}
	if s.count() == 0 && s.older == "" && search.Cursor == "" {
		a.status = http.StatusNotFound
	}
	return a, nil
}

// none reports that no event was found, and how many were read.
func (s *searchResult) none() string {
	if s.older == "" {
		return "No event has this value in this period."
	}
	return "Not found in the events read so far."
}

// end ends the sentence that describes how far back events were read.
func (s *searchResult) end() string {
	if s.older == "" {
		return ": all events of this period."
	}
	return "."
}

// address is the address of the same search for another time range, or for older events.
func (s *searchResult) address(f ui.Frame, span, cursor string) string {
	values := url.Values{"q": {f.Find}}
	for name, value := range map[string]string{ui.SpanParameter: span, "page[cursor]": cursor, ui.ProgramParameter: f.Program} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return ui.Address("/find", values)
}

// maxNamed is the maximum number of subscriptions that a list is filtered by for one text.
const maxNamed = 100

// nameSubscriptions finds the subscriptions that the visitor typed into a list's filter, and
// returns the address of the list with their IDs. Without typed text it reads the names of the
// subscriptions in the filter. If several match, but one has exactly this name, it selects that
// one.
func (h *site) nameSubscriptions(r *request, v *ui.Listing) (location string, err error) {
	v.Suggest = ui.At(r.Context(), "/find/suggest?options")
	ids := v.Query.Filters["subscription_id"]
	if v.Names, err = h.subscriptionNames(r, ids); err != nil {
		return "", err
	}
	typed := strings.TrimSpace(v.Values.Get(ui.SubscriptionParameter))
	if v.Error != nil || typed == "" {
		return "", nil
	}
	found, err := h.findSubscriptions(r, typed, maxNamed, "true", "false")
	if err != nil {
		return "", err
	}
	exact := slices.DeleteFunc(slices.Clone(found), func(s record.SubscriptionSummary) bool {
		name, _ := subscriptionName(&s.Subscription)
		return !strings.EqualFold(name, typed)
	})
	if len(exact) > 0 {
		found = exact
	}
	if len(found) == 0 {
		v.Error = webhook.Invalid(webhook.Validation{Code: webhook.InvalidValue, Parameter: ui.SubscriptionParameter,
			Detail: "has no match for “" + typed + "”: enter a part of the name or host of a subscription, or the beginning of its ID"})
		return "", nil
	}
	for i := range found {
		if !slices.Contains(ids, found[i].ID) {
			ids = append(ids, found[i].ID)
		}
	}
	return v.WithSubscriptions(ids), nil
}

// findSubscriptions returns the newest subscriptions that match a text, of the visitor's program,
// or of all if none is selected. deleted contains the values of the filter deleted, to include
// deleted subscriptions.
func (h *site) findSubscriptions(r *request, text string, limit int, deleted ...string) ([]record.SubscriptionSummary, error) {
	q := webhook.ListQuery{Sort: []webhook.SortField{{Name: "created_at", Descending: true}}, Size: limit,
		Filters: map[string][]string{"search": {text}}}
	if deleted != nil {
		q.Filters["deleted"] = deleted
	}
	found, _, err := h.store.Subscriptions().PageAll(r.Context(), r.program, &q)
	return found, err
}

// subscriptionNames returns the names of subscriptions by ID; for a partner, only those of the
// partner's program.
func (h *site) subscriptionNames(r *request, ids []string) (map[string]string, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	labels, err := h.store.Subscriptions().Labels(r.Context(), ids)
	names := make(map[string]string, len(labels))
	for id, label := range labels {
		if r.mine(label.ProgramID) {
			names[id], _ = subscriptionName(&webhook.Subscription{Description: label.Description, URL: label.URL})
		}
	}
	return names, err
}

// suggest lists results while the visitor types, or the names of subscriptions as the options of a field.
func (h *searchPages) suggest(r *request) (response, error) {
	if given := r.URL.Query(); given.Has("options") {
		subs, err := h.findSubscriptions(r, strings.TrimSpace(given.Get(ui.SubscriptionParameter)), maxFound)
		return response{page: subscriptionOptions(subs)}, err
	}
	q := strings.TrimSpace(r.URL.Query().Get("q"))
	s, err := h.find(r, q, maxSuggested)
	if err != nil {
		return response{}, err
	}
	return response{page: suggestions(s)}, nil
}

// foundPath is the page of a result.
func foundPath(f *record.Found) string {
	switch f.Kind {
	case record.FoundSubscription:
		return subscriptionPath(f.ID)
	case record.FoundDelivery:
		return deliveryPath(f.ID)
	case record.FoundEvent:
		return eventPath(f.ProgramID, f.ID)
	default:
		return tokenPath(f.ID)
	}
}

// subscriptionName returns the display name of a subscription: its description, or else its URL.
// more is the host of a subscription with a description.
func subscriptionName(s *webhook.Subscription) (name, more string) {
	host, path, _ := webhook.Endpoint(s.URL)
	if name := firstLineOf(s.Description); name != "" {
		return name, host
	}
	return host + path, ""
}

// firstLineOf returns the first line of a description.
func firstLineOf(description string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	return strings.TrimSpace(first)
}
