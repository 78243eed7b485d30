package webhook

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The limits of a subscription.
const (
	MaxURLBytes                 = 2048
	MaxAuthorizationHeaderBytes = 4096
	MaxSubscriptionEvents       = 64
	MaxDescriptionBytes         = 1024
	MaxInFlightLimit            = 256 // the most a subscription can ask for itself
)

// Health says how a subscription's server has been doing.
type Health string

const (
	HealthHealthy  Health = "healthy"
	HealthFailing  Health = "failing"
	HealthDisabled Health = "disabled"
)

// Subscription is a partner's URL and what it wants to hear (spec, section 2.1).
type Subscription struct {
	ID                     string
	ProgramID              string
	URL                    string
	Active                 bool
	Description            string
	Events                 []string // names, distinct, in the order given
	Ordered                bool
	MaxInFlight            int // 0: the operator's default
	HasAuthorizationHeader bool
	CreatedAt              time.Time
	UpdatedAt              time.Time
	DeletedAt              time.Time // zero while it exists
}

// SubscriptionFields are the fields of a request that creates or updates a
// subscription. Nil is a field that was not sent.
type SubscriptionFields struct {
	URL                 *string
	Events              *[]string
	AuthorizationHeader **string // a nil inside removes it
	Description         *string
	Active              *bool
	Ordered             *bool
	MaxInFlight         *int // 0 goes back to the operator's default
}

// SubscriptionRules are the operator's rules for subscriptions.
type SubscriptionRules struct {
	AllowHTTP    bool
	Destinations Destinations
	Catalog      *Catalog
}

// Check returns every rule that the fields break. With creating, the required
// fields must be there.
func (r *SubscriptionRules) Check(f *SubscriptionFields, creating bool) []Validation {
	var v []Validation
	add := func(code, parameter, detail string) { v = append(v, Validation{code, detail, parameter}) }

	switch {
	case f.URL != nil:
		v = append(v, r.checkURL(*f.URL)...)
	case creating:
		add(InvalidRequired, "url", "is required")
	}
	switch {
	case f.Events != nil:
		v = append(v, r.checkEvents(*f.Events)...)
	case creating:
		add(InvalidRequired, "events", "is required")
	}
	if f.AuthorizationHeader != nil && *f.AuthorizationHeader != nil {
		v = append(v, checkAuthorizationHeader(**f.AuthorizationHeader)...)
	}
	if f.Description != nil && len(*f.Description) > MaxDescriptionBytes {
		add(InvalidTooLong, "description", fmt.Sprintf("must be at most %d bytes", MaxDescriptionBytes))
	}
	if f.MaxInFlight != nil && (*f.MaxInFlight < 0 || *f.MaxInFlight > MaxInFlightLimit) {
		add(InvalidValue, "max_in_flight", fmt.Sprintf("must be 1 to %d, or 0 for the default", MaxInFlightLimit))
	}
	return v
}

func (r *SubscriptionRules) checkURL(s string) []Validation {
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
	case err != nil || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || c == '\\' }):
		return fail(InvalidFormat, "must be an absolute URL that begins with "+schemes)
	case u.Scheme != "https" && !(u.Scheme == "http" && r.AllowHTTP):
		return fail(InvalidFormat, "must begin with "+schemes)
	case u.Opaque != "" || u.Hostname() == "":
		return fail(InvalidFormat, "must name a host after "+schemes)
	case u.User != nil:
		return fail(InvalidFormat, "must not hold a user name or password; use authorization_header")
	case strings.Contains(s, "#"):
		return fail(InvalidFormat, "must not have a fragment (#)")
	}
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return fail(InvalidFormat, "must have a port from 1 to 65535, or none")
		}
	}
	if !r.Destinations.AllowsHost(u.Hostname()) {
		return fail(InvalidBlockedDestination, "leads to an address that deliveries may not be sent to")
	}
	return nil
}

func (r *SubscriptionRules) checkEvents(names []string) []Validation {
	if len(names) == 0 {
		return []Validation{{InvalidRequired, "must name at least one event", "events"}}
	}
	if len(names) > MaxSubscriptionEvents {
		return []Validation{{InvalidTooMany, fmt.Sprintf("must name at most %d events", MaxSubscriptionEvents), "events"}}
	}
	var v []Validation
	seen := make(map[string]bool, len(names))
	for i, name := range names {
		parameter := fmt.Sprintf("events[%d].name", i)
		switch {
		case !r.Catalog.Has(name):
			v = append(v, Validation{InvalidUnknownEvent, "is not the name of an event type; GET /v2/event_types lists them", parameter})
		case seen[name]:
			v = append(v, Validation{InvalidDuplicate, "is named twice", parameter})
		}
		seen[name] = true
	}
	return v
}

// checkAuthorizationHeader refuses what HTTP could not carry unchanged: the
// value is sent byte for byte (spec, section 5).
func checkAuthorizationHeader(s string) []Validation {
	fail := func(code, detail string) []Validation { return []Validation{{code, detail, "authorization_header"}} }
	switch {
	case s == "":
		return fail(InvalidValue, "must not be empty; leave it out, or send null to remove it")
	case len(s) > MaxAuthorizationHeaderBytes:
		return fail(InvalidTooLong, fmt.Sprintf("must be at most %d bytes", MaxAuthorizationHeaderBytes))
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		return fail(InvalidFormat, "must be UTF-8 without control characters")
	case strings.Trim(s, " ") != s:
		return fail(InvalidFormat, "must not begin or end with a blank")
	}
	return nil
}
