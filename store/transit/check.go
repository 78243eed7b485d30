package transit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"service/webhook"
)

// check returns what is wrong with a value, "" for nothing.
type check func(g *Gate, v any) string

// null allows NULL, and the values that c allows.
func null(c check) check {
	return func(g *Gate, v any) string {
		if v == nil {
			return ""
		}
		return c(g, v)
	}
}

// text allows texts of up to most bytes for which ok, unless it is nil, returns true.
func text(most int, ok func(string) bool) check {
	return func(_ *Gate, v any) string {
		s, is := v.(string)
		switch {
		case !is:
			return "must be a text"
		case len(s) > most:
			return fmt.Sprintf("must be at most %d bytes", most)
		case !utf8.ValidString(s) || strings.ContainsRune(s, 0):
			return "must be UTF-8 without the character 0"
		case ok != nil && !ok(s):
			return "does not have the form that the service writes"
		}
		return ""
	}
}

// line allows texts in one line.
func line(most int) check {
	return text(most, func(s string) bool {
		return !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 })
	})
}

func enum(values ...string) check {
	return text(64, func(s string) bool { return slices.Contains(values, s) })
}

// id allows the ID of a record.
var id = text(36, webhook.IsID)

// shortID allows the stored form of a delivery ID.
var shortID = text(22, func(s string) bool {
	return len(s) == 22 && !strings.ContainsFunc(s, func(c rune) bool {
		return c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
})

// identifier allows the identifier of a program or a user, which the operator chooses.
var identifier = text(64, func(s string) bool { return webhook.CheckIdentifier("", s) == nil })

// owner allows the ID of the program.
func owner(g *Gate, v any) string {
	if v != g.program {
		return "must be the program of the file"
	}
	return ""
}

// integer allows integers from least to most.
func integer(least, most int64) check {
	return func(_ *Gate, v any) string {
		if n, is := v.(int64); !is || n < least || n > most {
			return fmt.Sprintf("must be an integer from %d to %d", least, most)
		}
		return ""
	}
}

// biggest is the highest number of a row, and the highest count.
const biggest = 1 << 53

var (
	count  = integer(0, biggest)
	number = integer(1, biggest)
	flag   = integer(0, 1)
	status = integer(100, 999) // of HTTP
	micros = integer(0, int64(24*time.Hour/time.Microsecond))
)

// moment allows a time at most a day in the future: clocks differ, and retries wait.
func moment(g *Gate, v any) string {
	if n, is := v.(int64); !is || n < 0 || n > g.now+day {
		return "must be a time in Unix milliseconds, at most a day in the future"
	}
	return ""
}

// expiry allows the expiry of a record that is valid for a day.
func expiry(g *Gate, v any) string {
	if n, is := v.(int64); !is || n < 0 || n > g.now+2*day {
		return "must be a time in Unix milliseconds, at most two days in the future"
	}
	return ""
}

// counted allows a counted_at before the export.
func counted(g *Gate, v any) string {
	if n, is := v.(int64); !is || n < -biggest || n > g.counted {
		return "must be in whole seconds of the time that retention counts, and not after the export"
	}
	return ""
}

const day = int64(24 * time.Hour / time.Millisecond)

// anyTime allows any time until the year 9999.
var anyTime = integer(0, 253402300799999)

func real(least, most float64) check {
	return func(_ *Gate, v any) string {
		n, is := v.(float64)
		if i, whole := v.(int64); whole {
			n, is = float64(i), true
		}
		if !is || math.IsNaN(n) || n < least || n > most {
			return fmt.Sprintf("must be a number from %g to %g", least, most)
		}
		return ""
	}
}

// blob allows blobs of least to most bytes.
func blob(least, most int) check {
	return func(_ *Gate, v any) string {
		if b, is := v.([]byte); !is || len(b) < least || len(b) > most {
			return fmt.Sprintf("must be %d to %d bytes", least, most)
		}
		return ""
	}
}

// document allows the JSON of a T without any other members, as a text or as bytes.
func document[T any](most int, ok func(*Gate, T) bool) check {
	return func(g *Gate, v any) string {
		var b []byte
		switch v := v.(type) {
		case string:
			b = []byte(v)
		case []byte:
			b = v
		default:
			return "must be JSON"
		}
		if len(b) > most || !utf8.Valid(b) {
			return fmt.Sprintf("must be JSON of at most %d bytes in UTF-8", most)
		}
		var value T
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&value); err != nil {
			return "must be the JSON that the service writes"
		}
		if _, err := d.Token(); err != io.EOF || ok != nil && !ok(g, value) {
			return "must be the JSON that the service writes"
		}
		return ""
	}
}

// name allows the name of an event type, which may not exist here any more.
var name = text(webhook.MaxEventName, webhook.IsEventName)

// names allows a JSON array of names of event types.
func names(least, most int) check {
	return document(64<<10, func(_ *Gate, all []string) bool {
		return all != nil && len(all) >= least && len(all) <= most &&
			!slices.ContainsFunc(all, func(s string) bool { return !webhook.IsEventName(s) })
	})
}

// filter allows the filter of an event type, which may not exist here.
var filter = document(2*webhook.MaxFilterBytes, func(_ *Gate, f *webhook.EventFilter) bool { return f != nil })

// filters allows the filters of a subscription.
var filters = document(2*webhook.MaxFilterBytes*webhook.MaxSubscriptionEvents, func(_ *Gate, all map[string]*webhook.EventFilter) bool {
	for name, f := range all {
		if !webhook.IsEventName(name) || f == nil {
			return false
		}
	}
	return len(all) > 0 && len(all) <= webhook.MaxSubscriptionEvents
})

// headers allows the static headers of a subscription.
var headers = document(64<<10, func(_ *Gate, all []webhook.Header) bool {
	sorted := slices.IsSortedFunc(all, func(a, b webhook.Header) int { return strings.Compare(a.Name, b.Name) })
	return len(all) > 0 && sorted && webhook.CheckHeaders(all) == nil
})

// namesOfHeaders returns the names of headers as JSON.
func namesOfHeaders(text []byte) string {
	var all []webhook.Header
	if json.Unmarshal(text, &all) != nil {
		return "[]"
	}
	names, err := json.Marshal(webhook.HeaderNames(all))
	if err != nil {
		return "[]"
	}
	return string(names)
}

// counts allows a JSON object with counts.
var counts = document(64<<10, func(_ *Gate, all map[string]int64) bool {
	for key, n := range all {
		if len(key) > 64 || n < 0 || n > biggest {
			return false
		}
	}
	return true
})

// rules allow every URL that some installation allows.
var rules = webhook.SubscriptionRules{AllowHTTP: true, Destinations: anywhere()}

func anywhere() webhook.Destinations {
	all, err := webhook.ParseDestinations([]string{"0.0.0.0/0", "::/0"})
	if err != nil {
		panic(err)
	}
	return all
}

var url = text(webhook.MaxURLBytes, func(s string) bool { return rules.CheckURL(s) == nil })

// known allows values in a set that earlier rows have filled.
func known(what string, has func(g *Gate, v any) bool) check {
	return func(g *Gate, v any) string {
		if !has(g, v) {
			return "must be " + what + " of the file"
		}
		return ""
	}
}

func numberIn(of func(*Gate) *ranges) func(*Gate, any) bool {
	return func(g *Gate, v any) bool {
		n, is := v.(int64)
		return is && of(g).has(n)
	}
}

var (
	subscription = known("a subscription", func(g *Gate, v any) bool {
		s, is := v.(string)
		_, has := g.subscriptions[s]
		return is && has
	})
	subscriptionNum = known("the num of a subscription", func(g *Gate, v any) bool {
		n, is := v.(int64)
		_, has := g.nums[n]
		return is && has
	})
	token    = known("a token", func(g *Gate, v any) bool { s, is := v.(string); return is && g.tokens[s] })
	delivery = known("the num of a delivery", numberIn(func(g *Gate) *ranges { return &g.deliveries }))
	incident = known("the num of an incident", numberIn(func(g *Gate) *ranges { return &g.incidents }))
	run      = known("the num of a bulk run", numberIn(func(g *Gate) *ranges { return &g.runs }))
)

// reached allows a number up to the last of a set, including 0.
func reached(last func(*Gate) int64) check {
	return func(g *Gate, v any) string {
		if n, is := v.(int64); !is || n < 0 || n > last(g) {
			return "must be at most the last number of the file"
		}
		return ""
	}
}

var (
	reachedSeq      = reached(func(g *Gate) int64 { return g.seq })
	reachedDelivery = reached(func(g *Gate) int64 { return g.deliveries.last() })
)

// or allows the values that one of two checks allows.
func or(a, b check) check {
	return func(g *Gate, v any) string {
		if a(g, v) == "" {
			return ""
		}
		return b(g, v)
	}
}

var empty = enum("")
