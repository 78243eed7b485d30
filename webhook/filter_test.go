package webhook

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// filterModel decides by the contract alone: over decoded values, numbers as fractions, and nil for
// unknown.
func filterModel(node any, event any) *bool {
	is := func(b bool) *bool { return &b }
	n := node.(map[string]any)
	for _, group := range []string{"all", "any"} {
		list, ok := n[group].([]any)
		if !ok {
			continue
		}
		decisive, open := group == "any", false
		for _, one := range list {
			switch v := filterModel(one, event); {
			case v == nil:
				open = true
			case *v == decisive:
				return v
			}
		}
		if open {
			return nil
		}
		return is(!decisive)
	}
	if inner, ok := n["not"]; ok {
		if v := filterModel(inner, event); v != nil {
			return is(!*v)
		}
		return nil
	}
	return conditionModel(n, event)
}

func conditionModel(n map[string]any, event any) *bool {
	is := func(b bool) *bool { return &b }
	field, found := event, true
	for _, name := range strings.Split(n["path"].(string), ".") {
		object, ok := field.(map[string]any)
		if field, found = object[name]; !ok || !found {
			found = false
			break
		}
	}
	value := n["value"]
	if n["op"] == "exists" {
		return is(found == value.(bool))
	}
	if !found {
		return nil
	}
	text, isText := field.(string)
	switch op := n["op"].(string); op {
	case "eq":
		return is(modelEqual(field, value))
	case "ne":
		return is(!modelEqual(field, value))
	case "in", "not_in":
		found := slices.ContainsFunc(value.([]any), func(v any) bool { return modelEqual(field, v) })
		return is(found == (op == "in"))
	case "starts_with":
		return is(isText && strings.HasPrefix(text, value.(string)))
	case "contains":
		part, ok := value.(string)
		list, _ := field.([]any)
		return is(isText && ok && strings.Contains(text, part) ||
			slices.ContainsFunc(list, func(v any) bool { return modelEqual(v, value) }))
	default:
		sign, ok := modelCompare(field, value)
		return is(ok && map[string]bool{"gt": sign > 0, "gte": sign >= 0, "lt": sign < 0, "lte": sign <= 0}[op])
	}
}

func modelEqual(a, b any) bool {
	switch a := a.(type) {
	case json.Number:
		n, ok := b.(json.Number)
		return ok && fraction(a).Cmp(fraction(n)) == 0
	case []any, map[string]any:
		return false
	}
	return a == b
}

func fraction(n json.Number) *big.Rat {
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		panic(n)
	}
	return r
}

var utc = regexp.MustCompile(`T.*(Z|\+00:00)$`)

func modelCompare(a, b any) (int, bool) {
	if x, ok := a.(json.Number); ok {
		y, ok := b.(json.Number)
		if !ok {
			return 0, false
		}
		return fraction(x).Cmp(fraction(y)), true
	}
	x, ok := a.(string)
	y, also := b.(string)
	if !ok || !also || !utc.MatchString(x) || !utc.MatchString(y) {
		return 0, false
	}
	s, err := time.Parse(time.RFC3339Nano, x)
	u, err2 := time.Parse(time.RFC3339Nano, y)
	return s.Compare(u), err == nil && err2 == nil
}

var (
	filterNumbers = []string{"0", "-0", "0.0", "0e7", "1", "1.0", "10e-1", "100e-2", "-1", "9007199254740992", "9007199254740993",
		"9007199254740993.0", "9.007199254740993e15", "-9007199254740993", "0.1", "1e-1", "0.10000000000000000001", "1E2", "100", "99.99",
		"1e308", "1e307", "-1e308", "1e-308", "123456789012345678901234567890", "12345678901234567890123456789e1", "2.5", "25e-1"}
	filterTexts = []string{`""`, `"a"`, `"ab"`, `"b"`, `"\u0061b"`, `"é"`, `"\u00e9"`, `"1"`, `"2026-03-14T08:24:48Z"`, `"2026-03-14T08:24:48.000Z"`,
		`"2026-03-14T08:24:48+00:00"`, `"2026-03-14T08:24:48.1Z"`, `"2026-03-14T08:24:48+02:00"`, `"2026-03-14"`, `"1999-12-31T23:59:59Z"`, `"😀\n\\\""`}
	filterTimes = filterTexts[8:12]
)

func pick(r *rand.Rand, of []string) string { return of[r.IntN(len(of))] }

func randomScalar(r *rand.Rand) string {
	switch r.IntN(7) {
	case 0:
		return pick(r, []string{"null", "true", "false"})
	case 1, 2, 3:
		return pick(r, filterNumbers)
	}
	return pick(r, filterTexts)
}

func randomValue(r *rand.Rand, depth int) string {
	kind := r.IntN(6)
	if depth == 0 || kind > 2 {
		return randomScalar(r)
	}
	var parts []string
	if kind == 0 {
		for range r.IntN(4) {
			parts = append(parts, randomValue(r, depth-1))
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	for _, name := range []string{"a", "b", "c"} {
		if r.IntN(3) > 0 {
			parts = append(parts, fmt.Sprintf("%q:%s", name, randomValue(r, depth-1)))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func randomFilter(r *rand.Rand, depth int) string {
	switch kind := r.IntN(6); {
	case depth == 3 || depth > 0 && kind > 1:
		return randomCondition(r)
	case kind%3 == 0:
		return `{"not":` + randomFilter(r, depth+1) + "}"
	default:
		var parts []string
		for range 1 + r.IntN(2) {
			parts = append(parts, randomFilter(r, depth+1))
		}
		return fmt.Sprintf(`{"%s": [%s]}`, pick(r, []string{"all", "any"}), strings.Join(parts, ","))
	}
}

func randomCondition(r *rand.Rand) string {
	op := FilterOps[r.IntN(len(FilterOps))]
	value := randomScalar(r)
	switch op {
	case OpIn, OpNotIn:
		value = "[" + value + "," + randomScalar(r) + "]"
	case OpExists:
		value = pick(r, []string{"true", "false"})
	case OpStartsWith:
		value = pick(r, filterTexts)
	case OpGreater, OpGreaterEqual, OpLess, OpLessEqual:
		value = pick(r, append(slices.Clone(filterNumbers), filterTimes...))
	}
	return fmt.Sprintf(`{"value":%s, "op":"%s","path":"%s"}`, value, op, pick(r, []string{"a", "b", "c", "a.a", "a.b", "b.a", "a.b.c", "c.c"}))
}

// TestFilterModel compares filters with the model, on random filters and events.
func TestFilterModel(t *testing.T) {
	seed, n := rand.Uint64(), 1_000_000
	if testing.Short() {
		n = 20_000
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var fields Fields
	matched := make(map[FilterOp]int)
	for range n {
		text, event := randomFilter(r, 0), []byte(randomValue(r, 3))
		f, err := ParseFilter([]byte(text), nil, "filter")
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, text, err)
		}
		var d document
		if err := d.parse(event, ""); err != nil {
			t.Fatal(err)
		}
		value := d.any(0)
		if err := d.parse([]byte(text), ""); err != nil {
			t.Fatal(err)
		}
		v := filterModel(d.any(0), value)
		fields.Parse(event)
		if got, want := f.Match(&fields), v != nil && *v; got != want {
			t.Fatalf("seed %d: %s of %s: got %t, want %t", seed, text, event, got, want)
		} else if got {
			for _, op := range FilterOps {
				if strings.Contains(text, `"`+string(op)+`"`) {
					matched[op]++
				}
			}
		}
		again, err := ParseFilter([]byte(f.JSON()), nil, "filter")
		if err != nil || !SameFilter(f, again) || again.Match(&fields) != f.Match(&fields) {
			t.Fatalf("seed %d: %s became %s: %v", seed, text, f.JSON(), err)
		}
	}
	for _, op := range FilterOps {
		if matched[op] < n/1000 {
			t.Errorf("seed %d: %s matched only %d times: the test says little", seed, op, matched[op])
		}
	}
}

// Conditions on a field of a valid event must be allowed, and an allowed condition stays allowed when
// the schema changes in a way that the API accepts. So no change of an event type leaves a filter
// behind.
func TestFilterSchema(t *testing.T) {
	allowed, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		old := drawRoot(t)
		after := mutate(t, old, rapid.IntRange(1, 3).Draw(t, "mutations"))
		before, now := compiled(t, old), compiled(t, after)
		if before == nil || now == nil {
			return
		}
		was, is := &EventType{Name: "x", schema: before}, &EventType{Name: "x", schema: now}
		instance := decoded(t, marshal(drawInstance(t, old, 3)))
		if _, ok := instance.(map[string]any); ok && before.Validate(instance) == nil {
			for _, condition := range conditionsOn(instance, nil) {
				if _, err := ParseFilter([]byte(`{"all":[`+condition+`]}`), was, "filter"); err != nil {
					t.Fatalf("%s\n of %s\n is refused under %s\n%v", condition, marshal(instance), marshal(old), err)
				}
			}
		}
		compatible := CompareSchemas(marshal(old), marshal(after)) == nil
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 8 {
			f := randomFilter(r, 0)
			if _, err := ParseFilter([]byte(f), was, "filter"); err != nil {
				refused++
				continue
			}
			allowed++
			if _, err := ParseFilter([]byte(f), is, "filter"); compatible && err != nil {
				t.Fatalf("%s\n is allowed under %s\nbut not under %s\n%v", f, marshal(old), marshal(after), err)
			}
		}
	})
	if !testing.Short() && (allowed < 100 || refused < 100) {
		t.Errorf("%d filters were allowed and %d refused: the test says little", allowed, refused)
	}
}

// conditionsOn returns conditions that the fields of an object meet.
func conditionsOn(value any, path []string) (all []string) {
	at := strings.Join(path, ".")
	add := func(op FilterOp, value any) {
		all = append(all, fmt.Sprintf(`{"path":%q,"op":%q,"value":%s}`, at, op, marshal(value)))
	}
	if path != nil {
		add(OpExists, true)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			all = append(all, conditionsOn(member, append(slices.Clone(path), name))...)
		}
	case []any:
		for _, element := range v {
			switch element.(type) {
			case []any, map[string]any:
			default:
				add(OpContains, element)
			}
		}
	default:
		add(OpEqual, v)
		add(OpIn, []any{v})
		switch v.(type) {
		case json.Number:
			add(OpGreaterEqual, v)
		case string:
			add(OpStartsWith, v)
			add(OpContains, v)
		}
	}
	return all
}

func TestParseFilter(t *testing.T) {
	catalog := testCatalog(t)
	content, _ := catalog.Type("content_published")
	notification, _ := catalog.Type("user_notification_created")
	eq := `{"path":"content_id","op":"eq","value":7}`
	for _, test := range []struct {
		of     *EventType
		filter string
		want   string // the JSON; or an error: code, parameter and a part of its detail
	}{
		{content, ` { "all" : [ ` + eq + ` ] } `, `{"all":[` + eq + `]}`},
		{content, `{"not":` + eq + `}`, `{"not":` + eq + `}`},
		{content, `{"any":[{"op":"in","path":"content_id","value":[1, 2.50]}]}`, `{"any":[{"path":"content_id","op":"in","value":[1,2.50]}]}`},
		{content, `{"all":[{"any":[{"not":` + eq + `}]}]}`, `{"all":[{"any":[{"not":` + eq + `}]}]}`},
		{content, `{"all":[{"op":"exists","path":"content_id"}]}`, `{"all":[{"path":"content_id","op":"exists","value":true}]}`},
		{content, `{"all":[{"op":"gt","path":"timestamp","value":"2026-03-14T08:24:48Z"}]}`,
			`{"all":[{"path":"timestamp","op":"gt","value":"2026-03-14T08:24:48Z"}]}`},
		{notification, `{"all":[{"path":"details.anything.at_all","op":"contains","value":true}]}`,
			`{"all":[{"path":"details.anything.at_all","op":"contains","value":true}]}`},

		{content, `7`, "invalid_type filter must be a condition"},
		{content, `[]`, "invalid_type filter must be a condition"},
		{content, `{}`, "required filter.path is required"},
		{content, eq, `invalid_type filter must be {"all": […]}`},
		{content, `{"all":[]}`, "invalid_type filter.all must be an array of at least one"},
		{content, `{"all":` + eq + `}`, "invalid_type filter.all must be an array"},
		{content, `{"not":[` + eq + `]}`, "invalid_type filter.not must be a condition"},
		{content, `{"all":[` + eq + `],"any":[` + eq + `]}`, `invalid_value filter must have "all" only`},
		{content, `{"all":[{"any":[{"not":{"not":` + eq + `}}]}]}`, "too_many filter.all[0].any[0].not must be a condition: groups can be nested"},
		{content, `{"all":[` + strings.Repeat(eq+",", 16) + eq + `]}`, "too_many filter must have at most 16 conditions"},
		{content, `{"all":[{"path":"title","op":"eq","value":"` + strings.Repeat("a", 4096) + `"}]}`, "too_long filter must be at most 4096 bytes"},
		{content, `{"all":[{"path":"content_id","op":"eq","value":7,"of":1}]}`, "unknown_field filter.all[0].of is not a field of a condition"},
		{content, `{"all":[{"path":"content_id","op":"like","value":7}]}`, "invalid_value filter.all[0].op must be one of eq, ne"},
		{content, `{"all":[{"path":"content_id","op":"eq"}]}`, "required filter.all[0].value is required"},
		{content, `{"all":[{"op":"eq","value":1}]}`, "required filter.all[0].path is required"},
		{content, `{"all":[{"path":"a..b","op":"eq","value":1}]}`, "invalid_format filter.all[0].path must be names"},
		{content, `{"all":[{"path":"content_id","op":"eq","value":[1]}]}`, "invalid_type filter.all[0].value must be a string, a number"},
		{content, `{"all":[{"path":"content_id","op":"in","value":1}]}`, "invalid_type filter.all[0].value must be an array of at least one value"},
		{content, `{"all":[{"path":"content_id","op":"in","value":[1,{}]}]}`, "invalid_type filter.all[0].value[1] must be a string"},
		{content, `{"all":[{"path":"content_id","op":"exists","value":1}]}`, "invalid_type filter.all[0].value must be true or false"},
		{content, `{"all":[{"path":"timestamp","op":"gt","value":"yesterday"}]}`, "invalid_type filter.all[0].value must be a number, or a timestamp"},

		{content, `{"all":[{"path":"contentid","op":"eq","value":7}]}`, "unknown_field filter.all[0].path contentid is not a field of content_published; it has: "},
		{content, `{"all":[{"path":"content_id.x","op":"eq","value":7}]}`, "unknown_field filter.all[0].path x is not a field of content_id; it has none"},
		{content, `{"all":[{"path":"content_id","op":"starts_with","value":"7"}]}`,
			"invalid_value filter.all[0].op is not possible for content_id, which is an integer; use eq, ne, in, not_in, gt, gte, lt, lte, exists"},
		{content, `{"all":[{"path":"content_id","op":"eq","value":"7"}]}`, "invalid_type filter.all[0].value must be an integer"},
		{content, `{"all":[{"path":"content_id","op":"in","value":[7,null]}]}`, "invalid_type filter.all[0].value[1] must be an integer"},
		{content, `{"all":[{"path":"content_id","op":"gt","value":"2026-03-14T08:24:48Z"}]}`, "invalid_type filter.all[0].value must be an integer"},
		{content, `{"all":[{"path":"timestamp","op":"gt","value":7}]}`, "invalid_type filter.all[0].value must be a timestamp"},
		{notification, `{"all":[{"path":"label","op":"gt","value":7}]}`, "invalid_value filter.all[0].op is not possible for label, which is a string"},
	} {
		f, err := ParseFilter([]byte(test.filter), test.of, "filter")
		got := ""
		if err == nil {
			got = f.JSON()
		} else if len(err.Validations) > 0 {
			v := err.Validations[0]
			got = v.Code + " " + v.Parameter + " " + v.Detail
		}
		if got != test.want && (err == nil || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s:\n got %s\nwant %s", test.filter, got, test.want)
		}
	}
}

// Filters are stored and shown as they were sent, with characters that HTML gives a meaning.
func TestFiltersText(t *testing.T) {
	const text = `{"a.b":{"all":[{"path":"x","op":"eq","value":"<b> & \u003c"}]},"c":{"not":{"path":"y","op":"exists","value":false}}}`
	all, faults := ParseFilters(text, "filters")
	want := strings.Replace(text, `\u003c`, "<", 1)
	if faults != nil || all.String() != want {
		t.Fatalf("got %s, %v; want %s", all, faults, want)
	}
	if again, faults := ParseFilters(all.Indented(), "filters"); faults != nil || !again.Equal(all) {
		t.Errorf("from %s: got %s, %v", all.Indented(), again, faults)
	}
	if none := Filters(nil); none.String() != "" || none.Indented() != "" {
		t.Error("no filters have a text")
	}
}

func FuzzParseFilter(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20 {
		f.Add([]byte(randomFilter(r, 0)), []byte(randomValue(r, 3)))
	}
	f.Fuzz(func(t *testing.T, filter, event []byte) {
		parsed, err := ParseFilter(filter, nil, "filter")
		if err != nil {
			return
		}
		var fields Fields
		fields.Parse(event)
		again, err := ParseFilter([]byte(parsed.JSON()), nil, "filter")
		if err != nil || !SameFilter(parsed, again) || parsed.Match(&fields) != again.Match(&fields) {
			t.Fatalf("%s became %s: %v", filter, parsed.JSON(), err)
		}
	})
}

func BenchmarkFilter(b *testing.B) {
	event := []byte(`{"id":"019ddcfe-0f37-4cf8-8f53-1f6be7c2d3c7","timestamp":"2026-03-14T08:24:48.644Z","name":"content_published",` +
		`"version":"1","content_id":4711,"channel_id":12,"title":"Hello"}`)
	f, err := ParseFilter([]byte(`{"all":[{"path":"channel_id","op":"eq","value":13},{"path":"content_id","op":"gt","value":100}]}`), nil, "")
	if err != nil {
		b.Fatal(err)
	}
	b.Run("parse", func(b *testing.B) {
		var fields Fields
		for b.Loop() {
			fields.Parse(event)
		}
	})
	b.Run("match", func(b *testing.B) {
		var fields Fields
		fields.Parse(event)
		b.ReportAllocs()
		for b.Loop() {
			if f.Match(&fields) {
				b.Fatal("matched")
			}
		}
	})
}

// TestFaultsNameTheEvent checks that what is wrong begins with the whole name of an event, by which forms
// find its filter.
func TestFaultsNameTheEvent(t *testing.T) {
	name := strings.Repeat("a", MaxEventName)
	_, faults := ParseFilters(`{"`+name+`":{"all":[]},"a b":{"all":[]}}`, "filters")
	if len(faults) != 2 || faults[0].Parameter != "filters."+name+".all" || faults[1].Parameter != "filters.a b.all" {
		t.Errorf("got %+v", faults)
	}
}
