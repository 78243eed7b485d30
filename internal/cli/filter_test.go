package cli

import (
	"strings"
	"testing"
)

// TestFilterTestOutput checks the output for a test that ran out of time, and that values of events
// cannot control the terminal.
func TestFilterTestOutput(t *testing.T) {
	const response = `{"data":{"events":[
		{"name":"a","read":1000,"matched":1,"complete":false,"matched_events":[
			{"id":"e","received_at":"2026-03-14T08:24:57.000Z","values":[{"path":"text","value":"` + "\u009b2J\u202e" + `"}]}]},
		{"name":"b","read":0,"matched":0,"complete":false}]}}`
	var out strings.Builder
	if err := new(filterTestCmd).print(&out, []byte(response)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a: 1 of the newest 1000 events would be sent; there was no time to read more\n", "2026-03-14T08:24:57.000Z  e  text ",
		"b: not counted: there was no time to read its events\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q", out.String(), want)
		}
	}
	if strings.ContainsAny(out.String(), "\u009b\u202e") {
		t.Errorf("the terminal gets %q", out.String())
	}
}
