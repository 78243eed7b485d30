package api

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"service/webhook"
)

func TestTagLists(t *testing.T) {
	for value, want := range map[string]*tagList{
		`*`:                     {any: true},
		` * `:                   {any: true},
		`"a"`:                   {strong: []string{`"a"`}},
		`""`:                    {strong: []string{`""`}},
		`"a", W/"b" ,"c,d"`:     {strong: []string{`"a"`, `"c,d"`}, weak: []string{`"b"`}},
		`, ,"a",,`:              {strong: []string{`"a"`}},
		`W/"a"`:                 {weak: []string{`"a"`}},
		``:                      nil,
		`,`:                     nil,
		`a`:                     nil,
		`"a`:                    nil,
		`a"`:                    nil,
		`"a" "b"`:               nil,
		`"a"b`:                  nil,
		`"a b"`:                 nil,
		`w/"a"`:                 nil,
		`W/ "a"`:                nil,
		`*, "a"`:                nil,
		`"a", *`:                nil,
		strings.Repeat(`"`, 99): nil,
	} {
		got, ok := parseTagList(value)
		if ok != (want != nil) || ok && (got.any != want.any || !slices.Equal(got.strong, want.strong) || !slices.Equal(got.weak, want.weak)) {
			t.Errorf("%s: got %+v, %t, want %+v", value, got, ok, want)
		}
	}
}

func FuzzTagLists(f *testing.F) {
	f.Add(`"a", W/"b" ,"c,d", *`)
	f.Fuzz(func(t *testing.T, value string) {
		list, ok := parseTagList(value)
		if ok && !list.any && len(list.strong)+len(list.weak) == 0 {
			t.Errorf("%q is an empty list", value)
		}
	})
}

// Every single record, and the list of event types, has its own strong ETag that works with
// If-None-Match, for GET and HEAD.
func TestSingleRecordsHaveTags(t *testing.T) {
	s := start(t)
	i := s.records()
	tags := make(map[string]string)
	for _, rt := range routes() {
		if rt.method != "GET" || rt.scope == scopeNone || rt.scope == webhook.ScopePlatform {
			continue // a program has statistics, and no tag
		}
		tagged := rt.find != nil && rt.query.list == nil || rt.pattern == "/v2/event_types"
		target := i.path(&rt)
		tag := s.send("GET", target, "").header.Get("Etag")
		if (tag != "") != tagged {
			t.Errorf("%s: got ETag %q", target, tag)
		}
		if !tagged {
			continue
		}
		if other := tags[tag]; other != "" {
			t.Errorf("%s and %s have the same ETag", target, other)
		}
		tags[tag] = target
		checkTag(t, s, target, tag)
	}
	if len(tags) != 8 {
		t.Errorf("%d kinds of responses have tags, want 8", len(tags))
	}
}

// checkTag reads a record with preconditions that name its tag, and others.
func checkTag(t *testing.T, s *service, target, tag string) {
	t.Helper()
	for _, method := range []string{"GET", "HEAD"} {
		for value, want := range map[string]int{
			tag: 304, "W/" + tag: 304, `"x", ` + tag: 304, "*": 304, `"x"`: 200, strings.ToLower(tag) + "x": 400,
		} {
			r := s.send(method, target, "", "If-None-Match", value)
			wantStatus(t, method+" "+target+" If-None-Match "+value, r, want)
			if want < 400 && r.header.Get("Etag") != tag {
				t.Errorf("%s %s: got ETag %q, want %q", method, target, r.header.Get("Etag"), tag)
			}
			if r.header.Get("X-Program-Id") != "acme" || r.header.Get("X-User-Id") != "ada" || r.header.Get("X-Request-Id") == "" ||
				r.header.Get("Cache-Control") != "no-store" {
				t.Errorf("%s %s: response %d lacks headers: %v", method, target, r.status, r.header)
			}
		}
		for value, want := range map[string]int{tag: 200, "*": 200, `"x", ` + tag: 200, `"x"`: 412, "W/" + tag: 412} {
			r := s.send(method, target, "", "If-Match", value)
			wantStatus(t, method+" "+target+" If-Match "+value, r, want)
		}
	}
}

func TestTagsChangeWithTheRecord(t *testing.T) {
	s := start(t)
	target := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	seen := make(map[string]string)
	tag := func(after string) string {
		t.Helper()
		tag := s.send("GET", target, "").header.Get("Etag")
		if before, ok := seen[tag]; ok {
			t.Errorf("the ETag after %s is the same as after %s", after, before)
		}
		seen[tag] = after
		return tag
	}
	tag("the creation")
	for _, body := range []string{`{"description":"a"}`, `{"description":"b"}`, `{"authorization_header":"x"}`,
		`{"authorization_header":"y"}`, `{"authorization_header":"y"}`} {
		wantStatus(t, body, s.send("PUT", target, body), 200)
		tag(body)
	}
	wantStatus(t, "rotate", s.send("POST", target+"/rotate_secret", ""), 200)
	tag("a rotation")
}

func TestConditionalChanges(t *testing.T) {
	s := start(t)
	target := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	tag := s.send("GET", target, "").header.Get("Etag")
	for _, method := range []string{"PUT", "DELETE"} {
		body := ""
		if method == "PUT" {
			body = `{"description":"changed"}`
		}
		for _, headers := range [][]string{
			{"If-Match", `"x"`}, {"If-Match", "W/" + tag}, {"If-None-Match", tag}, {"If-None-Match", "W/" + tag},
			{"If-None-Match", "*"}, {"If-Match", tag, "If-None-Match", tag},
		} {
			wantStatus(t, fmt.Sprint(method, headers), s.send(method, target, body, headers...), 412)
		}
		wantFault(t, method, s.send(method, target, body, "If-Match", "x"), "invalid_format", "If-Match")
		wantFault(t, method, s.send(method, target, body, "If-None-Match", `"x`), "invalid_format", "If-None-Match")
	}
	if now := s.send("GET", target, "").header.Get("Etag"); now != tag {
		t.Error("a rejected request has changed the record")
	}
	wantStatus(t, "*", s.send("PUT", target, `{}`, "If-Match", "*"), 200)
	tag = s.send("GET", target, "").header.Get("Etag")
	wantStatus(t, "its tag", s.send("PUT", target, `{"description":"other"}`, "If-Match", tag, "If-None-Match", `"x"`), 200)
	wantStatus(t, "delete by the tag before", s.send("DELETE", target, "", "If-Match", tag), 412)
	tag = s.send("GET", target, "").header.Get("Etag")
	wantStatus(t, "delete", s.send("DELETE", target, "", "If-Match", tag), 200)
	wantStatus(t, "it is gone", s.send("PUT", target, `{}`, "If-Match", "*"), 404)
}

// Of several concurrent changes with the same If-Match, one succeeds.
func TestConditionalChangesRace(t *testing.T) {
	s := start(t)
	target := "/v2/webhooks/subscriptions/" + s.subscribe("content_updated")
	for round := range 5 {
		tag := s.send("GET", target, "").header.Get("Etag")
		const writers = 16
		var statuses [writers]int
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				statuses[i] = s.send("PUT", target, fmt.Sprintf(`{"description":"round %d, writer %d"}`, round, i), "If-Match", tag).status
			})
		}
		wg.Wait()
		won := slices.Index(statuses[:], 200)
		for i, status := range statuses {
			if status != 200 && status != 412 || status == 200 && i != won {
				t.Fatalf("got %v, want one 200 and the others 412", statuses)
			}
		}
		if r := s.send("GET", target, ""); won < 0 || !strings.Contains(r.body, fmt.Sprintf("writer %d", won)) {
			t.Errorf("writer %d won: %s", won, r.body)
		}
	}
}
