package webhook

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// PortalRole is what a partner may do in a program's portal.
type PortalRole string

// A partner with the role read sees the program's records. With write, the partner also
// manages subscriptions, sends pings and tests, and resends deliveries.
const (
	PortalRead  PortalRole = "read"
	PortalWrite PortalRole = "write"
)

// PortalRoles returns every role of the portal, the least privileged first.
func PortalRoles() []PortalRole { return []PortalRole{PortalRead, PortalWrite} }

// Allows reports whether role r includes need. Unknown roles include nothing, and no role
// includes them.
func (r PortalRole) Allows(need PortalRole) bool {
	has, needs := slices.Index(PortalRoles(), r), slices.Index(PortalRoles(), need)
	return needs >= 0 && has >= needs
}

// Bounds of the links and sessions of the portal.
const (
	DefaultPortalLinkLife = 24 * time.Hour
	MinPortalLinkLife     = time.Minute
	MaxPortalLinkLife     = 7 * 24 * time.Hour
	PortalSessionLife     = 8 * time.Hour
	MaxPortalLinks        = 1000 // open links per program; another one ends the oldest
	MaxPortalSessions     = 100  // per program; another one ends the oldest
	MaxPortalOrigins      = 10   // per program
)

// PortalLink opens a program's portal once. The link contains a code, of which the service
// stores the SHA-256.
type PortalLink struct {
	ID        string     `json:"id"`
	ProgramID string     `json:"program_id"`
	Role      PortalRole `json:"role"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at"`
}

// PortalLinkPath returns the path of a link with a code.
func PortalLinkPath(code string) string { return "/portal/link/" + code }

// FramedSession begins the secrets of the sessions that were opened in an iframe, which have a cookie
// of their own.
const FramedSession = "frame."

// PortalSession is a partner's session in the portal of one program.
type PortalSession struct {
	ID        string
	LinkID    string // the link that opened it
	ProgramID string
	Role      PortalRole
	Address   string
	Agent     string
	CreatedAt time.Time
	ExpiresAt time.Time
}

// NewPortalLink is the request for a link. A zero ExpiresAt is [DefaultPortalLinkLife] from now.
type NewPortalLink struct {
	ProgramID string
	Role      PortalRole
	ExpiresAt time.Time
}

// ParsePortalLink parses the body of a request for a portal link of a program.
func ParsePortalLink(raw []byte, programID string, now time.Time) (NewPortalLink, *Error) {
	n := NewPortalLink{ProgramID: programID}
	b, err := parseBody(raw, "")
	if err != nil {
		return n, err
	}
	for name, value := range b.fields() {
		switch name {
		case "role":
			b.set((*string)(&n.Role), name, value)
		case "expires_at":
			n.ExpiresAt = b.expiry(value, "24 hours from now")
		default:
			b.unknown(name, "a portal link", "role, expires_at")
		}
	}
	return n, invalid(merge(b.faults, n.Check(now)))
}

// Check returns what is wrong with the request.
func (n *NewPortalLink) Check(now time.Time) (v []Validation) {
	v = CheckIdentifier("program", n.ProgramID)
	switch {
	case n.Role == "":
		v = append(v, Validation{InvalidRequired, "is required: read or write", "role"})
	case !slices.Contains(PortalRoles(), n.Role):
		v = append(v, Validation{InvalidValue, "must be read or write", "role"})
	}
	// A second of tolerance, for clocks that differ a little.
	least, most := now.Add(MinPortalLinkLife-time.Second), now.Add(MaxPortalLinkLife+time.Second)
	if at := n.ExpiresAt; !at.IsZero() && (at.Before(least) || at.After(most)) {
		v = append(v, Validation{InvalidValue, "must be 1 minute to 7 days from now", "expires_at"})
	}
	return v
}

// portalOrigin matches only characters that stand for themselves in a content security policy.
var portalOrigin = regexp.MustCompile(`^https://([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(:[1-9][0-9]{0,4})?$`)

// maxOrigin bounds an origin, in bytes: a host name of 253 with a scheme and a port.
const maxOrigin = 267

// CheckPortalOrigins returns what is wrong with the origins that may embed the portal.
func CheckPortalOrigins(parameter string, origins []string) (v []Validation) {
	if len(origins) > MaxPortalOrigins {
		return []Validation{{InvalidTooMany, fmt.Sprintf("must have at most %d elements", MaxPortalOrigins), parameter}}
	}
	for i, o := range origins {
		at := element(parameter, i)
		switch {
		case len(o) > maxOrigin || !portalOrigin.MatchString(o) || !validPort(o):
			v = append(v, Validation{InvalidFormat, "must be an origin such as https://app.example.com or https://app.example.com:8443, " +
				"in lower case and without a path", at})
		case slices.Contains(origins[:i], o):
			v = append(v, Validation{InvalidDuplicate, "occurs twice", at})
		}
	}
	return v
}

// validPort reports whether the port of an origin, if it has one, is at most 65535 and not the
// default one, which browsers leave out.
func validPort(origin string) bool {
	_, port, found := strings.Cut(strings.TrimPrefix(origin, "https://"), ":")
	n, err := strconv.Atoi(port)
	return !found || err == nil && n <= 65535 && n != 443
}
