package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	testID   = "0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5"
	testTime = "2026-03-14T08:24:48.644Z"
)

// A notification always has an object as details, even if its publisher omitted
// them.
func TestDetailsDefault(t *testing.T) {
	c := testCatalog(t)
	const fields = `{"id":"0198f6a2-7c1e-7d4b-9a41-3f6be7c2d1e5","name":"user_notification_created","version":"1",` +
		`"notification_id":1,"user_id":2,"acknowledged":false,"label":"l","text":"t","category":`
	for given, want := range map[string]string{
		`"bootstrap"}`:                         `"category":"bootstrap","details":{}}`,
		`"bootstrap","details":{}}`:            `"category":"bootstrap","details":{}}`,
		`"service"}`:                           `"category":"service","details":{}}`,
		`"service","details":{"message":"m"}}`: `"category":"service","details":{"message":"m"}}`,
		`"unknown"}`:                           `"category":"unknown","details":{}}`,
	} {
		e, err := c.NewEvent([]byte(fields+given), "", time.Now())
		if err != nil || !strings.HasSuffix(string(e.JSON), want) {
			t.Errorf("%s: got %s (%v), want it to end with %s", given, e.JSON, err, want)
		}
	}
	if _, err := c.NewEvent([]byte(fields+`"like"}`), "", time.Now()); err == nil {
		t.Error("got a like without details accepted")
	}

	// An event stored before details were filled in is still the same.
	again, err := c.NewEvent([]byte(fields+`"bootstrap"}`), "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	stored := again
	stored.JSON = []byte(strings.Replace(string(again.JSON), `,"details":{}`, "", 1))
	if !SameEvent(&stored, &again) || !SameEvent(&again, &again) {
		t.Error("SameEvent = false for an event published again after an upgrade")
	}
	stored.JSON = []byte(strings.Replace(string(again.JSON), `"details":{}`, `"details":{"a":1}`, 1))
	if SameEvent(&stored, &again) {
		t.Error("SameEvent = true for other details")
	}
}

func TestEventCommonFields(t *testing.T) {
	c := testCatalog(t)
	tests := []struct{ raw, code, parameter string }{
		{`{"version":"1","content_id":1}`, InvalidRequired, "name"},
		{`{"name":null,"version":"1","content_id":1}`, InvalidType, "name"},
		{`{"name":5,"version":"1","content_id":1}`, InvalidType, "name"},
		{`{"name":"","version":"1","content_id":1}`, InvalidUnknownEvent, "name"},
		{`{"name":"Content_deleted","version":"1","content_id":1}`, InvalidUnknownEvent, "name"},
		{`{"name":"content_deleted ","version":"1","content_id":1}`, InvalidUnknownEvent, "name"},
		{`{"name":"` + strings.Repeat("x", 10000) + `","version":"1"}`, InvalidUnknownEvent, "name"},
		{`{"name":"ping","version":"1"}`, InvalidValue, "name"},
		{`{"name":"content_deleted","name":"content_deleted","version":"1","content_id":1}`, InvalidDuplicate, "name"},
		{`{"name":"content_deleted","content_id":1}`, InvalidRequired, "version"},
		{`{"name":"content_deleted","version":1,"content_id":1}`, InvalidType, "version"},
		{`{"name":"content_deleted","version":null,"content_id":1}`, InvalidType, "version"},
		{`{"name":"content_deleted","version":"2","content_id":1}`, InvalidValue, "version"},
		{`{"name":"content_deleted","version":"1.0","content_id":1}`, InvalidValue, "version"},
		{`{"name":"content_deleted","version":"1","version":"1","content_id":1}`, InvalidDuplicate, "version"},
		{`{"id":null,"name":"content_deleted","version":"1","content_id":1}`, InvalidType, "id"},
		{`{"id":"","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "id"},
		{`{"id":"5","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "id"},
		{`{"id":"{` + testID + `}","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "id"},
		{`{"id":"urn:uuid:` + testID + `","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "id"},
		{`{"id":"` + strings.ReplaceAll(testID, "-", "") + `","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "id"},
		{`{"id":"` + testID + `","id":"` + testID + `","name":"content_deleted","version":"1","content_id":1}`, InvalidDuplicate, "id"},
		{`{"timestamp":5,"name":"content_deleted","version":"1","content_id":1}`, InvalidType, "timestamp"},
		{`{"timestamp":"now","name":"content_deleted","version":"1","content_id":1}`, InvalidFormat, "timestamp"},
		{`{"timestamp":"","timestamp":"","name":"content_deleted","version":"1","content_id":1}`, InvalidDuplicate, "timestamp"},
		{`{"content_id":1,"content_id":1,"name":"content_deleted","version":"1"}`, InvalidDuplicate, "content_id"},
		{`[]`, InvalidType, WholeBody},
		{`null`, InvalidType, WholeBody},
		{`"content_deleted"`, InvalidType, WholeBody},
		{strings.Repeat(" ", MaxEventBytes+1), InvalidTooLarge, WholeBody},
	}
	for _, test := range tests {
		e, err := c.NewEvent([]byte(test.raw), "", testNow)
		if !only(err, test.code, test.parameter) {
			t.Errorf("%.200s: got %v, want %s for %s", test.raw, err, test.code, test.parameter)
		}
		if !reflect.DeepEqual(e, Event{}) {
			t.Errorf("%.200s: got an event with the error: %+v", test.raw, e)
		}
		want := "events[7]"
		if test.parameter != WholeBody {
			want += "." + test.parameter
		}
		if _, err := c.NewEvent([]byte(test.raw), "events[7]", testNow); !only(err, test.code, want) {
			t.Errorf("%.200s: got %v, want %s for %s", test.raw, err, test.code, want)
		}
	}

	_, err := c.NewEvent([]byte(`{"id":5,"timestamp":"x","name":"content_deleted","version":2,"content_id":"1","x":1}`), "", testNow)
	var got []string
	for _, v := range err.Validations {
		got = append(got, v.Parameter+" "+v.Code)
	}
	want := "id invalid_type, timestamp invalid_format, version invalid_type, content_id invalid_type, x unknown_field"
	if strings.Join(got, ", ") != want {
		t.Errorf("got errors %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestTimestamp(t *testing.T) {
	for s, want := range map[string]bool{
		testTime:                                 true,
		"2026-03-14T08:24:48Z":                   true,
		"2026-03-14T08:24:48+00:00":              true,
		"2026-03-14T08:24:48.1+00:00":            true,
		"2026-03-14T08:24:48.123456789Z":         true,
		"2024-02-29T23:59:59Z":                   true,
		"2026-03-14T08:24:48.1234567890Z":        false,
		"2026-03-14T08:24:48.Z":                  false,
		"2026-03-14T08:24:48,5Z":                 false,
		"2026-03-14T08:24:48":                    false,
		"2026-03-14T08:24:48+01:00":              false,
		"2026-03-14T08:24:48-00:00":              false,
		"2026-03-14T08:24:48+0000":               false,
		"2026-03-14T08:24:48ZZ":                  false,
		"2026-03-14T08:24:48z":                   false,
		"2026-03-14t08:24:48Z":                   false,
		"2026-03-14 08:24:48Z":                   false,
		"2026-03-14T8:24:48Z":                    false,
		"2026-03-14T08:24Z":                      false,
		"2026-03-14":                             false,
		"2026-02-29T00:00:00Z":                   false,
		"2026-13-01T00:00:00Z":                   false,
		"2026-03-14T24:00:00Z":                   false,
		"2026-03-14T23:59:60Z":                   false,
		"+12026-03-14T08:24:48Z":                 false,
		"1773476688":                             false,
		"":                                       false,
		"２026-03-14T08:24:48Z":                   false,
		"2026-03-14T08:24:48." + "1\u0660" + "Z": false,
	} {
		if got := isTimestamp([]byte(s)); got != want {
			t.Errorf("isTimestamp(%q) = %t, want %t", s, got, want)
		}
	}
}

func TestEventJSON(t *testing.T) {
	c := testCatalog(t)
	tests := []struct{ raw, want string }{
		{ // common fields first, the others in the publisher's order and spelling
			` { "text" : "a \u00e4\/ b" , "label":"", "version":"1","details":{ "z" : 1.50, "a":[ 1e2 , -0 ] , "":null},` + "\n" +
				`"category":"other","acknowledged":true,"user_id":-0,"timestamp":"2026-03-14T08:24:48+00:00","notification_id":9007199254740993,` +
				`"name":"user_notification_\u0063reated","id":"` + strings.ToUpper(testID) + `"}` + "\r\n",
			`{"id":"` + testID + `","timestamp":"2026-03-14T08:24:48+00:00","name":"user_notification_created","version":"1",` +
				`"text":"a \u00e4\/ b","label":"","details":{"z":1.50,"a":[1e2,-0],"":null},"category":"other","acknowledged":true,` +
				`"user_id":-0,"notification_id":9007199254740993}`,
		},
		{
			`{"c\u006fntent_id":1,"id":"` + testID + `","name":"content_deleted","version":"1"}`,
			`{"id":"` + testID + `","timestamp":"` + testTime + `","name":"content_deleted","version":"1","c\u006fntent_id":1}`,
		},
	}
	for _, test := range tests {
		raw := []byte(test.raw)
		e, err := c.NewEvent(raw, "", testNow)
		if err != nil {
			t.Errorf("%s: %v", test.raw, err)
			continue
		}
		clear(raw) // the event must not share memory with raw
		if string(e.JSON) != test.want {
			t.Errorf("got  %s\nwant %s", e.JSON, test.want)
		}
		given := strings.Contains(test.raw, "timestamp")
		if e.ID != testID || e.Version != "1" || e.TimestampGiven != given || !e.ReceivedAt.Equal(testNow) || !c.Has(e.Name) {
			t.Errorf("%s: got %+v", test.raw, e)
		}
	}

	const bare = `{"name":"content_deleted","version":"1","content_id":1}`
	a, errA := c.NewEvent([]byte(bare), "", testNow)
	b, errB := c.NewEvent([]byte(bare), "", testNow)
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if a.ID == b.ID || !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(a.ID) || a.Timestamp != testTime ||
		a.TimestampGiven {
		t.Errorf("got %+v and %+v, want generated ids and timestamps", a, b)
	}
}

// An event of the maximum size is valid; one byte more is not.
func TestEventSize(t *testing.T) {
	c := testCatalog(t)
	event := func(size int) []byte {
		head, tail := `{"name":"channel_created","version":"1","channel_id":1,"channel_name":"`, `"}`
		return []byte(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
	}
	if _, err := c.NewEvent(event(MaxEventBytes), "", testNow); err != nil {
		t.Errorf("%d bytes: %v", MaxEventBytes, err)
	}
	if _, err := c.NewEvent(event(MaxEventBytes+1), "", testNow); !only(err, InvalidTooLarge, WholeBody) {
		t.Errorf("one byte more: got %v", err)
	}
	batch := fmt.Appendf(nil, `{"events":[%s,%s]}`, event(100), event(MaxEventBytes+1))
	if _, _, err := c.NewEvents(batch, testNow); !only(err, InvalidTooLarge, "events[1]") {
		t.Errorf("in a batch: got %v", err)
	}
}

// The nesting limit applies to an event, wherever it is in the request.
func TestNesting(t *testing.T) {
	c := testCatalog(t)
	for levels, want := range map[int]bool{MaxJSONDepth - 1: false, MaxJSONDepth: true} {
		raw := `{"name":"content_deleted","version":"1","content_id":1,"details":` +
			strings.Repeat("[", levels) + strings.Repeat("]", levels) + `}`
		_, alone := c.NewEvent([]byte(raw), "events[0]", testNow)
		_, _, single := c.NewEvents([]byte(raw), testNow)
		_, _, batch := c.NewEvents([]byte(`{"events":[`+raw+`]}`), testNow)
		for name, err := range map[string]*Error{"a line": alone, "a body": single, "a batch": batch} {
			if got := err != nil && strings.Contains(err.Error(), "nested deeper than 32"); got != want {
				t.Errorf("%d levels in %s: got %v, want too deep: %t", levels, name, err, want)
			}
		}
	}
}

func TestNewEvents(t *testing.T) {
	c := testCatalog(t)
	const good = `{"name":"content_deleted","version":"1","content_id":1}`
	many := func(n int) string { return `{"events":[` + strings.TrimSuffix(strings.Repeat(good+",", n), ",") + `]}` }
	for raw, want := range map[string]int{good: 1, many(1): 1, many(2): 2, many(MaxPublishEvents): MaxPublishEvents} {
		events, batch, err := c.NewEvents([]byte(raw), testNow)
		if err != nil || len(events) != want || batch != (raw != good) {
			t.Errorf("%.80s: got %d, %t, %v, want %d", raw, len(events), batch, err, want)
		}
		for _, e := range events {
			if !json.Valid(e.JSON) || e.ID == "" {
				t.Errorf("%.80s: got %s", raw, e.JSON)
			}
		}
	}
	for _, raw := range []string{`[]`, `[` + good + `]`, `null`, `"events"`, `5`} {
		if _, _, err := c.NewEvents([]byte(raw), testNow); err == nil || err.Code != CodeInvalid ||
			err.Error() != "The body must be a JSON object." {
			t.Errorf("%s: got %v, want an error: must be an object", raw, err)
		}
	}
	tests := []struct{ raw, code, parameter string }{
		{`{"events":[]}`, InvalidRequired, "events"},
		{`{"events":{}}`, InvalidType, "events"},
		{`{"events":null}`, InvalidType, "events"},
		{`{"events":[` + good + `],"more":1}`, InvalidUnknownField, "more"},
		{`{"events":[],"events":[]}`, InvalidDuplicate, "events"},
		{`{"events":[` + good + `,5]}`, InvalidType, "events[1]"},
		{`{"events":[` + good + `,{"name":"content_deleted","version":"1","content_id":1,"content_id":2}]}`, InvalidDuplicate,
			"events[1].content_id"},
		{`{"events":[` + good + `,{"name":"content_deleted","version":"1","content_id":1e999999999}]}`, InvalidValue, "events[1].content_id"},
		{`{"events":[{"name":"ping","version":"1"},` + good + `]}`, InvalidValue, "events[0].name"},
		{`{"name":"content_deleted","version":"1","content_id":1,"events":[]}`, InvalidUnknownField, "events"},
		{many(MaxPublishEvents + 1), InvalidTooMany, "events"},
	}
	for _, test := range tests {
		events, _, err := c.NewEvents([]byte(test.raw), testNow)
		if !only(err, test.code, test.parameter) || events != nil {
			t.Errorf("%.200s: got %d events, %v, want %s for %s", test.raw, len(events), err, test.code, test.parameter)
		}
	}
	if _, _, err := c.NewEvents([]byte(`{"events":[`+good+`,]}`), testNow); err == nil || len(err.Validations) != 0 ||
		!strings.Contains(err.Detail, "line 1, column 67") {
		t.Errorf("malformed: got %v", err)
	}
	_, _, err := c.NewEvents([]byte(`{"events":[{},{"name":"content_deleted","version":"1"}]}`), testNow)
	if err == nil || len(err.Validations) != 3 || err.Validations[2].Parameter != "events[1].content_id" {
		t.Errorf("got %v, want the errors of all events", err)
	}
}

func TestSameEvent(t *testing.T) {
	c := testCatalog(t)
	const stamped = `"timestamp":"` + testTime + `",`
	base := `{"id":"` + testID + `",` + stamped + `"name":"user_notification_created","version":"1","notification_id":1,"user_id":2,` +
		`"category":"other","acknowledged":true,"label":"ä/","text":"t","details":{"a":1,"b":[1,2]}}`
	change := func(old, new string) string {
		if !strings.Contains(base, old) {
			t.Fatalf("%s not found", old)
		}
		return strings.Replace(base, old, new, 1)
	}
	tests := []struct {
		stored, again string
		want          bool
	}{
		{base, base, true},
		{base, change(`"user_id":2,"category":"other"`, ` "category" : "other", "user_id":2`), true},
		{base, change(`"label":"ä/"`, `"l\u0061bel":"\u00E4\/"`), true},
		{base, change(`{"a":1,"b":[1,2]}`, `{"b":[1,2],"a":1}`), true},
		{base, change(testID, strings.ToUpper(testID)), true},
		{base, change(stamped, ""), true}, // no timestamp the second time
		{change(stamped, ""), change(stamped, ""), true},
		{base, change(stamped+`"name":"user_notification_created","version":"1","notification_id":1`,
			`"notification_id":1,"name":"user_notification_created","version":"1"`), true},
		{base, change(`48.644Z`, `48.645Z`), false},
		{change(stamped, ""), change("08:24", "09:24"), false}, // another timestamp, only the second time
		{base, change(`"user_id":2`, `"user_id":3`), false},
		{base, change(`[1,2]`, `[2,1]`), false},
		{base, change(`"a":1`, `"a":1.0`), false},
		{base, change(`"a":1`, `"a":9007199254740993`), false},
		{change(`"a":1`, `"a":9007199254740992`), change(`"a":1`, `"a":9007199254740993`), false},
		{base, change(`"a":1,`, ``), false},
		{change(`"a":1,`, ``), base, false},
		{base, strings.Replace(change("created", "updated"), stamped, "", 1), false},
		{base, strings.Replace(change(`"user_id":2`, `"user_id":3`), stamped, "", 1), false},
		{base, strings.Replace(change("d1e5", "d1e6"), stamped, "", 1), false},
		{base, change("d1e5", "d1e6"), false},
	}
	for i, test := range tests {
		stored, err := c.NewEvent([]byte(test.stored), "", testNow)
		if err != nil {
			t.Fatal(err)
		}
		again, err := c.NewEvent([]byte(test.again), "", testNow.Add(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		stored.TimestampGiven = false // not stored
		if got := SameEvent(&stored, &again); got != test.want {
			t.Errorf("%d: got %t, want %t\n%s\n%s", i, got, test.want, stored.JSON, again.JSON)
		}
	}
}

// checkErrorText checks that an error about an event says what is wrong, and where.
func checkErrorText(t *testing.T, err *Error) {
	t.Helper()
	if err.Code != CodeInvalid || err.Detail == "" {
		t.Fatalf("got an error without a detail: %#v", err)
	}
	for _, v := range err.Validations {
		if v.Code == "" || v.Detail == "" || !strings.HasPrefix(v.Parameter, "events[0]") {
			t.Fatalf("got an incomplete validation: %#v", v)
		}
	}
}

// checkRoundTrip checks that the JSON of an event is valid, and that parsing it
// gives the same event.
func checkRoundTrip(t *testing.T, c *Catalog, e *Event) {
	t.Helper()
	if !json.Valid(e.JSON) {
		t.Fatalf("got invalid JSON: %s", e.JSON)
	}
	again, err := c.NewEvent(e.JSON, "", testNow.Add(time.Hour))
	if err != nil || !again.TimestampGiven || again.ID != e.ID || again.Timestamp != e.Timestamp || !bytes.Equal(again.JSON, e.JSON) {
		t.Fatalf("got another event from its own JSON: %v\n%s\n%s", err, e.JSON, again.JSON)
	}
	if !SameEvent(e, e) || !SameEvent(e, &again) || !SameEvent(&again, e) {
		t.Fatalf("SameEvent = false for the same event: %s", e.JSON)
	}
}

func FuzzNewEvent(f *testing.F) {
	quick, slow := testCatalog(f), slowCatalog(f)
	for _, s := range samples(f, quick) {
		raw, err := json.Marshal(s.event)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"name":"content_deleted","version":"1","content_id":1.0}`))
	f.Add([]byte(`{"name":"content_deleted","version":"1","content_id":1e999999999}`))
	f.Add([]byte(`{"name":"content_deleted","version":"1","content_id":1,"content_id":1}`))
	f.Add([]byte(`{"events":[{"name":"content_deleted","version":"1","content_id":"\ud800"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := quick.NewEvent(raw, "events[0]", testNow)
		if _, want := slow.NewEvent(raw, "events[0]", testNow); !reflect.DeepEqual(err, want) {
			t.Fatalf("the acceptor and the library disagree: %v, %v", err, want)
		}
		batch, _, batchErr := quick.NewEvents(fmt.Appendf(nil, `{"events":[%s]}`, raw), testNow)
		if err != nil {
			checkErrorText(t, err)
			return
		}
		if batchErr != nil || len(batch) != 1 || len(batch[0].JSON) != len(e.JSON) {
			t.Fatalf("got it accepted alone but not in a batch: %v", batchErr)
		}
		if len(e.JSON) > len(raw)+120 {
			t.Fatalf("got an event above the maximum size: %s", e.JSON)
		}
		checkRoundTrip(t, quick, &e)
	})
}

// An error that omits some validations says so.
func TestValidationLimit(t *testing.T) {
	c := testCatalog(t)
	many := strings.Repeat(`"x",`, 299) + `"x"`
	single := `{"name":"content_published","version":"1","content_id":1,"channel_ids":[` + many + `]}`
	if _, err := c.NewEvent([]byte(single), "", time.Now()); err == nil || len(err.Validations) != maxValidations ||
		!strings.Contains(err.Detail, "300 parameters are not valid; these are the first 100.") {
		t.Errorf("event with 300 errors: got %v", err)
	}
	batch := `{"events":[` + strings.Repeat(`{},`, 99) + `{}]}`
	if _, _, err := c.NewEvents([]byte(batch), time.Now()); err == nil || len(err.Validations) != maxValidations ||
		!strings.Contains(err.Detail, "200 parameters are not valid; these are the first 100.") {
		t.Errorf("batch with 200 errors: got %v", err)
	}
}
