package apply

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// state returns a state with the event type ping and the program acme.
func state(change func(*ProgramState)) *State {
	p := &ProgramState{Settings: Settings{
		"name": "Acme", "limits": map[string]any{"max_subscriptions": nil, "rate_limit": 600.0, "max_in_flight": nil},
	}}
	if change != nil {
		change(p)
	}
	return &State{
		EventTypes: map[string]json.RawMessage{"ping": json.RawMessage(`{}`), "pong": json.RawMessage(`{"a": 1, "b": [1.0, "x"]}`)},
		Programs:   map[string]*ProgramState{"acme": p},
	}
}

// current returns a subscription as the API shows it.
func current(id, url, description string) SubscriptionState {
	return SubscriptionState{ID: id, URL: url, Description: description, Settings: Settings{
		"description": description, "events": []any{map[string]any{"name": "ping"}, map[string]any{"name": "pong"}},
		"active": true, "ordered": false,
		"max_in_flight": 8.0, "max_per_second": nil, "max_events": nil,
	}}
}

// one is a state with the subscription s1 of [hook].
func one(description string) *State {
	return subscriptions(current("s1", "https://a.example/?key=1", description))
}

func subscriptions(all ...SubscriptionState) *State {
	return state(func(p *ProgramState) { p.Subscriptions = all })
}

func tokens(all ...TokenState) *State {
	return state(func(p *ProgramState) { p.Tokens = all })
}

func token(id string, scopes ...string) TokenState {
	return TokenState{ID: id, Name: "backend", User: "me", Scopes: scopes, CreatedAt: now}
}

// Beginnings of files with one subscription or token.
const (
	hook  = "programs:\n- id: acme\n  subscriptions:\n  - {url: 'https://a.example/?key=1', events: [pong, ping]"
	hooks = hook + "}\n  - {url: 'https://a.example/?key=1', events: [ping], description: second}\n"
	key   = "programs:\n- id: acme\n  tokens:\n  - {name: backend, user: me, scopes: [events.read, events.write], secret_file: s"
)

// typeOf returns an event type of a file with a valid schema.
func typeOf(name string) string {
	return strings.ReplaceAll(`{name: NAME, schema: {title: t, description: d, type: object, properties: {
    id: {type: string, format: uuid}, timestamp: {type: string, format: date-time}, name: {const: NAME}, version: {const: "1"}},
    required: [id, timestamp, name, version], additionalProperties: false, examples: [
    {id: 019ddcfe-0f37-4cf8-8f53-1f6be7c2d3c7, timestamp: "2026-03-14T08:24:48.644Z", name: NAME, version: "1"}]}}`, "NAME", name)
}

// diffTests are files, current states, and the changes between them.
var diffTests = []struct {
	name, file string
	state      *State
	output     Output
	options    Options
	want       []string
	unchanged  int
}{
	{name: "new type", file: "event_types: [" + typeOf("a.b") + "]", state: state(nil), want: []string{"+ event type a.b"}},
	{name: "new type that is not valid", file: "event_types:\n- " + strings.Replace(typeOf("a.b"), "title: t,", "", 1),
		state: state(nil), want: []string{"+ event type a.b",
			"!2 event type a.b: schema is not a usable schema: the schema must have a title, a description and at least one example in examples"}},
	{name: "same type", file: "event_types: [{name: pong, schema: {b: [1, x], a: 1.0}}]", state: state(nil), unchanged: 1},
	{name: "changed type", file: "event_types: [{name: pong, schema: {b: [2, x], c: {d: 1}}}]", state: state(nil),
		want: []string{"~ event type pong: -schema.a, schema.b[0] 1.0 → 2, +schema.c",
			"!1 event type pong: schema is not a usable schema: the schema must have a title, a description and at least one example in examples"}},

	{name: "new program", file: "programs: [{id: other, name: Other, limits: {rate_limit: 5, max_in_flight: null}}]", state: state(nil),
		want: []string{`+ program other: name "Other", limits.rate_limit 5, limits.max_in_flight no limit`}},
	{name: "new program without settings", file: "programs: [{id: other}]", state: state(nil), want: []string{"+ program other"}},
	{name: "same program", file: "programs: [{id: acme, name: Acme, limits: {rate_limit: 600, max_in_flight: null}}]", state: state(nil),
		unchanged: 1},
	{name: "only what the file has", file: "programs: [{id: acme}]", state: state(nil), unchanged: 1},
	{name: "changed program", file: "programs: [{id: acme, name: '', limits: {rate_limit: null, max_in_flight: 9}}]", state: state(nil),
		want: []string{`~ program acme: name "Acme" → "", limits.rate_limit 600 → the default of the installation, ` +
			`limits.max_in_flight no limit → 9`}},

	{name: "program that cannot be compared", file: strings.Replace(hook, "pong", "pomg", 1) + "}\n- id: other", want: []string{
		"+ program other", "?program acme: it is busy"}, state: state(func(p *ProgramState) { p.Err = errors.New("it is busy") })},

	{name: "new subscription", file: hook + ", active: false}", state: state(nil), unchanged: 1,
		want: []string{"+ subscription acme https://a.example/: events pong ping, active false"}},
	{name: "same subscription", file: hook + "}", state: one("x"), unchanged: 2},
	{name: "changed subscription", file: hook + ", max_in_flight: 16, max_per_second: 0.5, max_events: 20, description: y}", unchanged: 1,
		state: one("x"),
		want: []string{`~ subscription acme https://a.example/ (s1): description "x" → "y", max_in_flight 8 → 16, ` +
			`max_per_second no limit → 0.5, max_events the default of the installation → 20`}},
	{name: "default limits", file: hook + ", max_in_flight: 8, max_per_second: null, max_events: null}", unchanged: 2,
		state: one("x")},
	{name: "changed events", file: strings.Replace(hook, "[pong, ping]", "[pong]", 1) + "}", unchanged: 1,
		state: one(""),
		want:  []string{"~ subscription acme https://a.example/ (s1): events -ping"}},
	{name: "unknown event", file: strings.Replace(hook, "[pong, ping]", "[pomg]", 1) + "}", state: state(nil), unchanged: 1,
		want: []string{"+ subscription acme https://a.example/: events pomg",
			`!4 there is no event type "pomg", neither in the service nor in the file`}},
	{name: "event of the file", state: state(nil), unchanged: 1,
		file: "event_types: [" + typeOf("new.one") + "]\n" + strings.Replace(hook, "[pong, ping]", "[new.one]", 1) + "}",
		want: []string{"+ event type new.one", "+ subscription acme https://a.example/: events new.one"}},

	{name: "one URL twice in the service", file: hook + "}", unchanged: 1,
		state: subscriptions(current("s1", "https://a.example/?key=1", "x"), current("s2", "https://a.example/?key=1", "y")),
		want: []string{`!4 program acme has 2 subscriptions with this url and another description: s1 ("x"), s2 ("y"); ` +
			`use its description, or give it one of its own in the file`}},
	{name: "one URL twice, told apart", file: hook + ", description: y}", unchanged: 2,
		state: subscriptions(current("s1", "https://a.example/?key=1", "x"), current("s2", "https://a.example/?key=1", "y"))},
	{name: "identical twins", file: hook + ", description: x}", unchanged: 1,
		state: subscriptions(current("s1", "https://a.example/?key=1", "x"), current("s2", "https://a.example/?key=1", "x")),
		want: []string{`!4 2 subscriptions of program acme have this url and description: s1 ("x"), s2 ("x"); ` +
			`give them different descriptions`}},
	{name: "one URL twice in the file", file: hooks, unchanged: 2, state: one(""),
		want: []string{`+ subscription acme https://a.example/: description "second", events ping`}},
	{name: "one URL twice in the file, unclear", file: hooks, unchanged: 1,
		state: one("x"),
		want: []string{
			`!4 program acme has 1 subscription with this url and another description: s1 ("x"); use its description, or give it one of its own in the file`,
			`!5 program acme has 1 subscription with this url and another description: s1 ("x"); use its description, or give it one of its own in the file`,
		}},

	{name: "new header", file: hook + ", authorization_header: {env: A}}", unchanged: 1,
		state: one(""),
		want:  []string{"~ subscription acme https://a.example/ (s1): authorization_header set"}},
	{name: "header that is set", file: hook + ", authorization_header: {env: A}}", unchanged: 2, state: withHeader()},
	{name: "header to update", file: hook + ", authorization_header: {env: A}}", unchanged: 1, state: withHeader(),
		options: Options{UpdateSecrets: true}, want: []string{"~ subscription acme https://a.example/ (s1): authorization_header set again"}},
	{name: "header to remove", file: hook + ", authorization_header: null}", unchanged: 1, state: withHeader(),
		want: []string{"~ subscription acme https://a.example/ (s1): authorization_header removed"}},
	{name: "headers", file: hook + ", headers: {X-B: {env: A}, X-A: {env: A}}}", unchanged: 1, state: withHeader(),
		want: []string{"~ subscription acme https://a.example/ (s1): headers set: X-A, X-B"}},
	{name: "same headers", file: hook + ", headers: {X-Key: {env: A}}}", unchanged: 2, state: withHeader()},
	{name: "same headers again", file: hook + ", headers: {X-Key: {env: A}}}", unchanged: 1, state: withHeader(),
		options: Options{UpdateSecrets: true}, want: []string{"~ subscription acme https://a.example/ (s1): headers set again: X-Key"}},
	{name: "headers to remove", file: hook + ", headers: null}", unchanged: 1, state: withHeader(),
		want: []string{"~ subscription acme https://a.example/ (s1): headers removed"}},
	{name: "filters", file: hook + ", filters: {pong: " + filter7 + "}}", unchanged: 1, state: withFilter("ping"), want: []string{
		"~ subscription acme https://a.example/ (s1): filter of pong set, filter of ping removed"}},
	{name: "same filters", file: hook + ", filters: {ping: " + filter7 + "}}", unchanged: 2, state: withFilter("ping")},
	{name: "filters that the file does not mention", file: hook + "}", unchanged: 2, state: withFilter("ping")},
	{name: "no filters", file: hook + ", filters: null}", unchanged: 1, state: withFilter("ping"),
		want: []string{"~ subscription acme https://a.example/ (s1): filter of ping removed"}},
	{name: "no headers", file: hook + ", headers: {}}", unchanged: 2, options: Options{UpdateSecrets: true}, state: one("")},
	{name: "no header", file: hook + ", authorization_header: null}", unchanged: 2, options: Options{UpdateSecrets: true},
		state: one("")},
	{name: "signing secret of a subscription that exists", file: hook + ", signing_secret: {env: A}}", unchanged: 2,
		options: Options{UpdateSecrets: true}, state: one("")},
	{name: "secrets of a new subscription", file: hook + ", authorization_header: {env: A}, signing_secret: {env: B}}", unchanged: 1,
		state: state(nil),
		want:  []string{"+ subscription acme https://a.example/: events pong ping, authorization_header set, signing_secret set"}},
	{name: "signing secret to a file", file: hook + ", signing_secret_file: s}", unchanged: 1, state: state(nil),
		want: []string{"+ subscription acme https://a.example/: events pong ping, signing secret to s"}},
	{name: "signing secret to a file that exists", file: hook + ", signing_secret_file: s}", unchanged: 1, state: state(nil),
		output: Output{Exists: true},
		want: []string{"+ subscription acme https://a.example/: events pong ping, signing secret to s",
			"!4 s exists and is not overwritten: move it, or set another file"}},
	{name: "signing secret lost", file: hook + ", signing_secret_file: s}", unchanged: 1, output: Output{Began: now},
		state: one(""),
		want: []string{"~ subscription acme https://a.example/ (s1): new signing secret to s because an interrupted run has not " +
			"written it"}},

	{name: "new token", file: key + ", expires_at: 2027-01-31T00:00:00Z}", state: state(nil), unchanged: 1,
		want: []string{"+ token acme backend: user me, scopes events.read events.write, expires_at 2027-01-31T00:00:00.000Z, secret to s"}},
	{name: "new token that has expired", file: key + ", expires_at: 2026-11-30T00:00:00Z}", state: state(nil), unchanged: 1,
		want: []string{"+ token acme backend: user me, scopes events.read events.write, expires_at 2026-11-30T00:00:00.000Z, secret to s",
			`!4 expires_at of token "backend" of program acme is in the past`}},
	{name: "new token, file exists", file: key + "}", state: state(nil), unchanged: 1, output: Output{Exists: true},
		want: []string{"+ token acme backend: user me, scopes events.read events.write, secret to s",
			"!4 s exists and is not overwritten: move it, or set another file"}},
	{name: "new token, no directory", file: key + "}", state: state(nil), unchanged: 1, output: Output{Problem: "x is not a directory"},
		want: []string{"+ token acme backend: user me, scopes events.read events.write, secret to s",
			"!4 s cannot be created: x is not a directory"}},
	{name: "same token", file: key + "}", state: tokens(token("t1", "events.write", "events.read")), unchanged: 2},
	{name: "same token, its file is gone", file: key + ", expires_at: null}", state: tokens(token("t1", "events.write", "events.read")),
		unchanged: 2},
	{name: "token with other scopes", file: key + ", expires_at: 2027-01-31T00:00:00Z}", unchanged: 1,
		state: tokens(token("t1", "events.read")),
		want: []string{`!4 token "backend" (t1) of program acme differs and cannot be changed: scopes events.read → events.read events.write, ` +
			`expires_at never → 2027-01-31T00:00:00.000Z; --replace-tokens creates a new one and revokes this one`}},
	{name: "token to replace", file: key + "}", state: tokens(token("t1", "events.read")), unchanged: 1,
		options: Options{ReplaceTokens: true},
		want:    []string{"~ token acme backend: user me, scopes events.read events.write, secret to s, then revoke t1"}},
	{name: "token to replace, file exists", file: key + "}", state: tokens(token("t1", "events.read")), unchanged: 1,
		options: Options{ReplaceTokens: true}, output: Output{Exists: true},
		want: []string{"~ token acme backend: user me, scopes events.read events.write, secret to s, then revoke t1",
			"!4 s exists and is not overwritten: move it, or set another file"}},
	{name: "two tokens", file: key + "}", state: tokens(token("t1", "events.read"), token("t2", "events.read", "events.write")), unchanged: 1,
		want: []string{`!4 program acme has several tokens with the name "backend": t2 is as the file says, t1 is not; ` +
			`--replace-tokens revokes the others`}},
	{name: "two tokens, one to revoke", file: key + "}", unchanged: 1, options: Options{ReplaceTokens: true},
		state: tokens(token("t1", "events.read"), token("t2", "events.read", "events.write")),
		want:  []string{"- token acme backend (t2): revoke t1 of the same name"}},
	{name: "two equal tokens", file: key + "}", unchanged: 1, options: Options{ReplaceTokens: true},
		state: tokens(token("t1", "events.write", "events.read"), token("t2", "events.read", "events.write")),
		want:  []string{`!4 program acme has 2 tokens with the name "backend": t1, t2; revoke one of them`}},
	{name: "token without its secret", file: key + "}", state: tokens(token("t1", "events.write", "events.read")), unchanged: 1,
		output: Output{Began: now.Add(time.Minute)},
		want:   []string{"~ token acme backend: user me, scopes events.read events.write, secret to s, then revoke t1"}},
	{name: "token of before the interrupted run", file: key + "}", state: tokens(token("t1", "events.write", "events.read")), unchanged: 1,
		output: Output{Began: now.Add(time.Hour)},
		want: []string{`!4 an interrupted run has not written the secret of token "backend" (t1) of program acme: --replace-tokens creates ` +
			`a new one and revokes this one; if the secret is known, remove s.pending`}},
	{name: "used token of an interrupted run", file: key + "}", unchanged: 1, output: Output{Began: now.Add(time.Minute)},
		state: tokens(TokenState{ID: "t1", Name: "backend", User: "me", Scopes: []string{"events.read", "events.write"}, CreatedAt: now,
			UsedAt: &now}),
		want: []string{`!4 an interrupted run has not written the secret of token "backend" (t1) of program acme: --replace-tokens creates ` +
			`a new one and revokes this one; if the secret is known, remove s.pending`}},
	{name: "interrupted between file and pending file", file: key + "}", unchanged: 2,
		state: tokens(token("t1", "events.write", "events.read")), output: Output{Began: now, Exists: true}},
}

// TestDiff compares files with states. want lists the changes, the failures, which begin with ?,
// and the problems, which begin with !.
func TestDiff(t *testing.T) {
	for _, test := range diffTests {
		t.Run(test.name, func(t *testing.T) {
			plan := Diff(t.Context(), parsed(t, "", test.file), test.state, map[string]Output{"s": test.output}, test.options, now)
			var got []string
			for i := range plan.Changes {
				got = append(got, plan.Changes[i].String())
			}
			for i := range plan.Failed {
				got = append(got, "?"+plan.Failed[i].String())
			}
			for _, p := range plan.Problems {
				got = append(got, fmt.Sprintf("!%d %s", p.Line, p.Text))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if plan.Unchanged != test.unchanged {
				t.Errorf("got %d unchanged, want %d", plan.Unchanged, test.unchanged)
			}
		})
	}
}

func withHeader() *State {
	s := current("s1", "https://a.example/?key=1", "")
	s.HasAuthorization, s.HeaderNames = true, []string{"X-Key"}
	return subscriptions(s)
}

const filter7 = `{all: [{path: id, op: eq, value: "7"}]}`

// withFilter returns a state with a filter for an event.
func withFilter(name string) *State {
	var s SubscriptionState
	text := `{"id":"s1","url":"https://a.example/?key=1","description":"","active":true,"ordered":false,"max_in_flight":8,` +
		`"max_per_second":null,"max_events":null,"events":[{"name":"ping"},{"name":"pong"}]}`
	text = strings.Replace(text, `"`+name+`"`, `"`+name+`","filter":{"all":[{"path":"id","op":"eq","value":"7"}]}`, 1)
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	return subscriptions(s)
}

// TestOrder checks that event types come first, then programs, subscriptions and tokens.
func TestOrder(t *testing.T) {
	plan := Diff(t.Context(), parsed(t, folder(t), whole), &State{}, nil, Options{}, now)
	var got []string
	for i := range plan.Changes {
		got = append(got, plan.Changes[i].Noun)
	}
	want := []string{"event type", "event type", "program", "program", "subscription", "subscription", "token", "token"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// requests returns the requests of a plan with its secrets.
func requests(t *testing.T, plan *Plan) (all []string) {
	t.Helper()
	plan.Resolve(func(name string) (string, bool) { return "secret of " + name, true })
	for _, c := range plan.Changes {
		for _, r := range c.calls {
			body, err := json.Marshal(r.body)
			if err != nil {
				t.Fatal(err)
			}
			line := strings.TrimSpace(r.program+" "+r.method) + " " + r.path + " " + string(body)
			if r.file != "" {
				line += " → " + r.field + " to " + r.file
			}
			all = append(all, line)
		}
	}
	return all
}

// TestRequests checks that the requests that make changes contain what differs, and nothing else.
func TestRequests(t *testing.T) {
	const post, put = "acme POST /v2/webhooks/subscriptions", "acme PUT /v2/webhooks/subscriptions/s1"
	for _, test := range []struct {
		name, file string
		state      *State
		output     Output
		want       []string
	}{
		{name: "new", state: state(nil), file: "event_types: [{name: a.b, schema: {title: t}}]\n" +
			"programs: [{id: new, name: N, limits: {rate_limit: 5, max_in_flight: null}}]",
			want: []string{`PUT /v2/event_types/a.b {"schema":{"title":"t"}}`,
				`PUT /v2/programs/new {"limits":{"max_in_flight":null,"rate_limit":5},"name":"N"}`}},
		{name: "changed program", file: "programs: [{id: acme, name: Acme, limits: {rate_limit: 5, max_in_flight: null}, portal_origins: []}]",
			state: state(nil), want: []string{`PUT /v2/programs/acme {"limits":{"rate_limit":5}}`}},
		{name: "new subscription", file: hook + ", authorization_header: {env: A}, signing_secret_file: s}", state: state(nil),
			want: []string{post + ` {"authorization_header":"secret of A","events":[{"name":"pong"},{"name":"ping"}],` +
				`"url":"https://a.example/?key=1"} → signing_secret to s`}},
		{name: "changed subscription", file: strings.Replace(hook, "pong, ", "", 1) + ", active: true, max_events: 5}",
			state: one(""), want: []string{put + ` {"events":[{"name":"ping"}],"max_events":5}`}},
		{name: "filter", file: hook + ", filters: {ping: " + filter7 + "}}", state: one(""),
			want: []string{put + ` {"events":[{"name":"pong"},{"filter":{"all":[{"path":"id","op":"eq","value":"7"}]},"name":"ping"}]}`}},
		{name: "an event less", file: strings.Replace(hook, "pong, ", "", 1) + "}", state: withFilter("ping"),
			want: []string{put + ` {"events":[{"filter":{"all":[{"path":"id","op":"eq","value":"7"}]},"name":"ping"}]}`}},
		{name: "header to remove", file: hook + ", authorization_header: null}", state: withHeader(),
			want: []string{put + ` {"authorization_header":null}`}},
		{name: "lost signing secret", file: hook + ", signing_secret_file: s}", output: Output{Began: now},
			state: one(""), want: []string{
				"acme POST /v2/webhooks/subscriptions/s1/rotate_secret null → signing_secret to s"}},
		{name: "token", file: key + ", expires_at: 2027-01-31T00:00:00Z}", state: tokens(token("t1", "events.read")), want: []string{
			`POST /v2/programs/acme/tokens {"expires_at":"2027-01-31T00:00:00.000Z","name":"backend","scopes":["events.read","events.write"],` +
				`"user_id":"me"} → secret to s`, `DELETE /v2/programs/acme/tokens/t1 null`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plan := Diff(t.Context(), parsed(t, "", test.file), test.state, map[string]Output{"s": test.output}, Options{ReplaceTokens: true}, now)
			if diff := cmp.Diff(test.want, requests(t, plan)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			for i := range plan.Changes {
				if line := plan.Changes[i].String(); strings.Contains(line, "secret of") {
					t.Errorf("the secret is in %q", line)
				}
			}
		})
	}
}

// TestLargeNumbers checks that numbers are compared without rounding.
func TestLargeNumbers(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{"9223372036854775807", "9223372036854775806", false}, {"1", "1.0", true}, {"1e2", "100", true}, {"1e400", "1e400", true},
		{"1e400", "2e400", false}, {"1e999999999", "1e999999998", false}, {`"1"`, "1", false}, {"null", "false", false},
	} {
		if got := compareJSON([]byte(test.a), []byte(test.b)) == nil; got != test.same {
			t.Errorf("%s and %s: got %t, want %t", test.a, test.b, got, test.same)
		}
	}
}

func TestManyDifferences(t *testing.T) {
	got := compareJSON([]byte(`[1,1,1,1,1,1,1,1,1,1]`), []byte(`[2,2,2,2,2,2,2,2,2,2]`))
	if len(got) != maxDifferences+1 || got[maxDifferences] != "and 2 more" {
		t.Errorf("got %q", got)
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	if f := parsed(t, "dir", key+"}"); f.Programs[0].Tokens[0].SecretFile != filepath.Join("dir", "s") {
		t.Errorf("got %+v", f)
	}
}
