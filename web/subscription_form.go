package web

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
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

// subscriptionForm is the form that creates or edits a subscription.
type subscriptionForm struct {
	editing  *record.SubscriptionView // nil for a new one
	programs []string                 // to choose from; from ui.MaxProgramChoices on, a text field
	groups   []eventGroup
	once     string // one-time code of a new subscription's form
	was      string // a fingerprint of the edited fields when the form was loaded: see editionOf

	program, url, description            string
	maxInFlight, maxPerSecond, maxEvents string
	events                               []string
	filters                              string      // of some of the events, JSON by name
	look                                 *filterLook // results of the filters; nil if not requested
	clock                                ui.Clock
	ordered, active                      bool
	authorization, headers               string
	remove, removeHeaders                bool // the authorization header, and the headers

	verdict urlCheck
	errors  []ui.FieldError
	changed []string // fields that another admin changed since the form was loaded
	preview *pingPreview
	curl    string

	tokenCommand string // creates a program with a token, if there is none
}

// eventGroup is a group of event types whose names begin with the same word.
type eventGroup struct {
	name  string
	types []*webhook.EventType
}

// subscriptionFieldIDs returns the fields of the form by API parameter.
func subscriptionFieldIDs() map[string][2]string {
	return map[string][2]string{
		"program": {"for-program", "Program"}, "url": {"url", "URL"}, "events": {"events", "Events"}, "description": {"description",
			"Name"},
		"authorization_header": {"authorization", "Authorization header"}, "headers": {"headers", "Other headers"},
		"filters":        {"filters", "Filters"},
		"max_in_flight":  {"max-in-flight", "Deliveries in flight"},
		"max_per_second": {"max-per-second", "Requests per second"},
		"max_events":     {"max-events", "Events per delivery"}, "subscriptions": {"for-program", "Program"},
	}
}

// groupsOf divides event types into groups. Subscribed types that the catalog no longer has form
// their own group, so that they can be deselected.
func groupsOf(catalog *webhook.Catalog, asked []string) []eventGroup {
	var groups []eventGroup
	add := func(name string, t *webhook.EventType) {
		i := slices.IndexFunc(groups, func(g eventGroup) bool { return g.name == name })
		if i < 0 {
			groups, i = append(groups, eventGroup{name: name}), len(groups)
		}
		groups[i].types = append(groups[i].types, t)
	}
	for _, t := range catalog.Types() {
		first, rest, _ := strings.Cut(strings.ReplaceAll(t.Name, ".", "_"), "_")
		if strings.HasPrefix(rest, "notification_") {
			first += " notifications"
		}
		add(ui.Label(first), t)
	}
	for _, name := range asked {
		if !catalog.Has(name) {
			add("No longer in the catalog", &webhook.EventType{Name: name, Description: "Once deselected, it cannot be selected again."})
		}
	}
	return groups
}

// readForm reads the form. A partner's subscription belongs to the partner's program.
func (h *subscriptionPages) readForm(r *request) *subscriptionForm {
	form := r.PostForm
	p := &subscriptionForm{
		once: form.Get("once"), was: form.Get("was"),
		program: strings.TrimSpace(form.Get("for_program")), url: strings.TrimSpace(form.Get("url")),
		description: strings.ReplaceAll(strings.TrimSpace(form.Get("description")), "\r\n", "\n"),
		maxInFlight: strings.TrimSpace(form.Get("max_in_flight")), maxPerSecond: strings.TrimSpace(form.Get("max_per_second")),
		maxEvents: strings.TrimSpace(form.Get("max_events")), events: form["events"],
		filters: strings.TrimSpace(form.Get("filters")),
		ordered: form.Has("ordered"), active: form.Has("active"), remove: form.Has("remove_authorization"),
		authorization: form.Get("authorization"), headers: form.Get("headers"), removeHeaders: form.Has("remove_headers"),
	}
	if r.portal.in() {
		p.program = r.program
	}
	return p
}

// fields returns the subscription fields that the form sets. It records invalid fields in the form.
func (p *subscriptionForm) fields(rules *webhook.SubscriptionRules) webhook.SubscriptionFields {
	f := webhook.SubscriptionFields{URL: &p.url, Events: &p.events, Description: &p.description, Ordered: &p.ordered}
	if p.events == nil {
		f.Events = &[]string{}
	}
	var faults []webhook.Validation
	n, err := strconv.Atoi(cmp.Or(p.maxInFlight, "0"))
	if err != nil {
		faults = append(faults, webhook.Validation{Code: webhook.InvalidType, Parameter: "max_in_flight",
			Detail: "must be a whole number, or empty for the default"})
	}
	f.MaxInFlight = &n
	rate, err := strconv.ParseFloat(cmp.Or(p.maxPerSecond, "0"), 64)
	if err != nil || rate == 0 && p.maxPerSecond != "" {
		faults = append(faults, webhook.Validation{Code: webhook.InvalidValue, Parameter: "max_per_second",
			Detail: fmt.Sprintf("must be %g to %d, or empty for no limit", webhook.MinPerSecond, webhook.MaxPerSecondLimit)})
		rate = 0
	}
	f.MaxPerSecond = &rate
	events, err := strconv.Atoi(cmp.Or(p.maxEvents, "0"))
	if err != nil || events < 0 || events > webhook.MaxEventsLimit {
		faults = append(faults, webhook.Validation{Code: webhook.InvalidValue, Parameter: "max_events",
			Detail: fmt.Sprintf("must be a whole number from 1 to %d, or empty for the default", webhook.MaxEventsLimit)})
		events = 0
	}
	f.MaxEvents = &events
	switch {
	case p.remove && p.authorization != "":
		faults = append(faults, webhook.Validation{Code: webhook.InvalidValue, Parameter: "authorization_header",
			Detail: "cannot be both removed and replaced"})
	case p.remove:
		f.AuthorizationHeader = new(*string)
	case p.authorization != "":
		header := &p.authorization
		f.AuthorizationHeader = &header
	}
	faults = append(faults, p.setHeaders(&f)...)
	faults = append(faults, p.setFilters(&f)...)
	if p.editing == nil {
		f.Active = &p.active
	}
	checked := *rules
	if p.editing != nil {
		checked.Kept, checked.KeptFilters = p.editing.Events, p.editing.Filters
	}
	faults = append(faults, checked.Check(&f, true)...)
	if faults != nil {
		p.errors = append(p.errors, ui.FieldErrors(webhook.Invalid(faults...), subscriptionFieldIDs())...)
	}
	return f
}

// setHeaders sets the headers of the fields, if the form changes them, and returns the errors in
// them.
func (p *subscriptionForm) setHeaders(f *webhook.SubscriptionFields) []webhook.Validation {
	entered, fault := webhook.ParseHeaders(p.headers)
	switch {
	case fault != nil:
		return []webhook.Validation{*fault}
	case p.removeHeaders && entered != nil:
		return []webhook.Validation{{Code: webhook.InvalidValue, Parameter: "headers", Detail: "cannot be both removed and replaced"}}
	case p.removeHeaders, entered != nil:
		f.Headers = &entered
	}
	return nil
}

// setFilters sets the filters of the fields, and returns the errors in them. It removes the filters
// of deselected events.
func (p *subscriptionForm) setFilters(f *webhook.SubscriptionFields) []webhook.Validation {
	all, faults := webhook.ParseFilters(p.filters, "filters")
	for name, filter := range all {
		if slices.Contains(p.events, name) {
			continue
		}
		if p.editing == nil || !webhook.SameFilter(filter, p.editing.Filters[name]) {
			faults = append(faults, webhook.Validation{Code: webhook.InvalidValue, Parameter: "filters." + name,
				Detail: "is not the name of a selected event"})
		}
		delete(all, name)
	}
	f.Filters = all
	return faults
}

// fillForm adds the choices of the form.
func (h *subscriptionPages) fillForm(r *request, p *subscriptionForm) error {
	selectable := p.events
	if p.editing != nil {
		selectable = slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.events, p.editing.Events))))
	}
	p.groups, p.clock = groupsOf(h.cfg.Rules.Catalog, selectable), r.clock
	p.verdict = h.checkedURL(r, p.url)
	if fault := ui.FieldErrorText(p.errors, "url"); fault != "" {
		p.verdict.fault = fault
	}
	if p.editing == nil {
		var err error
		if r.portal.in() {
			p.programs = []string{r.program}
		} else if p.programs, err = h.store.Programs().IDs(r.Context(), ui.MaxProgramChoices); err != nil {
			return err
		}
		if len(p.programs) == 1 && p.program == "" {
			p.program = p.programs[0]
		}
		p.once = h.issueOnce(r)
		p.preview = h.previewPing(r, p.program, p.url, p.verdict.fault == "", p.authorization != "")
	}
	return nil
}

func (h *subscriptionPages) newForm(r *request) (response, error) {
	p := &subscriptionForm{program: r.program, active: true}
	return h.renderNew(r, p, http.StatusOK)
}

func (h *subscriptionPages) renderNew(r *request, p *subscriptionForm, status int) (response, error) {
	if err := h.fillForm(r, p); err != nil {
		return response{}, err
	}
	p.curl, p.tokenCommand = h.subscribeCommand(), h.tokenCommand(p.program)
	return response{page: newSubscriptionPage(h.frame(r, "New subscription"), p), status: status}, nil
}

// create creates a subscription. Only this response shows its signing secret.
func (h *subscriptionPages) create(r *request) (response, error) {
	p := h.readForm(r)
	switch r.PostForm.Get("step") {
	case "check":
		return h.renderNew(r, p, http.StatusOK)
	case "filters":
		if err := h.lookAtFilters(r, p); err != nil {
			return response{}, err
		}
		return h.renderNew(r, p, http.StatusOK)
	}
	fields := p.fields(h.rules(r))
	if there, err := h.store.Programs().Exists(r.Context(), p.program); err != nil {
		return response{}, err
	} else if p.program == "" {
		p.errors = append(p.errors, ui.FieldError{ID: "for-program", Label: "Program", Text: "is required"})
	} else if !there {
		p.errors = append(p.errors, ui.FieldError{ID: "for-program", Label: "Program", Text: "does not exist"})
	}
	if p.errors == nil && !h.useOnce(r, p.once) {
		p.errors = []ui.FieldError{{Text: sentBefore}}
	}
	if p.errors != nil {
		return h.renderNew(r, p, http.StatusUnprocessableEntity)
	}
	var s webhook.Subscription
	var secret webhook.SigningSecret
	err := h.store.Write(r, func(sw store.Write) (err error) {
		s, secret, err = sw.Subscriptions().Create(p.program, r.user(), &fields, h.cfg.MaxSubscriptions, r.actor())
		return err
	})
	if p.errors = ui.FieldErrors(err, subscriptionFieldIDs()); p.errors != nil {
		return h.renderNew(r, p, http.StatusUnprocessableEntity)
	}
	if err != nil {
		return response{}, err
	}
	return response{secret: true, page: secretPage(h.frame(r, "Subscription created"), &newSecret{subscription: &s, secret: secret})}, nil
}

// urlCheck is the verdict on a URL.
type urlCheck struct {
	typed bool   // the URL is not empty
	fault string // what is wrong with the URL, "" if it is valid
}

// checkedURL checks a URL. An empty URL has no fault, because it is not typed yet.
func (h *subscriptionPages) checkedURL(r *request, typed string) urlCheck {
	c := urlCheck{typed: typed != ""}
	if v := h.rules(r).CheckURL(typed); c.typed && len(v) > 0 {
		c.fault = v[0].Detail
	}
	return c
}

// pingPreview is the first ping to a URL.
type pingPreview struct {
	request string // request line and the headers that HTTP itself adds
	header  [][2]string
	body    []byte
}

// previewPing builds the ping as the dispatcher would, with placeholder IDs.
func (h *subscriptionPages) previewPing(r *request, program, typed string, valid, authorized bool) *pingPreview {
	p := new(pingPreview)
	if webhook.CheckIdentifier("program", program) != nil {
		program = ""
	}
	host, path := "example.com", "/"
	if u, err := url.Parse(typed); err == nil && u.Host != "" && valid {
		host, path = u.Host, u.RequestURI()
	}
	id, subscription := webhook.NewID(), webhook.NewID()
	p.body = webhook.AppendBody(nil, id, subscription, cmp.Or(program, "PROGRAM"), [][]byte{webhook.PingEvent(webhook.NewID(), r.clock.Now)})
	head := webhook.RequestHead{
		DeliveryID: id, SubscriptionID: subscription, ProgramID: cmp.Or(program, "PROGRAM"), At: r.clock.Now,
		Signature: webhook.NewSigningSecret().Sign(id, r.clock.Now, p.body),
	}
	if authorized {
		head.Authorization = "(as you entered it)"
	}
	p.header = head.AppendHeader([][2]string{{"Host", host}, {"Content-Length", strconv.Itoa(len(p.body))}})
	p.request = "POST " + path + " HTTP/1.1"
	return p
}

// checkURL responds to the script with the validation of a URL and the first ping. It uses POST
// because a URL may contain a secret.
func (h *subscriptionPages) checkURL(r *request) (response, error) {
	p := h.readForm(r)
	v := h.checkedURL(r, p.url)
	return response{page: urlChecked(v, h.previewPing(r, p.program, p.url, v.fault == "", r.PostForm.Has("authorized")))}, nil
}

func (h *subscriptionPages) editForm(r *request, u *record.SubscriptionView) (response, error) {
	p := &subscriptionForm{editing: u, was: editionOf(&u.Subscription), url: u.URL, description: u.Description, events: u.Events,
		filters: u.Filters.Indented(), ordered: u.Ordered}
	if u.MaxInFlight > 0 {
		p.maxInFlight = strconv.Itoa(u.MaxInFlight)
	}
	p.maxPerSecond = perSecond(u.MaxPerSecond)
	if u.MaxEvents > 0 {
		p.maxEvents = strconv.Itoa(u.MaxEvents)
	}
	return h.renderEdit(r, p, http.StatusOK)
}

func (h *subscriptionPages) renderEdit(r *request, p *subscriptionForm, status int) (response, error) {
	if err := h.fillForm(r, p); err != nil {
		return response{}, err
	}
	p.curl = h.curl.Command("PUT", apiSubscriptionPath(p.editing.ID), `{"description": "…"}`)
	return response{page: editSubscriptionPage(h.frame(r, "Edit subscription"), p), status: status}, nil
}

// perSecond formats a limit of requests per second, "" for none.
func perSecond(limit float64) string {
	if limit == 0 {
		return ""
	}
	return strconv.FormatFloat(limit, 'f', -1, 64)
}

// editionOf fingerprints the fields of a subscription that the form can change, except the values
// of its headers, which stay secret. It excludes fields that the service changes itself, such as
// whether the subscription is failing.
func editionOf(s *webhook.Subscription) string {
	b, err := json.Marshal([]any{s.URL, slices.Sorted(slices.Values(s.Events)), s.Description, s.Ordered, s.MaxInFlight, s.MaxPerSecond,
		s.MaxEvents, s.HasAuthorizationHeader, s.HeaderNames, s.Filters})
	if err != nil {
		panic(err) // marshaling strings, numbers and booleans cannot fail
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// errStale rejects a form that was loaded before another change of the record.
var errStale = errors.New("web: the record was changed by another request")

func (h *subscriptionPages) update(r *request, u *record.SubscriptionView) (response, error) {
	p := h.readForm(r)
	p.editing = u
	switch r.PostForm.Get("step") {
	case "check":
		return h.renderEdit(r, p, http.StatusOK)
	case "filters":
		if err := h.lookAtFilters(r, p); err != nil {
			return response{}, err
		}
		return h.renderEdit(r, p, http.StatusOK)
	}
	fields := p.fields(h.rules(r))
	if p.errors != nil {
		return h.renderEdit(r, p, http.StatusUnprocessableEntity)
	}
	err := h.store.Write(r, func(sw store.Write) error {
		before, err := sw.Subscriptions().Get(u.ProgramID, u.ID)
		if err != nil {
			return err
		}
		if editionOf(&before) != p.was {
			return errStale
		}
		_, err = sw.Subscriptions().Update(u.ProgramID, u.ID, &fields, r.actor())
		return err
	})
	if errors.Is(err, errStale) {
		return h.renderStale(r, p)
	}
	if p.errors = ui.FieldErrors(err, subscriptionFieldIDs()); p.errors != nil {
		return h.renderEdit(r, p, http.StatusUnprocessableEntity)
	}
	if err != nil {
		return response{}, err
	}
	return done(subscriptionPath(u.ID), "Saved.")
}

// renderStale shows the form again with the visitor's input and the current values of the record.
// Submitting it again overwrites those.
func (h *subscriptionPages) renderStale(r *request, p *subscriptionForm) (response, error) {
	u, err := h.store.Subscriptions().View(context.WithoutCancel(r.Context()), p.editing.ID, 0)
	if err != nil {
		return response{}, asProblem(err)
	}
	p.editing, p.was = &u, editionOf(&u.Subscription)
	_, _, whole := webhook.Endpoint(u.URL)
	for _, d := range []struct {
		differs    bool
		name, text string
	}{
		{u.URL != p.url, "URL", whole},
		{u.Description != p.description, "Name", u.Description},
		{!sameNames(u.Events, p.events), "Events", strings.Join(u.Events, ", ")},
		{u.Filters.Indented() != strings.ReplaceAll(p.filters, "\r\n", "\n"), "Filters", u.Filters.Indented()},
		{u.Ordered != p.ordered, "Ordered", map[bool]string{true: "yes", false: "no"}[u.Ordered]},
		{strconv.Itoa(u.MaxInFlight) != cmp.Or(p.maxInFlight, "0"), "Deliveries in flight", orTheDefault(u.MaxInFlight)},
		{perSecond(u.MaxPerSecond) != p.maxPerSecond, "Requests per second", perSecond(u.MaxPerSecond)},
		{strconv.Itoa(u.MaxEvents) != cmp.Or(p.maxEvents, "0"), "Events per delivery", orTheDefault(u.MaxEvents)},
	} {
		if d.differs {
			p.changed = append(p.changed, d.name+": "+cmp.Or(d.text, "empty"))
		}
	}
	if p.changed == nil {
		p.changed = []string{"Only the headers, which were set or removed"}
	}
	return h.renderEdit(r, p, http.StatusConflict)
}

// orTheDefault formats a limit of which 0 is the operator's default.
func orTheDefault(limit int) string {
	if limit == 0 {
		return "the default"
	}
	return strconv.Itoa(limit)
}

// sameNames reports whether two lists contain the same names in any order.
func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
