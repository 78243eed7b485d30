package harness

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"service/internal/terminal"
)

// HostileTexts are texts that would end a log line, begin a field or control a terminal if written
// unescaped.
var HostileTexts = []string{
	"x\nlevel=ERROR msg=planted", "x\r\n{\"level\":\"ERROR\",\"msg\":\"planted\"}", `x" level=ERROR msg="planted`, `x","msg":"planted`,
	`x\" msg=planted`,
	"x msg=planted", "x=planted", "\x1b[2Jplanted", "planted\x00\x7f\b\t\v", "planted\u009b2J\u0085", "planted\u202e\u2066",
	"planted\u2028\u2029", "planted\xff\xfe", "",
}

// logFields returns the fields of a line in either format.
func logFields(t testing.TB, format, line string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	add := func(name, value string) {
		if _, twice := fields[name]; twice {
			t.Errorf("the field %s occurs twice: %s", name, line)
		}
		fields[name] = value
	}
	if format == "json" {
		d := json.NewDecoder(strings.NewReader(line))
		if tok, err := d.Token(); err != nil || tok != json.Delim('{') {
			t.Fatalf("no object: %s", line)
		}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			var value any
			if err := d.Decode(&value); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			add(name.(string), fmt.Sprint(value))
		}
		if _, err := d.Token(); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if _, err := d.Token(); err != io.EOF {
			t.Errorf("there is more than an object: %s", line)
		}
		return fields
	}
	textFields(t, line, add)
	return fields
}

// textFields calls add for each field of a line of the text format.
func textFields(t testing.TB, line string, add func(name, value string)) {
	t.Helper()
	for rest := line; rest != ""; {
		name, value, ok := strings.Cut(rest, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \"") {
			t.Fatalf("no field at %q: %s", rest, line)
		}
		if strings.HasPrefix(value, `"`) {
			quoted, err := strconv.QuotedPrefix(value)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			text, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			add(name, text)
			rest = strings.TrimPrefix(value[len(quoted):], " ")
			continue
		}
		value, rest, _ = strings.Cut(value, " ")
		add(name, value)
	}
}

// ParseLog parses a log in a format, text or json, and returns the fields of each line. It fails
// the test unless the log consists of whole lines of printable characters.
func ParseLog(t testing.TB, format string, log []byte) (lines []map[string]string) {
	t.Helper()
	if !utf8.Valid(log) || !bytes.HasSuffix(log, []byte("\n")) {
		t.Errorf("the log is no whole lines of UTF-8: %q", log)
	}
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.ContainsFunc(line, terminal.Unsafe) {
			t.Errorf("a line has characters that control a terminal: %q", line)
		}
		lines = append(lines, logFields(t, format, line))
	}
	return lines
}
