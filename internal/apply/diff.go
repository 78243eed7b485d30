package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

// State is the current state of what a file mentions.
type State struct {
	EventTypes map[string]json.RawMessage // every schema, by name
	Programs   map[string]*ProgramState   // by ID; a program that does not exist has no entry
}

// ProgramState is a program of the service.
type ProgramState struct {
	ID            string
	Status        string
	Settings      Settings            `json:"-"` // all properties
	Subscriptions []SubscriptionState `json:"-"`
	Tokens        []TokenState        `json:"-"` // neither expired nor revoked
	Err           error               `json:"-"` // why the program cannot be compared and changed; nil if it can
}

// SubscriptionState is a subscription of the service.
type SubscriptionState struct {
	ID               string
	URL              string
	Description      string
	HasAuthorization bool     `json:"has_authorization_header"`
	HeaderNames      []string `json:"header_names"` // sorted
	Events           []struct {
		Name   string
		Filter *webhook.EventFilter
	}
	Settings Settings `json:"-"` // all properties
}

// TokenState is an access token of the service.
type TokenState struct {
	ID      string
	Name    string
	User    string `json:"user_id"`
	Scopes  []string
	Expires time.Time `json:"expires_at"` // zero for never

	CreatedAt time.Time  `json:"created_at"`
	UsedAt    *time.Time `json:"used_at"` // nil if no request has used it
}

func (p *ProgramState) UnmarshalJSON(text []byte) (err error) {
	type plain ProgramState
	p.Settings, err = decode(text, (*plain)(p))
	return err
}

func (s *SubscriptionState) UnmarshalJSON(text []byte) (err error) {
	type plain SubscriptionState
	s.Settings, err = decode(text, (*plain)(s))
	return err
}

// Options are what the operator permits.
type Options struct {
	UpdateSecrets bool // set authorization headers again, which cannot be compared
	ReplaceTokens bool // revoke tokens that differ, and create them again
}

// Op is the kind of a change, as it is printed.
type Op string

const (
	Create Op = "+"
	Update Op = "~"
	Revoke Op = "-"
)

// Change is one step towards the desired state.
type Change struct {
	Op      Op
	Noun    string   // the kind of record that changes
	Name    string   // of the record; a URL without its query, which may contain a secret
	Details []string // what changes, for people
	Program string   // that the record is in, or is; "" for an event type

	calls []call // the requests that make the change
}

// Title names the record.
func (c *Change) Title() string { return c.Noun + " " + c.Name }

// String returns the change in one line, without secrets.
func (c *Change) String() string {
	line := string(c.Op) + " " + c.Title()
	if len(c.Details) > 0 {
		line += ": " + strings.Join(c.Details, ", ")
	}
	return line
}

// Plan is the set of changes to make.
type Plan struct {
	Changes   []Change // in the order in which they must be made
	Unchanged int      // records that are as desired
	Failed    []Failure
	Problems  []Problem
}

// Failure is a program that cannot be compared. The plan contains no change for it.
type Failure struct {
	Program *Program
	Err     error
}

// String returns the failure in one line.
func (f *Failure) String() string { return "program " + f.Program.ID + ": " + f.Err.Error() }

// Diff compares the desired state with the current one. The order of changes is event types,
// programs, subscriptions, tokens. It reads nothing but its arguments: outputs is the state of the
// files to create, by path.
func Diff(ctx context.Context, f *File, current *State, outputs map[string]Output, options Options, now time.Time) *Plan {
	d := differ{ctx: ctx, current: current, outputs: outputs, options: options, now: now, plan: new(Plan), types: make(map[string]bool)}
	for name := range current.EventTypes {
		d.types[name] = true
	}
	for i := range f.EventTypes {
		d.types[f.EventTypes[i].Name] = true
		d.eventType(&f.EventTypes[i])
	}
	var programs []*Program
	for i := range f.Programs {
		p := &f.Programs[i]
		if state := current.Programs[p.ID]; state != nil && state.Err != nil {
			d.plan.Failed = append(d.plan.Failed, Failure{p, state.Err})
			continue
		}
		programs = append(programs, p)
	}
	for _, p := range programs {
		d.program(p)
	}
	for _, p := range programs {
		d.subscriptions(p)
	}
	for _, p := range programs {
		for i := range p.Tokens {
			d.token(&p.Tokens[i])
		}
	}
	return d.plan
}

type differ struct {
	ctx     context.Context // ends the checks of schemas
	current *State
	outputs map[string]Output
	options Options
	now     time.Time
	plan    *Plan
	types   map[string]bool // every event type after the change
}

// change plans a change. A change of an existing record without details is none.
func (d *differ) change(c Change) {
	if c.Op != Create && len(c.Details) == 0 {
		d.plan.Unchanged++
		return
	}
	d.plan.Changes = append(d.plan.Changes, c)
}

func (d *differ) problem(line int, format string, args ...any) {
	d.plan.Problems = append(d.plan.Problems, Problem{line, fmt.Sprintf(format, args...)})
}

func (d *differ) eventType(t *EventType) {
	c := Change{Op: Create, Noun: "event type", Name: t.Name}
	before, exists := d.current.EventTypes[t.Name]
	if exists {
		c.Op, c.Details = Update, compareJSON(before, t.Schema)
	}
	if c.Op == Create || c.Details != nil {
		_, invalid := webhook.NewEventType(d.ctx, t.Name, t.Schema)
		if invalid != nil {
			for _, v := range invalid.Validations {
				d.problem(t.Line, "event type %s: %s %s", t.Name, v.Parameter, v.Detail)
			}
		} else if exists {
			c.Details = append(c.Details, incompatible(t, before)...)
		}
	}
	c.calls = []call{{method: http.MethodPut, path: "/v2/event_types/" + url.PathEscape(t.Name), body: Settings{"schema": t.Schema}}}
	d.change(c)
}

// incompatible returns why the API would refuse changing an event type to a valid schema, nil if it
// would not.
func incompatible(t *EventType, before json.RawMessage) (reasons []string) {
	for i, c := range webhook.CompareSchemas(before, t.Schema) {
		if i == maxDifferences {
			return append(reasons, "and more")
		}
		reasons = append(reasons, "incompatible: "+c.String())
	}
	return reasons
}

func (d *differ) program(p *Program) {
	c := Change{Op: Create, Noun: "program", Name: p.ID, Program: p.ID}
	save := call{method: http.MethodPut, path: programsPath + url.PathEscape(p.ID)}
	var current Settings
	if before := d.current.Programs[p.ID]; before != nil {
		c.Op, current = Update, before.Settings
	}
	save.body, c.Details = settings(p.Settings, current, fileSchema().Properties["programs"].Items2020, "")
	c.calls = []call{save}
	d.change(c)
}

// subscriptions compares the subscriptions of a program. The URL identifies a subscription. If the
// file or the service contains several with one URL, their descriptions distinguish them.
func (d *differ) subscriptions(p *Program) {
	byURL := make(map[string][]*SubscriptionState)
	if current := d.current.Programs[p.ID]; current != nil {
		for i := range current.Subscriptions {
			s := &current.Subscriptions[i]
			byURL[s.URL] = append(byURL[s.URL], s)
		}
	}
	wanted := make(map[string][]*Subscription)
	for i := range p.Subscriptions {
		s := &p.Subscriptions[i]
		wanted[s.URL] = append(wanted[s.URL], s)
	}
	for i := range p.Subscriptions {
		s := &p.Subscriptions[i]
		before, ok := d.match(s, wanted[s.URL], byURL[s.URL])
		if !ok {
			continue
		}
		for _, name := range s.Events {
			if !d.types[name] {
				d.problem(s.Line, "there is no event type %s, neither in the service nor in the file", quoted(name))
			}
		}
		d.subscription(s, before)
	}
}

// match returns the current subscription that s describes, nil if there is none. If several match,
// it records a problem and returns false.
func (d *differ) match(s *Subscription, wanted []*Subscription, current []*SubscriptionState) (*SubscriptionState, bool) {
	if len(wanted) == 1 && len(current) == 1 {
		return current[0], true
	}
	var same, free []*SubscriptionState
	for _, c := range current {
		if c.Description == s.Description {
			same = append(same, c)
		} else if !slices.ContainsFunc(wanted, func(w *Subscription) bool { return w.Description == c.Description }) {
			free = append(free, c)
		}
	}
	switch {
	case len(same) == 1:
		return same[0], true
	case len(same) > 1:
		d.problem(s.Line, "%s of program %s have this url and description: %s; give them different descriptions",
			webhook.Count(len(same), "subscription"), s.ProgramID, ids(same))
		return nil, false
	case len(free) > 0:
		d.problem(s.Line, "program %s has %s with this url and another description: %s; use its description, "+
			"or give it one of its own in the file",
			s.ProgramID, webhook.Count(len(free), "subscription"), ids(free))
		return nil, false
	}
	return nil, true
}

// ids lists subscriptions with their descriptions.
func ids(all []*SubscriptionState) string {
	var words []string
	for _, s := range all {
		words = append(words, fmt.Sprintf("%s (%s)", s.ID, quoted(s.Description)))
	}
	return strings.Join(words, ", ")
}

func (d *differ) subscription(s *Subscription, before *SubscriptionState) {
	c := Change{Op: Create, Noun: "subscription", Name: s.ProgramID + " " + webhook.WithoutQuery(s.URL), Program: s.ProgramID}
	save := call{method: http.MethodPost, path: subscriptionsPath, program: s.ProgramID, secrets: make(map[string]*Secret)}
	if before == nil {
		before = new(SubscriptionState)
	} else {
		c.Op, c.Name = Update, c.Name+" ("+before.ID+")"
		save.method, save.path = http.MethodPut, subscriptionsPath+"/"+url.PathEscape(before.ID)
	}
	program := fileSchema().Properties["programs"].Items2020
	save.body, c.Details = settings(s.Settings, before.Settings, program.Properties["subscriptions"].Items2020, "")
	s.setEvents(before, &c, &save)
	if a := s.Authorization; a != nil && a.Null && before.HasAuthorization {
		save.body["authorization_header"] = nil
		c.Details = append(c.Details, "authorization_header removed")
	} else if a != nil && !a.Null && (!before.HasAuthorization || d.options.UpdateSecrets) {
		save.secrets["authorization_header"] = a
		detail := "authorization_header set"
		if before.HasAuthorization {
			detail += " again"
		}
		c.Details = append(c.Details, detail)
	}
	d.headers(s, before, &c, &save)
	if c.Op == Create {
		d.newSubscription(s, &c, &save)
	}
	if len(save.body)+len(save.secrets) > 0 {
		c.calls = append(c.calls, save)
	}
	if path := s.SigningSecretFile; c.Op == Update && path != "" && d.outputs[path].Pending() {
		c.Details = append(c.Details, "new signing secret to "+path+" because an interrupted run has not written it")
		c.calls = append(c.calls, call{
			method: http.MethodPost, path: save.path + "/rotate_secret", program: s.ProgramID, field: "signing_secret", file: path,
		})
	}
	d.change(c)
}

// setEvents adds the events of a subscription and their filters to its request, if any of them
// differ.
func (s *Subscription) setEvents(before *SubscriptionState, c *Change, save *call) {
	filters := make(webhook.Filters)
	for _, e := range before.Events {
		filters[e.Name] = e.Filter
	}
	_, differ := save.body["events"]
	var events []any
	for _, name := range s.Events {
		event, had, wanted := Settings{"name": name}, filters[name], filters[name]
		if s.Filters != nil {
			wanted = s.Filters[name]
		}
		if wanted != nil {
			event["filter"] = wanted
		}
		switch {
		case webhook.SameFilter(had, wanted):
		case wanted == nil:
			c.Details, differ = append(c.Details, "filter of "+name+" removed"), true
		default:
			c.Details, differ = append(c.Details, "filter of "+name+" set"), true
		}
		events = append(events, event)
	}
	if differ {
		save.body["events"] = events
	}
}

// headerSecret begins the names of the secrets that are headers.
const headerSecret = "headers."

// headers adds all headers of a subscription to its request, if other names are wanted or if
// secrets are to be set again.
func (d *differ) headers(s *Subscription, before *SubscriptionState, c *Change, save *call) {
	names := slices.Sorted(maps.Keys(s.Headers))
	same := slices.Equal(names, before.HeaderNames)
	if s.Headers == nil || same && (len(names) == 0 || !d.options.UpdateSecrets) {
		return
	}
	save.body["headers"] = make(Settings)
	for _, name := range names {
		save.secrets[headerSecret+name] = s.Headers[name]
	}
	switch {
	case len(names) == 0:
		c.Details = append(c.Details, "headers removed")
	case same:
		c.Details = append(c.Details, "headers set again: "+strings.Join(names, ", "))
	default:
		c.Details = append(c.Details, "headers set: "+strings.Join(names, ", "))
	}
}

// newSubscription adds what only the request that creates a subscription contains.
func (d *differ) newSubscription(s *Subscription, c *Change, create *call) {
	create.body["url"] = s.URL
	if s.SigningSecret != nil {
		create.secrets["signing_secret"] = s.SigningSecret
		c.Details = append(c.Details, "signing_secret set")
	}
	if path := s.SigningSecretFile; path != "" {
		d.output(path, s.Line)
		create.field, create.file = "signing_secret", path
		c.Details = append(c.Details, "signing secret to "+path)
	}
}

// output records a problem if a file cannot be created.
func (d *differ) output(path string, line int) {
	switch o := d.outputs[path]; {
	case o.Exists:
		d.problem(line, "%s exists and is not overwritten: move it, or set another file", path)
	case o.Problem != "":
		d.problem(line, "%s cannot be created: %s", path, o.Problem)
	}
}

// token compares the tokens with a name. A token cannot be changed, only replaced.
func (d *differ) token(t *Token) {
	var same, other []TokenState
	if current := d.current.Programs[t.ProgramID]; current != nil {
		for _, c := range current.Tokens {
			switch {
			case c.Name != t.Name:
			case differences(t, &c) == nil:
				same = append(same, c)
			default:
				other = append(other, c)
			}
		}
	}
	replace := d.options.ReplaceTokens
	switch {
	case len(same) > 1:
		d.problem(t.Line, "program %s has %s with the name %s: %s; revoke one of them",
			t.ProgramID, webhook.Count(len(same), "token"), quoted(t.Name), tokenIDs(same))
	case len(same)+len(other) == 0:
		d.create(t, nil)
	case len(same) == 0 && !replace:
		d.problem(t.Line, "token %s (%s) of program %s differs and cannot be changed: %s; "+
			"--replace-tokens creates a new one and revokes this one",
			quoted(t.Name), tokenIDs(other), t.ProgramID, strings.Join(differences(t, &other[0]), ", "))
	case len(other) > 0 && !replace:
		d.problem(t.Line, "program %s has several tokens with the name %s: %s is as the file says, %s is not; "+
			"--replace-tokens revokes the others",
			t.ProgramID, quoted(t.Name), same[0].ID, tokenIDs(other))
	case len(same) == 0:
		d.create(t, other)
	case !d.outputs[t.SecretFile].Pending():
		d.keep(t, &same[0], other)
	case d.orphan(t, &same[0]) || replace:
		d.create(t, append(same, other...))
	default:
		d.problem(t.Line, "an interrupted run has not written the secret of token %s (%s) of program %s: --replace-tokens creates a new one "+
			"and revokes this one; if the secret is known, remove %s", quoted(t.Name), same[0].ID, t.ProgramID, t.SecretFile+pendingSuffix)
	}
}

// clockSkew is how far the clocks of the service and of this machine may differ.
const clockSkew = 5 * time.Minute

// orphan reports whether an interrupted run created a token without writing its secret, so that the
// secret is lost.
func (d *differ) orphan(t *Token, c *TokenState) bool {
	return c.UsedAt == nil && c.CreatedAt.After(d.outputs[t.SecretFile].Began.Add(-clockSkew))
}

// create plans a new token that replaces others.
func (d *differ) create(t *Token, others []TokenState) {
	d.output(t.SecretFile, t.Line)
	body := Settings{"name": t.Name, "user_id": t.User, "scopes": t.Scopes}
	details := []string{"user " + t.User, "scopes " + strings.Join(t.Scopes, " ")}
	if t.Expires != nil && !t.Expires.IsZero() {
		body["expires_at"] = expiry(*t.Expires)
		details = append(details, "expires_at "+expiry(*t.Expires))
		if !t.Expires.After(d.now) {
			d.problem(t.Line, "expires_at of token %s of program %s is in the past", quoted(t.Name), t.ProgramID)
		}
	}
	details = append(details, "secret to "+t.SecretFile)
	c := Change{Op: Create, Noun: "token", Name: t.ProgramID + " " + t.Name, Program: t.ProgramID, Details: details}
	c.calls = []call{{method: http.MethodPost, path: tokensPath(t.ProgramID), body: body, field: "secret", file: t.SecretFile}}
	for _, o := range others {
		c.Op = Update
		c.revoke(t, o.ID, "then revoke "+o.ID)
	}
	d.change(c)
}

// keep keeps a token that is as desired, and plans the revocation of the others with its name.
func (d *differ) keep(t *Token, same *TokenState, others []TokenState) {
	c := Change{Op: Revoke, Noun: "token", Name: t.ProgramID + " " + t.Name + " (" + same.ID + ")", Program: t.ProgramID}
	for _, o := range others {
		c.revoke(t, o.ID, "revoke "+o.ID+" of the same name")
	}
	d.change(c)
}

// revoke plans the revocation of a token with the name of t.
func (c *Change) revoke(t *Token, id, detail string) {
	c.Details = append(c.Details, detail)
	c.calls = append(c.calls, call{method: http.MethodDelete, path: tokensPath(t.ProgramID) + "/" + url.PathEscape(id)})
}

func tokenIDs(all []TokenState) string {
	var words []string
	for _, t := range all {
		words = append(words, t.ID)
	}
	return strings.Join(words, ", ")
}

// differences returns how a token differs from the desired one, nil if it does not.
func differences(t *Token, c *TokenState) (all []string) {
	if c.User != t.User {
		all = append(all, "user "+c.User+" → "+t.User)
	}
	if setChange(c.Scopes, t.Scopes) != "" {
		all = append(all, "scopes "+strings.Join(c.Scopes, " ")+" → "+strings.Join(t.Scopes, " "))
	}
	if t.Expires != nil && !c.Expires.Equal(*t.Expires) {
		all = append(all, "expires_at "+expiry(c.Expires)+" → "+expiry(*t.Expires))
	}
	return all
}

func expiry(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return webhook.FormatTime(t)
}
