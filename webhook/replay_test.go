package webhook

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// replayNow is the time of the tests.
var replayNow = time.Date(2026, 3, 20, 0, 0, 0, 0, time.UTC)

func TestParseReplay(t *testing.T) {
	sub := &Subscription{Events: []string{"content_published", "content_updated"}}
	day := time.Date(2026, 3, 14, 0, 0, 0, 0, time.UTC)
	for body, want := range map[string]ReplayFields{
		`{"from":"2026-03-14","only":"all"}`: {From: day, Only: ReplayAll},
		`{"from":"2026-03-14T08:24:48.644Z","to":"2026-03-14T10:00:00+01:00","only":"missed","dry_run":true}`: {
			From: time.Date(2026, 3, 14, 8, 24, 48, 644e6, time.UTC), To: time.Date(2026, 3, 14, 9, 0, 0, 1e6,
				time.UTC), Only: ReplayMissed, DryRun: true,
		},
		// A date is a whole day, and both ends are inclusive.
		`{"from":"2026-03-14","to":"2026-03-14","only":"all"}`: {From: day, To: day.AddDate(0, 0, 1), Only: ReplayAll},
		// Rounded up, never earlier than requested.
		`{"from":"2026-03-14T00:00:00.0000001Z","only":"failed","dry_run":false}`: {From: day.Add(time.Millisecond), Only: ReplayFailed},
		`{"from":"2026-03-14","only":"all","events":["content_updated",{"name":"content_published","version":"1"}]}`: {
			From: day, Only: ReplayAll, Events: []string{"content_updated", "content_published"},
		},
	} {
		got, err := ParseReplay([]byte(body), sub, replayNow)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v (%v)\nwant %+v", body, got, err, want)
		}
	}
}

func TestParseReplayErrors(t *testing.T) {
	sub := &Subscription{Events: []string{"content_published", "content_updated"}}
	with := func(field string) string { return `{"from":"2026-03-14","only":"all",` + field + `}` }
	from := func(value string) string { return `{"from":` + value + `,"only":"all"}` }
	for body, want := range map[string]string{
		`{}`:                                         "required from, required only",
		`{"from":"2026-03-14"}`:                      "required only",
		`{"only":"all","from":"","to":1}`:            "invalid_format from, invalid_type to",
		from(`null`):                                 "invalid_type from",
		from(`"2026-03-20T00:00:00.001Z"`):           "invalid_value from",
		from(`1773476688`):                           "invalid_type from",
		from(`"2026-3-14"`):                          "invalid_format from",
		from(`"2026-02-30"`):                         "invalid_format from",
		from(`"2026-03-14T8:00:00Z"`):                "invalid_format from",
		from(`"2026-03-14T08:00:00"`):                "invalid_format from",
		from(`"2026-03-14T08:00:00,Z"`):              "invalid_format from",
		from(`"2026-03-14 08:00:00Z"`):               "invalid_format from",
		from(`"0000-12-31T23:00:00+00:00"`):          "invalid_format from",
		from(`"9999-12-31T23:59:00-01:00"`):          "invalid_format from",
		from(`"yesterday"`):                          "invalid_format from",
		with(`"from_at":"2026-03-14"`):               "unknown_field from_at",
		with(`"to":"2026-03-13"`):                    "invalid_value to",
		with(`"to":null`):                            "invalid_type to",
		with(`"dry_run":"true"`):                     "invalid_type dry_run",
		with(`"dryrun":true`):                        "unknown_field dryrun",
		with(`"From":"2026-03-14"`):                  "unknown_field From",
		with(`"to":"2026-03-15","to":"x"`):           "duplicate to",
		`{"from":"2026-03-14","only":"some"}`:        "invalid_value only",
		`{"from":"2026-03-14","only":""}`:            "invalid_value only",
		`{"from":"2026-03-14","only":true}`:          "invalid_type only",
		with(`"events":"content_updated"`):           "invalid_type events",
		with(`"events":null`):                        "invalid_type events",
		with(`"events":[]`):                          "required events",
		with(`"events":[1,null]`):                    "invalid_type events[0], invalid_type events[1]",
		with(`"events":["", {"name":""}]`):           "invalid_value events[0], invalid_value events[1].name",
		with(`"events":[{"nam":"content_updated"}]`): "unknown_field events[0].nam, required events[0].name",
		with(`"events":["content_updated",{"name":"content_updated"}]`): "duplicate events[1]",
		with(`"events":["channel_created","nothing"]`):                  "invalid_value events[0], invalid_value events[1]",
		with(`"events":[` + strings.Repeat(`"a",`, 64) + `"a"]`):        "",
		with(`"events":["content_updated",` + numbered(64) + `]`):       "too_many events",
		`[]`: "", `null`: "", ``: "", `{"from":"2026-03-14","only":"all"} x`: "",
	} {
		_, err := ParseReplay([]byte(body), sub, replayNow)
		if err == nil || err.Code != CodeInvalid {
			t.Errorf("%s: got %v, want an invalid error", body, err)
			continue
		}
		var got []string
		for _, v := range err.Validations {
			got = append(got, v.Code+" "+v.Parameter)
		}
		if s := strings.Join(got, ", "); want != "" && s != want {
			t.Errorf("%s:\n got %s\nwant %s", body, s, want)
		}
	}
}

func numbered(n int) string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(`"e%d"`, i)
	}
	return strings.Join(names, ",")
}

func FuzzParseReplay(f *testing.F) {
	f.Add(`{"from":"2026-03-14T08:24:48.644Z","to":"2026-03-15","events":["content_updated",{"name":"x"}],"only":"missed","dry_run":true}`)
	sub := &Subscription{Events: []string{"content_updated"}}
	f.Fuzz(func(t *testing.T, body string) {
		fields, err := ParseReplay([]byte(body), sub, replayNow)
		if err == nil && (fields.From.IsZero() || fields.Only == "" || !fields.To.IsZero() && !fields.To.After(fields.From)) {
			t.Errorf("%s: got %+v without an error", body, fields)
		}
	})
}
