package webhook

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"net/netip"
	"slices"
)

// Limits of a subscription.
const (
	MaxURLBytes                 = 2048
	MaxAuthorizationHeaderBytes = 4096
	MaxSubscriptionEvents       = 64
	MaxDescriptionBytes         = 1024
	MaxInFlightLimit            = 256 // largest max_in_flight
	MinPerSecond                = 0.1
	MaxPerSecondLimit           = 1000
	MaxEventsLimit              = 1000 // largest max_events, and largest batch size of the operator
)

// Subscription is a partner's URL and the events that it receives (spec, section
// 2.1).
type Subscription struct {
	ID                     string
	ProgramID              string
	URL                    string
	Active                 bool
	Description            string
	Events                 []string // distinct names in the order given
	Filters                Filters  // of some of Events
	Ordered                bool
	MaxInFlight            int     // 0 for the operator's default
	MaxPerSecond           float64 // requests, excluding pings; 0 for no limit
	MaxEvents              int     // in one delivery; 0 for the operator's batch size
	HasAuthorizationHeader bool
	HeaderNames            []string // of its static headers, sorted
	Status                 Health
	FailingReason          FailingReason // this and the next two only if Status is failing
	FailingSince           time.Time
	NextProbeAt            time.Time
	DisabledReason         string // only if Status is disabled
	Revision               int64  // rises with every change, including fields that are not shown
	CreatedAt              time.Time
	UpdatedAt              time.Time
	DeletedAt              time.Time // zero while it exists
}

// SubscriptionFields are the fields of a request that creates or updates a
// subscription. nil means that the field was not sent.
type SubscriptionFields struct {
	ID                  *string // only if an update sends back a whole record
	URL                 *string
	Events              *[]string
	Filters             Filters   // of some of Events; set together with it
	AuthorizationHeader **string  // an inner nil removes it
	Headers             *[]Header // sorted by name; none removes all
	Description         *string
	Active              *bool
	Ordered             *bool
	MaxInFlight         *int          // 0 restores the operator's default
	MaxPerSecond        *float64      // 0 removes the limit
	MaxEvents           *int          // 0 restores the operator's batch size
	SigningSecret       SigningSecret // only when creating; nil generates one
}

// SubscriptionChanges returns the action of an update in the audit log, and what it changed, without
// secrets. f are the fields of the update.
func SubscriptionChanges(before, after *Subscription, f *SubscriptionFields) (action Action, detail string) {
	var changes []string
	add := func(changed bool, text string) {
		if changed {
			changes = append(changes, text)
		}
	}
	_, _, was := Endpoint(before.URL)
	add(before.URL != after.URL, "the URL, before "+was)
	add(!slices.Equal(before.Events, after.Events), "the events to "+strings.Join(after.Events, ", "))
	for _, name := range after.Events {
		is := after.Filters[name]
		add(is != nil && !SameFilter(before.Filters[name], is), "the filter of "+name)
		add(is == nil && before.Filters[name] != nil, "the filter of "+name+" removed")
	}
	add(before.Description != after.Description, "the description")
	add(before.Ordered != after.Ordered, fmt.Sprintf("ordered to %t", after.Ordered))
	for _, limit := range [...]struct {
		name, none string
		was, is    float64
	}{
		{"max_in_flight", "the default", float64(before.MaxInFlight), float64(after.MaxInFlight)},
		{"max_per_second", "none", before.MaxPerSecond, after.MaxPerSecond},
		{"max_events", "the default", float64(before.MaxEvents), float64(after.MaxEvents)},
	} {
		text := limit.none
		if limit.is != 0 {
			text = strconv.FormatFloat(limit.is, 'f', -1, 64)
		}
		add(limit.was != limit.is, limit.name+" to "+text)
	}
	if f.AuthorizationHeader != nil {
		add(*f.AuthorizationHeader == nil, "the authorization header removed")
		add(*f.AuthorizationHeader != nil, "the authorization header replaced")
	}
	if f.Headers != nil {
		add(len(*f.Headers) == 0, "the headers removed")
		add(len(*f.Headers) > 0, "the headers to "+strings.Join(after.HeaderNames, ", "))
	}
	switch {
	case before.Active == after.Active:
	case changes != nil:
		add(true, fmt.Sprintf("active to %t", after.Active))
	case after.Active:
		return ActionSubscriptionResume, ""
	default:
		return ActionSubscriptionPause, ""
	}
	return ActionSubscriptionUpdate, "changed " + strings.Join(changes, "; ")
}

// Endpoint splits the URL of a subscription into host and path for display; whole is for a title.
// The query, which may hold a secret, is replaced by an ellipsis.
func Endpoint(raw string) (host, path, whole string) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return raw, "", raw
	}
	if path = u.EscapedPath(); path == "/" {
		path = ""
	}
	whole = u.Scheme + "://" + u.Host + u.EscapedPath()
	if u.RawQuery != "" {
		whole += "?…"
	}
	return u.Host, path, whole
}

// SubscriptionRules are the operator's rules for subscriptions.
type SubscriptionRules struct {
	AllowHTTP    bool
	Destinations Destinations
	Catalog      *Catalog
	// Kept are the events of a subscription that is updated. It may keep event types that are no
	// longer in the catalog.
	Kept []string
	// KeptFilters are the filters of that subscription, which it may keep too.
	KeptFilters Filters

	// Own lists the addresses that the service listens on. A URL with such an address is
	// refused. A host name that resolves to one is blocked when it is dialed.
	Own []netip.AddrPort

	// ShowFlags makes the errors of a URL name the flags of serve that would permit it: for
	// admins, and for everyone on an installation that only its own machine can reach.
	ShowFlags bool
}

// Parse parses the body of a request that creates or updates a subscription, and
// checks it against the rules. It reports all errors at once; the fields are then
// unusable.
func (r *SubscriptionRules) Parse(raw []byte, creating bool) (SubscriptionFields, *Error) {
	b, err := parseBody(raw, "")
	if err != nil {
		return SubscriptionFields{}, err
	}
	p := subscriptionParser{body: b, creating: creating}
	for name, value := range b.fields() {
		p.field(name, value)
	}
	return p.fields, invalid(merge(p.faults, r.Check(&p.fields, creating)))
}

// subscriptionParser collects the fields of a request and what is wrong with them.
type subscriptionParser struct {
	*body
	creating bool
	fields   SubscriptionFields
}

// field parses the value of a field.
func (p *subscriptionParser) field(name string, value int32) {
	f := &p.fields
	switch name {
	case "url":
		f.URL = p.string(name, value)
	case "events":
		f.Events, f.Filters = p.events(value)
	case "authorization_header":
		switch p.nodes[value].kind {
		case jsontext.KindNull:
			f.AuthorizationHeader = new(*string)
		case jsontext.KindString:
			header := p.string(name, value)
			f.AuthorizationHeader = &header
		default:
			p.fail(InvalidType, name, "must be a string, or null for none")
		}
	case "headers":
		f.Headers = p.headers(value)
	case "description":
		f.Description = p.string(name, value)
	case "active":
		f.Active = p.boolean(name, value)
	case "ordered":
		f.Ordered = p.boolean(name, value)
	case "max_in_flight":
		f.MaxInFlight = p.integer(name, value)
	case "max_per_second":
		if f.MaxPerSecond = parseMaxPerSecond(&p.document, value); f.MaxPerSecond == nil {
			p.fail(InvalidType, name, "must be a number, or null for no limit")
		}
	case "max_events":
		f.MaxEvents = p.maxEvents(name, value)
	case "signing_secret":
		faults := len(p.faults)
		f.SigningSecret = p.signingSecret(name, value)
		if !p.creating && p.isString(value) && len(p.faults) > faults {
			p.faults[faults] = SecretNotRotated()
		}
	default:
		if p.creating || !slices.Contains(readOnlyFields, name) {
			p.unknown(name, "a subscription",
				"url, events, authorization_header, headers, description, active, ordered, max_in_flight, max_per_second, max_events, signing_secret")
		} else if name == "id" {
			f.ID = p.string(name, value)
		}
	}
}

// integer returns an integer. A number beyond 32 bits becomes the nearest one
// within, which exceeds the limit that Check reports.
func (p *subscriptionParser) integer(name string, value int32) *int {
	n, fault := p.document.integer(value)
	if fault != nil {
		fault.Parameter = name
		p.faults = append(p.faults, *fault)
		return nil
	}
	m := int(max(min(n, math.MaxInt32), math.MinInt32))
	return &m
}

// maxEvents returns an integer, 0 for null.
func (p *subscriptionParser) maxEvents(name string, value int32) *int {
	switch p.nodes[value].kind {
	case jsontext.KindNull:
		return new(int)
	case jsontext.KindNumber:
		return p.integer(name, value)
	}
	p.fail(InvalidType, name, "must be an integer, or null for the default")
	return nil
}

// signingSecret returns a partner's own signing secret.
func (b *body) signingSecret(name string, value int32) (own SigningSecret) {
	secret := b.string(name, value)
	if secret == nil {
		return nil
	}
	own, err := ParseSigningSecret(*secret)
	if err != nil {
		b.fail(InvalidFormat, name, err.Error())
	}
	return own
}

// SecretNotRotated is the error for an update whose signing secret differs from the current one.
func SecretNotRotated() Validation {
	const detail = "cannot be changed with the record; see rotate_secret, which accepts a secret of your own"
	return Validation{InvalidValue, detail, "signing_secret"}
}

// Rotation is how a signing secret is replaced.
type Rotation struct {
	Secret SigningSecret // the partner's own; nil generates one
	EndOld bool          // only the new secret signs from now on
}

// ParseRotation parses the body of a request that replaces a signing secret.
func ParseRotation(raw []byte) (r Rotation, invalidBody *Error) {
	b, err := parseBody(raw, `, such as {"old_secret_ends": "now"}`)
	if err != nil {
		return r, err
	}
	for name, value := range b.fields() {
		switch name {
		case "signing_secret":
			r.Secret = b.signingSecret(name, value)
		case "old_secret_ends":
			if r.EndOld = b.isString(value) && string(b.text(value)) == "now"; !r.EndOld {
				b.fail(InvalidValue, name, `must be "now"; without it, the old secret signs for 24 hours`)
			}
		default:
			b.unknown(name, "a rotation", "signing_secret, old_secret_ends")
		}
	}
	return r, invalid(b.faults)
}

// readOnlyFields are the fields of a record that an update may send back unchanged.
var readOnlyFields = []string{
	"id", "has_authorization_header", "header_names", "status", "failing_reason", "failing_since", "next_probe_at", "disabled_reason",
	"created_at", "updated_at", "old_secret_expires_at",
}

// parseMaxPerSecond parses a limit: null is 0, and an invalid limit is negative. It
// returns nil if the value is neither a number nor null.
func parseMaxPerSecond(d *document, value int32) *float64 {
	n := 0.0
	switch d.nodes[value].kind {
	case jsontext.KindNull:
	case jsontext.KindNumber:
		var err error
		if n, err = strconv.ParseFloat(string(d.raw(value)), 64); err != nil || n == 0 {
			n = -1
		}
	default:
		return nil
	}
	return &n
}

// events parses the events of a subscription, with their filters. The name of a malformed
// element is "".
func (b *body) events(list int32) (*[]string, Filters) {
	if b.nodes[list].kind != jsontext.KindBeginArray {
		b.fail(InvalidType, "events", `must be an array of objects such as {"name": "content_published"}`)
		return nil, nil
	}
	names, filters := []string{}, Filters(nil)
	for i, event := range b.elements(list) {
		at, eventName := element("events", i), ""
		if i == maxParsedEvents {
			break // Check reports too many
		}
		if b.nodes[event].kind == jsontext.KindBeginObject {
			var filter *EventFilter
			if eventName, filter = b.event(event, at); filter != nil {
				filters = filters.with(eventName, filter)
			}
		} else {
			b.fail(InvalidType, at, `must be an object such as {"name": "content_published"}`)
		}
		names = append(names, eventName)
	}
	return &names, filters
}

// event parses one event of a subscription, {"name": …, "filter": …}. The name is "" if it is
// malformed.
func (b *body) event(event int32, at string) (eventName string, filter *EventFilter) {
	named := false
	for name, value := range b.members(event) {
		parameter, code, detail := join(at, string(b.text(name))), "", ""
		switch string(b.text(name)) {
		case "name":
			named = true
			b.set(&eventName, parameter, value)
		case "version":
			code, detail = readVersion(&b.document, value)
		case "filter":
			if b.nodes[value].kind != jsontext.KindNull {
				filter = b.filter(value, parameter)
			}
		default:
			code, detail = InvalidUnknownField, "is not a field of an event of a subscription; it has: name, version, filter"
		}
		if code != "" {
			b.fail(code, parameter, detail)
		}
	}
	if !named {
		b.fail(InvalidRequired, join(at, "name"), "is required")
	}
	return eventName, filter
}

// maxParsedEvents is the maximum number of parsed events: enough to see that there are too
// many.
const maxParsedEvents = MaxSubscriptionEvents + 1

// Check returns every rule that the fields break. creating means that required
// fields must be set.
func (r *SubscriptionRules) Check(f *SubscriptionFields, creating bool) []Validation {
	var v []Validation
	add := func(code, parameter, detail string) { v = append(v, Validation{code, detail, parameter}) }

	switch {
	case f.URL != nil:
		v = append(v, r.CheckURL(*f.URL)...)
	case creating:
		add(InvalidRequired, "url", "is required")
	}
	switch {
	case f.Events != nil:
		v = append(v, r.checkEvents(*f.Events)...)
		v = append(v, r.CheckFilters(f)...)
	case creating:
		add(InvalidRequired, "events", "is required")
	}
	if f.AuthorizationHeader != nil && *f.AuthorizationHeader != nil {
		v = append(v, CheckAuthorizationHeader(**f.AuthorizationHeader)...)
	}
	if f.Headers != nil {
		v = append(v, CheckHeaders(*f.Headers)...)
	}
	if f.Description != nil && len(*f.Description) > MaxDescriptionBytes {
		add(InvalidTooLong, "description", fmt.Sprintf("must be at most %d bytes", MaxDescriptionBytes))
	}
	if f.MaxInFlight != nil && (*f.MaxInFlight < 0 || *f.MaxInFlight > MaxInFlightLimit) {
		add(InvalidValue, "max_in_flight", fmt.Sprintf("must be 1 to %d, or 0 for the default", MaxInFlightLimit))
	}
	if r := f.MaxPerSecond; r != nil && *r != 0 && !(*r >= MinPerSecond && *r <= MaxPerSecondLimit) {
		add(InvalidValue, "max_per_second", fmt.Sprintf("must be %g to %d, or null for no limit", MinPerSecond, MaxPerSecondLimit))
	}
	if f.MaxEvents != nil && (*f.MaxEvents < 0 || *f.MaxEvents > MaxEventsLimit) {
		add(InvalidValue, "max_events", fmt.Sprintf("must be 1 to %d, or null for the default", MaxEventsLimit))
	}
	return v
}

// CheckURL returns what is wrong with a URL as the target of deliveries.
func (r *SubscriptionRules) CheckURL(s string) []Validation {
	fail := func(code, detail string) []Validation { return []Validation{{code, detail, "url"}} }
	if len(s) > MaxURLBytes {
		return fail(InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxURLBytes))
	}
	schemes := "https://"
	if r.AllowHTTP {
		schemes = "https:// or http://"
	}
	u, err := url.Parse(s)
	switch {
	case s == "":
		return fail(InvalidRequired, "must not be empty")
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '\\' }):
		return fail(InvalidFormat, "must be ASCII without spaces, control characters and backslashes; "+
			"percent-encode other characters, and write the host in punycode")
	case err != nil:
		return fail(InvalidFormat, "must be an absolute URL that starts with "+schemes+
			", with two hexadecimal digits after each percent sign")
	case u.Scheme != "https" && !(u.Scheme == "http" && r.AllowHTTP):
		return fail(InvalidFormat, "must begin with "+schemes+r.flagsFor(u))
	case u.Opaque != "" || u.Hostname() == "":
		return fail(InvalidFormat, "must have a host after "+schemes)
	case u.User != nil:
		return fail(InvalidFormat, "must not contain a user name or password; use authorization_header")
	case strings.Contains(s, "#"):
		return fail(InvalidFormat, "must not have a fragment (#)")
	}
	if !isHost(u.Hostname()) {
		return fail(InvalidFormat, fmt.Sprintf("must name a host of at most %d bytes, with 1 to %d between two dots",
			maxHostBytes, maxLabelBytes))
	}
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fail(InvalidFormat, "must have a port from 1 to 65535, or none")
		}
	}
	if !r.Destinations.AllowsHost(u.Hostname()) {
		return fail(InvalidBlockedDestination, "leads to an address that deliveries may not be sent to; use one on the public internet"+
			r.flagsFor(u))
	}
	if r.isOwn(u) {
		return fail(InvalidBlockedDestination, "must not target this service itself")
	}
	return nil
}

// flagsFor returns the end of an error of a URL: the flags of serve that would permit it, if the
// reader may know them.
func (r *SubscriptionRules) flagsFor(u *url.URL) string {
	if !r.ShowFlags {
		return ""
	}
	var flags []string
	if u.Scheme == "http" && !r.AllowHTTP {
		flags = append(flags, "--allow-http")
	}
	if host := u.Hostname(); !r.Destinations.AllowsHost(host) {
		addr, err := netip.ParseAddr(host)
		switch {
		case Loopback(host) != nil || addr.Is4() && addr.IsLoopback():
			flags = append(flags, "--allow-destination 127.0.0.0/8")
		case err == nil:
			flags = append(flags, "--allow-destination "+host)
		}
	}
	if flags == nil {
		return ""
	}
	return ", or start the service with " + strings.Join(flags, " ")
}

// Limits of a host name (RFC 1035, section 2.3.4), without a trailing dot.
const (
	maxHostBytes  = 253
	maxLabelBytes = 63
)

// isHost reports whether a host is an IPv6 address or a valid DNS name.
func isHost(host string) bool {
	if strings.Contains(host, ":") {
		return true // an address, which Destinations checks
	}
	host = strings.TrimSuffix(host, ".")
	if len(host) > maxHostBytes {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > maxLabelBytes {
			return false
		}
	}
	return true
}

// isOwn reports whether a URL names an address that the service listens on.
func (r *SubscriptionRules) isOwn(u *url.URL) bool {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	named := Loopback(u.Hostname())
	if a, err := netip.ParseAddr(u.Hostname()); err == nil {
		named = []netip.Addr{a}
	}
	return slices.ContainsFunc(r.Own, func(own netip.AddrPort) bool {
		return strconv.Itoa(int(own.Port())) == port && slices.ContainsFunc(named, func(a netip.Addr) bool { return Reaches(a, own.Addr()) })
	})
}

func (r *SubscriptionRules) checkEvents(names []string) []Validation {
	if len(names) == 0 {
		return []Validation{{InvalidRequired, "must name at least one event", "events"}}
	}
	if len(names) > MaxSubscriptionEvents {
		return []Validation{{InvalidTooMany, fmt.Sprintf("must name at most %d events", MaxSubscriptionEvents), "events"}}
	}
	var v []Validation
	for i, name := range names {
		parameter := fmt.Sprintf("events[%d].name", i)
		switch {
		case name == "":
			v = append(v, Validation{InvalidRequired, "must not be empty", parameter})
		case !r.Catalog.Has(name) && !slices.Contains(r.Kept, name):
			v = append(v, Validation{InvalidUnknownEvent, unknownEvent, parameter})
		case slices.Contains(names[:i], name):
			v = append(v, Validation{InvalidDuplicate, "is named twice", parameter})
		}
	}
	return v
}

// CheckFilters checks filters against the schemas of their event types. A filter that the subscription
// already has may stay, whatever happened to its event type.
func (r *SubscriptionRules) CheckFilters(f *SubscriptionFields) (v []Validation) {
	for i, name := range *f.Events {
		filter := f.Filters[name]
		if filter == nil || SameFilter(filter, r.KeptFilters[name]) {
			continue
		}
		at := element("events", i)
		switch t, ok := r.Catalog.Type(name); {
		case name == EventPing:
			v = append(v, Validation{InvalidValue, "must not be set for ping, which is sent on request", join(at, "filter")})
		case ok:
			v = append(v, t.checkFilter(filter)...)
		case slices.Contains(r.Kept, name):
			v = append(v, Validation{InvalidValue, "cannot change, because the event type does not exist any more", join(at, "filter")})
		}
	}
	return v
}

// CheckAuthorizationHeader rejects values that HTTP cannot carry unchanged: the
// value is sent byte for byte (spec, section 5).
func CheckAuthorizationHeader(s string) []Validation {
	fail := func(code, detail string) []Validation { return []Validation{{code, detail, "authorization_header"}} }
	switch {
	case s == "":
		return fail(InvalidValue, "must not be empty; leave it out, or send null to remove it")
	case len(s) > MaxAuthorizationHeaderBytes:
		return fail(InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxAuthorizationHeaderBytes))
	}
	if code, detail := checkHeaderValue(s); code != "" {
		return fail(code, detail)
	}
	return nil
}
