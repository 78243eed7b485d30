package apply

import (
	"fmt"
	"math"
	"regexp"

	"service/webhook"
)

// kind is the type of a value in the file.
type kind int

const (
	object kind = iota
	list
	text
	timestamp // a text in RFC 3339
	boolean
	integer
	number
	secret   // a reference to a secret: an object with one of file and env
	anything // a JSON object, passed on as it is
)

// format describes a value of the file. The parser checks the file against it, and [Schema]
// is generated from it, so the two agree.
type format struct {
	kind     kind
	about    string         // description for editors
	fields   []field        // of an object
	item     *format        // of a list
	min, max float64        // of a number, of the bytes of a text, or of the items of a list; max 0 is no limit
	pattern  *regexp.Regexp // of a text
	rule     string         // what the pattern requires, after "must be"
	words    []string       // the only texts allowed, if any
	null     string         // what null means; "" if null is not allowed
	unique   bool           // the items of a list are distinct texts
	either   []string       // an object has exactly one of these fields
}

// field is a property of an object.
type field struct {
	name     string
	required bool
	format   *format
}

// names returns the names of the fields of an object.
func (f *format) names() []string {
	names := make([]string, len(f.fields))
	for i, one := range f.fields {
		names[i] = one.name
	}
	return names
}

// field returns a field of an object, or nil.
func (f *format) field(name string) *format {
	for _, one := range f.fields {
		if one.name == name {
			return one.format
		}
	}
	return nil
}

// Limits of a file.
const (
	maxFile          = 16 << 20 // bytes
	maxValues        = 1 << 21  // values, with each use of an alias
	maxDepth         = 32       // of a schema, as in the API
	maxEventTypes    = 1000
	maxPrograms      = 20_000
	maxSubscriptions = 10_000 // of a program
	maxTokens        = 1000   // of a program
	maxPath          = 4096   // bytes
	maxTypeName      = 64     // bytes
	maxTokenName     = 200    // bytes
)

var (
	identifier   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	typeName     = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$`)
	origin       = regexp.MustCompile(`^https://[a-z0-9.-]+(:[0-9]+)?$`)
	subscriber   = regexp.MustCompile(`^https?://[^ ]+$`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const identifierRule = "1 to 64 letters, digits, dots, underscores or hyphens, beginning with a letter or digit"

func aText(about string, min, max float64) *format {
	return &format{kind: text, about: about, min: min, max: max}
}

func aPattern(about string, max float64, pattern *regexp.Regexp, rule string) *format {
	return &format{kind: text, about: about, min: 1, max: max, pattern: pattern, rule: rule}
}

func aPath(about string) *format { return aText(about, 1, maxPath) }

func aSecret(about, null string) *format {
	return &format{kind: secret, about: about, null: null, fields: []field{
		{"file", false, aPath("File with the secret as its only line. A relative path starts from the directory of this file.")},
		{"env", false, aPattern("Environment variable of service apply with the secret.", 255, variableName, "the name of a variable")},
	}, either: []string{"file", "env"}}
}

func aLimit(about string, min, max float64, null string) *format {
	return &format{kind: integer, about: about, min: min, max: max, null: null}
}

// fileFormat is the format of the file.
var fileFormat = &format{kind: object, about: "The desired state of a service, for service apply. " +
	"What this file does not mention stays as it is.", fields: []field{
	{"event_types", false, &format{kind: list, about: "Event types that the operator defines.", max: maxEventTypes, item: eventTypeFormat}},
	{"programs", false, &format{kind: list, about: "Programs with their limits, subscriptions and tokens.", max: maxPrograms,
		item: programFormat}},
}}

var eventTypeFormat = &format{kind: object, about: "An event type. It has either schema or schema_file.", fields: []field{
	{"name", true, aPattern("Name of the events, such as order.shipped.", maxTypeName, typeName,
		"lower-case letters, digits and underscores, in parts separated by dots, beginning with a letter")},
	{"schema", false, &format{kind: anything, about: "JSON Schema of the whole event, with a title, a description and an example."}},
	{"schema_file", false, aPath("JSON file with the schema. A relative path starts from the directory of this file.")},
}, either: []string{"schema", "schema_file"}}

var programFormat = &format{kind: object, about: "A program: a tenant with its own events, subscriptions and tokens.", fields: append(
	[]field{{"id", true, aPattern("ID of the program.", 64, identifier, identifierRule)}},
	append(programSettings,
		field{"subscriptions", false, &format{kind: list, about: "Subscriptions, identified by their url.", max: maxSubscriptions,
			item: subscriptionFormat}},
		field{"tokens", false, &format{kind: list, about: "Access tokens, identified by their name.", max: maxTokens, item: tokenFormat}},
	)...)}

var subscriptionFormat = &format{kind: object, about: "A subscription. Several with the same url need different descriptions.",
	fields: append(
		[]field{{"url", true, aPattern("URL that receives deliveries.", webhook.MaxURLBytes, subscriber,
			"a URL that begins with https:// or http://")}},
		append(subscriptionSettings,
			field{"authorization_header", false, aSecret("Authorization header of deliveries. It cannot be read back: it is set when the "+
				"subscription has none, and again with --update-secrets.", "no header")},
			field{"signing_secret", false, aSecret("Signing secret (whsec_…) of a new subscription. Without it, the service generates one.", "")},
			field{"signing_secret_file", false, aPath("New file for the generated signing secret, mode 0600. It is never overwritten.")},
		)...)}

// programSettings are the settings of a program, as the API has them.
var programSettings = []field{
	{"name", false, aText("Name for admins.", 0, 200)},
	{"limits", false, &format{kind: object, about: "Limits of the program.", fields: []field{
		{"max_subscriptions", false, aLimit("Subscriptions; 0 is no limit.", 0, 1_000_000, "the default of the installation")},
		{"rate_limit", false, aLimit("API requests in any 60 seconds; 0 is no limit.", 0, 1_000_000, "the default of the installation")},
		{"max_in_flight", false, aLimit("Deliveries in flight of the whole program.", 1, 100_000, "no limit")},
	}}},
	{"portal_origins", false, &format{kind: list, about: "Origins on which the portal may be embedded in an iframe.",
		max: webhook.MaxPortalOrigins, unique: true, item: aPattern("An origin such as https://app.example.com.", 267, origin,
			"an origin such as https://app.example.com")}},
}

// subscriptionSettings are the settings of a subscription that the API returns, so that they
// can be compared.
var subscriptionSettings = []field{
	{"description", false, aText("Description for admins and the partner.", 0, webhook.MaxDescriptionBytes)},
	{"events", true, &format{kind: list, about: "Names of the events to deliver.", min: 1, max: webhook.MaxSubscriptionEvents, unique: true,
		item: aText("Name of an event type.", 1, maxTypeName)}},
	{"active", false, &format{kind: boolean, about: "false sends nothing but pings."}},
	{"ordered", false, &format{kind: boolean, about: "true sends one delivery at a time, in order."}},
	{"max_in_flight", false, &format{kind: integer, about: "Deliveries in flight; 0 is the operator's default.",
		max: webhook.MaxInFlightLimit}},
	{"max_per_second", false, &format{kind: number, about: "Requests per second.", min: webhook.MinPerSecond, max: webhook.MaxPerSecondLimit,
		null: "no limit"}},
	{"max_events", false, aLimit("Events in one delivery, if less than the default.", 1, webhook.MaxEventsLimit,
		"the default of the installation")},
}

var tokenFormat = &format{kind: object, about: "An access token. Its secret is written to secret_file once, when it is created.",
	fields: []field{
		{"name", true, aText("Name of the token, unique in its program.", 1, maxTokenName)},
		{"user", true, aPattern("User that the token acts for.", 64, identifier, identifierRule)},
		{"scopes", true, &format{kind: list, about: "Permissions.", min: 1, max: float64(len(tokenScopes())), unique: true,
			item: &format{kind: text, about: "A scope.", words: tokenScopes()}}},
		{"expires_at", false, &format{kind: timestamp, about: "End of its validity, such as 2027-01-31T00:00:00Z.", null: "never"}},
		{"secret_file", true, aPath("New file for the secret, mode 0600. It is never overwritten. " +
			"A relative path starts from the directory of this file.")},
	}}

// tokenScopes returns the scopes that a token of a program can have.
func tokenScopes() []string {
	var words []string
	for _, s := range webhook.Scopes() {
		words = append(words, string(s))
	}
	return words
}

// bounds describes the limits of a number or of a size.
func bounds(min, max float64) string {
	switch {
	case max == 0 && min == 0:
		return ""
	case max == 0:
		return fmt.Sprintf("at least %s", plain(min))
	case min == 0:
		return fmt.Sprintf("at most %s", plain(max))
	}
	return fmt.Sprintf("%s to %s", plain(min), plain(max))
}

// plain formats a limit without an exponent.
func plain(x float64) string {
	if x == math.Trunc(x) {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%g", x)
}
