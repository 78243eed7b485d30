package webhook

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
)

// Program is a tenant, and the scope of every request. Nothing in one program is
// visible to another.
type Program struct {
	ID     string // the platform's identifier, 1 to 64 of A-Z a-z 0-9 . _ -
	Name   string
	Limits ProgramLimits
	// PortalOrigins are the origins on which the portal may be embedded in an iframe.
	PortalOrigins []string
	CreatedAt     time.Time
	UpdatedAt     time.Time // last change of the fields above
	// ErasingSince is when its erasure began, zero unless it is being erased. Then it cannot be
	// used.
	ErasingSince time.Time
	// ImportingSince is when its import began, zero unless it is being imported. Only admins see it
	// then.
	ImportingSince time.Time
	// Move is set while the program cannot be used here because of a move.
	Move *ProgramMove
}

// ProgramLimits are the limits of a program. Nil stands for the installation's default.
type ProgramLimits struct {
	MaxSubscriptions *int `json:"max_subscriptions"` // 0 is no limit
	RateLimit        *int `json:"rate_limit"`        // requests in any 60 seconds; 0 is no limit
	MaxInFlight      *int `json:"max_in_flight"`     // deliveries in flight, excluding pings; nil is no limit of its own
}

// Bounds of a program's fields.
const (
	MaxProgramName         = 200 // characters
	MaxProgramLimit        = 1_000_000
	MaxProgramInFlight     = 100_000
	programFieldNames      = "name, limits, portal_origins"
	programLimitFieldNames = "max_subscriptions, rate_limit, max_in_flight"
)

// ProgramFields are the fields of a request that creates or changes a program. Nil fields
// are not changed.
type ProgramFields struct {
	ID               *string // as sent back; only compared with the program's
	Name             *string
	MaxSubscriptions **int // the inner nil is the default
	RateLimit        **int
	MaxInFlight      **int
	PortalOrigins    *[]string
}

// Apply sets the fields in a program, and reports whether that changed it.
func (f *ProgramFields) Apply(p *Program) (changed bool) {
	if f.Name != nil && *f.Name != p.Name {
		p.Name, changed = *f.Name, true
	}
	if f.PortalOrigins != nil && !slices.Equal(*f.PortalOrigins, p.PortalOrigins) {
		p.PortalOrigins, changed = *f.PortalOrigins, true
	}
	for _, l := range [...]struct {
		field **int
		limit **int
	}{
		{f.MaxSubscriptions, &p.Limits.MaxSubscriptions}, {f.RateLimit, &p.Limits.RateLimit}, {f.MaxInFlight, &p.Limits.MaxInFlight},
	} {
		if l.field == nil {
			continue
		}
		if old := *l.limit; (old == nil) != (*l.field == nil) || old != nil && *old != **l.field {
			*l.limit, changed = *l.field, true
		}
	}
	return changed
}

// ParseProgram parses the body of a request that creates or changes the program with an ID.
// Read-only fields are ignored.
func ParseProgram(raw []byte, id string) (ProgramFields, *Error) {
	b, err := parseBody(raw, "")
	if err != nil {
		return ProgramFields{}, err
	}
	p := programParser{body: b}
	for name, value := range b.fields() {
		p.field(name, value)
	}
	if p.fields.ID != nil && *p.fields.ID != id {
		p.fail(InvalidValue, "id", "must be the ID in the URL, or be left out")
	}
	return p.fields, invalid(p.faults)
}

// readOnlyProgramFields are the fields of a record that a request may send back unchanged.
var readOnlyProgramFields = []string{"created_at", "updated_at", "statistics", "status", "erasure"}

// programParser collects the fields of a request and what is wrong with them.
type programParser struct {
	*body
	fields ProgramFields
}

// field parses the value of a field.
func (p *programParser) field(name string, value int32) {
	switch {
	case name == "id" || name == "name":
		switch text := p.string(name, value); {
		case name == "id":
			p.fields.ID = text
		case text == nil:
		case utf8.RuneCountInString(*text) > MaxProgramName:
			p.fail(InvalidTooLong, name, fmt.Sprintf("must be at most %d characters", MaxProgramName))
		case strings.ContainsFunc(*text, unicode.IsControl):
			p.fail(InvalidFormat, name, "must not contain control characters")
		default:
			p.fields.Name = text
		}
	case name == "limits":
		if p.nodes[value].kind != jsontext.KindBeginObject {
			p.fail(InvalidType, name, "must be an object; it has: "+programLimitFieldNames)
		}
		for member, limit := range p.members(value) {
			p.limit(string(p.text(member)), limit)
		}
	case name == "portal_origins":
		p.portalOrigins(name, value)
	case !slices.Contains(readOnlyProgramFields, name):
		p.unknown(name, "a program", programFieldNames)
	}
}

// portalOrigins parses the origins that may embed the portal.
func (p *programParser) portalOrigins(name string, list int32) {
	if p.nodes[list].kind != jsontext.KindBeginArray {
		p.fail(InvalidType, name, `must be an array of origins such as "https://app.example.com"`)
		return
	}
	origins := []string{}
	for i, value := range p.elements(list) {
		if i > MaxPortalOrigins {
			break // which is one too many already
		}
		origin := p.string(element(name, i), value)
		if origin == nil {
			return
		}
		origins = append(origins, *origin)
	}
	p.fields.PortalOrigins = &origins
	p.faults = append(p.faults, CheckPortalOrigins(name, origins)...)
}

// limit parses a field of limits.
func (p *programParser) limit(name string, value int32) {
	at, least, most, meaning := join("limits", name), 0, MaxProgramLimit, "0 for no limit, or null for the default"
	var field ***int
	switch name {
	case "max_subscriptions":
		field = &p.fields.MaxSubscriptions
	case "rate_limit":
		field = &p.fields.RateLimit
	case "max_in_flight":
		field, least, most, meaning = &p.fields.MaxInFlight, 1, MaxProgramInFlight, "or null for no limit"
	default:
		p.fail(InvalidUnknownField, at, "is not a limit of a program; it has: "+programLimitFieldNames)
		return
	}
	if p.nodes[value].kind == jsontext.KindNull {
		*field = new(*int)
		return
	}
	n, fault := p.integer(value)
	switch {
	case fault != nil:
		p.fail(fault.Code, at, fault.Detail+", or null")
	case n < int64(least) || n > int64(most):
		p.fail(InvalidValue, at, fmt.Sprintf("must be %d to %d, %s", max(least, 1), most, meaning))
	default:
		limit := new(int)
		*limit = int(n)
		*field = &limit
	}
}

// ProgramStatistics describe the health of a program in numbers.
type ProgramStatistics struct {
	Subscriptions         int       // not deleted
	ActiveSubscriptions   int       // of Subscriptions, like the next two
	FailingSubscriptions  int       // whose circuit breaker is open
	DisabledSubscriptions int       // set inactive by the service
	OpenIncidents         int       // not resolved
	Tokens                int       // neither expired nor revoked
	Events                int64     // accepted so far, including those removed since
	LastEventAt           time.Time // zero for never
	Attempts              Stat      // of the current hour and the 23 before it, excluding pings
}

// ProgramChanges describes what changed between two states of a program, "" for nothing.
func ProgramChanges(before, after *Program) string {
	var changes []string
	if before.Name != after.Name {
		name, _ := jsontext.AppendQuote(nil, after.Name) // invalid UTF-8 is replaced
		changes = append(changes, "name "+string(name))
	}
	if origins := strings.Join(after.PortalOrigins, " "); origins != strings.Join(before.PortalOrigins, " ") {
		changes = append(changes, "portal_origins "+cmp.Or(origins, "none"))
	}
	for _, l := range [...]struct {
		name        string
		before, now *int
	}{
		{"max_subscriptions", before.Limits.MaxSubscriptions, after.Limits.MaxSubscriptions},
		{"rate_limit", before.Limits.RateLimit, after.Limits.RateLimit},
		{"max_in_flight", before.Limits.MaxInFlight, after.Limits.MaxInFlight},
	} {
		if was, is := limitText(l.before), limitText(l.now); was != is {
			changes = append(changes, l.name+" "+is)
		}
	}
	return strings.Join(changes, ", ")
}

func limitText(limit *int) string {
	if limit == nil {
		return "null"
	}
	return strconv.Itoa(*limit)
}

var identifier = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckIdentifier returns what is wrong with a program or user ID chosen by the
// operator, or nil. Both appear in headers and URLs, which limits their alphabet.
func CheckIdentifier(parameter, id string) []Validation {
	switch {
	case id == "":
		return []Validation{{InvalidRequired, "is required", parameter}}
	case !identifier.MatchString(id):
		return []Validation{{InvalidFormat, "must be 1 to 64 letters, digits, dots, underscores or hyphens, beginning with a letter or digit",
			parameter}}
	}
	return nil
}

// NewID returns a new ID for a record: a UUIDv7, so IDs of one process sort by time. It
// panics only if the operating system provides no randomness.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// IsID reports whether s has the form of an ID from [NewID].
func IsID(s string) bool {
	id, ok := parseUUID([]byte(s))
	return ok && id.String() == s
}

// DerivedID returns a UUID derived from parts: the same for the same parts.
func DerivedID(parts ...string) string {
	return uuid.NewHash(sha256.New(), uuid.Nil, netstrings(parts), 8).String()
}

// timeLayout is ISO 8601 in UTC with milliseconds (spec, section 2.5).
const timeLayout = "2006-01-02T15:04:05.000Z"

// FormatTime formats a time as in all records: UTC, milliseconds, Z.
func FormatTime(t time.Time) string { return t.UTC().Format(timeLayout) }

// Count formats a number with its noun in the singular or plural.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "ry"); ok {
		noun = stem + "rie" // deliveries
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
