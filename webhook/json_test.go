package webhook

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestMalformedJSON(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct{ raw, want string }{
		{"", "line 1, column 1: unexpected end"},
		{" \n ", "line 2, column 2: unexpected end"},
		{"{", "line 1, column 2: unexpected end"},
		{`{"a"`, "line 1, column 5: unexpected end"},
		{`{"a":`, "line 1, column 6: unexpected end"},
		{`{"a":1`, "line 1, column 7: unexpected end"},
		{`{"a":1,`, "line 1, column 8: unexpected end"},
		{`"abc`, "line 1, column 5: unexpected end"},
		{"tru", "line 1, column 4: unexpected end"},
		{"-", "line 1, column 2: unexpected end"},
		{"{\n  \"ä\": 1,\n}", "line 2, column 9: unexpected ','"},
		{"[1,]", "line 1, column 3: unexpected ','"},
		{"[1 2]", "line 1, column 4: unexpected '2'"},
		{"[1}", "line 1, column 3: unexpected '}'"},
		{`{"a" 1}`, "line 1, column 6: unexpected '1'"},
		{`{'a':1}`, `line 1, column 2: unexpected '\''`},
		{`{a:1}`, "line 1, column 2: unexpected 'a'"},
		{`{1:1}`, "line 1, column 2: a property name must be a string in double quotes"},
		{`{null:1}`, "line 1, column 2: a property name must be a string in double quotes"},
		{"nul!", "line 1, column 4: unexpected '!'"},
		{"True", "line 1, column 1: unexpected 'T'"},
		{"NaN", "line 1, column 1: unexpected 'N'"},
		{"01", "line 1, column 2: nothing may follow the value"},
		{"+1", "line 1, column 1: unexpected '+'"},
		{".5", "line 1, column 1: unexpected '.'"},
		{"1.", "line 1, column 3: unexpected end"},
		{"1.x", "line 1, column 3: unexpected 'x'"},
		{"0x10", "line 1, column 2: nothing may follow the value"},
		{"{} {}", "line 1, column 4: nothing may follow the value"},
		{"{}\n]", "line 2, column 1: nothing may follow the value"},
		{"{}\x00", "line 1, column 3: nothing may follow the value"},
		{"// comment\n{}", "line 1, column 1: unexpected '/'"},
		{"\ufeff{}", `line 1, column 1: unexpected '\ufeff'`},
		{"\"a\tb\"", `line 1, column 3: unexpected '\t'`},
		{"\"a\nb\"", `line 1, column 3: unexpected '\n'`},
		{`"\x41"`, "line 1, column 2: invalid escape or lone surrogate"},
		{`"\u12g4"`, "line 1, column 2: invalid escape or lone surrogate"},
		{`"ab\ud800"`, "line 1, column 4: invalid escape or lone surrogate"},
		{`"\udc00\ud800"`, "line 1, column 2: invalid escape or lone surrogate"},
		{`"\ud800\u0041"`, "line 1, column 2: invalid escape or lone surrogate"},
		{"\"\n\xff\"", "line 2, column 1: invalid UTF-8"},
		{"{\"\xc3\x28\":1}", "line 1, column 3: invalid UTF-8"},
		{"\"\xed\xa0\x80\"", "line 1, column 2: invalid UTF-8"}, // a surrogate in UTF-8
		{deep(33), "line 1, column 33: nested deeper than 32 levels"},
		{deep(200000), "line 1, column 33: nested deeper than 32 levels"},
		{strings.Repeat(`{"a":`, 33) + "1" + strings.Repeat("}", 33), "line 1, column 161: nested deeper than 32 levels"},
	}
	var d document // reused: an error must not persist
	for _, test := range tests {
		for at, begin := range map[string]string{"": "The body", "events[3]": "events[3]"} {
			err := d.parse([]byte(test.raw), at)
			where := test.want
			if at != "" && !strings.Contains(test.raw, "\n") { // only the caller knows the line
				_, where, _ = strings.Cut(where, ", ")
			}
			want := begin + " is not valid JSON: " + where + "."
			if err == nil || err.Code != CodeInvalid || err.Error() != want {
				t.Errorf("%.60q:\ngot  %v\nwant %v", test.raw, err, want)
			}
		}
	}
	for _, raw := range []string{"{}", " [ ] ", deep(32), `"\ud83d\ude00"`, "\"\x7f\u2028\"", "-0.0e-1", `{"a":1,"A":2}`, "null", `""`,
		`{"":{}}`} {
		if err := d.parse([]byte(raw), ""); err != nil {
			t.Errorf("%.60q: %v", raw, err)
		}
	}
	if err := d.parse(make([]byte, MaxBodyBytes+1), ""); err == nil || err.Code != CodeTooLarge {
		t.Errorf("body too large: got %v", err)
	}
}

func TestDuplicatesAndNumbers(t *testing.T) {
	digits := strings.Repeat("1", 101)
	tests := []struct{ raw, code, parameter string }{
		{`{"a":1,"a":1}`, InvalidDuplicate, "a"},
		{`{"a":1,"\u0061":1}`, InvalidDuplicate, "a"},
		{`{"x":[0,{"b":{"c":1,"c":2}}]}`, InvalidDuplicate, "x[1].b.c"},
		{`[[{"7":1,"7":1}]]`, InvalidDuplicate, "[0][0].7"},
		{`{"":1,"":1}`, InvalidDuplicate, `""`},
		{`{"a/b~":{"c":1,"c":1}}`, InvalidDuplicate, "a/b~.c"},
		{`{"` + strings.Repeat("ä", 70) + `":1,"` + strings.Repeat("ä", 70) + `":1}`, InvalidDuplicate, strings.Repeat("ä", 64) + "…"},
		{`{"a":[0,1e999999999]}`, InvalidValue, "a[1]"},
		{`{"a":{"7":1E-999999999}}`, InvalidValue, "a.7"},
		{`{"a":1e309}`, InvalidValue, "a"},
		{`{"a":9999e308}`, InvalidValue, "a"},
		{`{"a":1e99999999999999999999}`, InvalidValue, "a"},
		{`{"a":` + digits + `}`, InvalidValue, "a"},
		{`{"a":0.` + digits + `}`, InvalidValue, "a"},
	}
	for _, test := range tests {
		var d document
		if err := d.parse([]byte(test.raw), ""); !only(err, test.code, test.parameter) {
			t.Errorf("%s: got %v, want %s for %q", test.raw, err, test.code, test.parameter)
		}
		if err, want := d.parse([]byte(test.raw), "events[3]"), "events[3]"; err == nil ||
			!strings.HasPrefix(err.Validations[0].Parameter, want) {
			t.Errorf("%s: got %v, want a parameter in %s", test.raw, err, want)
		}
	}
	for _, raw := range []string{"1e308", "-1E+308", "1e-308", digits[:100], "0." + digits[:98], "-9223372036854775808"} {
		if err := new(document).parse([]byte(raw), ""); err != nil {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

// The error of a number says what is wrong with it.
func TestNumberFaults(t *testing.T) {
	for raw, want := range map[string]string{
		"1e-400":                       "an exponent of at least -308",
		"1e-99999999999999999999":      "an exponent of at least -308",
		"-1e400":                       "between -1e308 and 1e308",
		"1e99999999999999999999":       "between -1e308 and 1e308",
		strings.Repeat("1", 101):       "at most 100 characters",
		strings.Repeat("1", 101) + "e": "",
	} {
		err := new(document).parse([]byte(raw), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
}

func TestAppendCompact(t *testing.T) {
	const raw = " { \"a \\\" b\" :\t[ 1.50 , \"\\u0041 \\\\\" , { } , -0 ,\r\n true ] , \"\" : null } "
	const want = `{"a \" b":[1.50,"\u0041 \\",{},-0,true],"":null}`
	if got := string(appendCompact([]byte("x"), []byte(raw))); got != "x"+want {
		t.Errorf("got %s, want x%s", got, want)
	}
}

func TestDocument(t *testing.T) {
	const raw = `{"a":[1,{"b":"\u00e4"},[],2.5e1],"c":{},"d":null,"e":[true,false]}`
	var d document
	if err := d.parse([]byte(raw), ""); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(d.any(0))
	if want := `{"a":[1,{"b":"ä"},[],2.5e1],"c":{},"d":null,"e":[true,false]}`; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
	var names []string
	for name := range d.members(0) {
		names = append(names, string(d.text(name)))
	}
	if got := strings.Join(names, ""); got != "acde" {
		t.Errorf("got members %s, want acde", got)
	}
	for range d.elements(0) {
		t.Error("elements of an object: got some, want none")
	}
}

func TestMerge(t *testing.T) {
	v := []Validation{{Parameter: "url"}, {Parameter: "events[1]"}}
	var got []string
	for _, v := range merge(v, []Validation{{Parameter: "url"}, {Parameter: "events[1].name"}, {Parameter: "events[10].name"},
		{Parameter: "urls"}, {Parameter: "urls"}}) {
		got = append(got, v.Parameter)
	}
	if got, want := strings.Join(got, " "), "url events[1] events[10].name urls urls"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
