package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestFieldIs(t *testing.T) {
	const event = `{"id": "x", "user_id": 4711, "big": 12345678901234567890, "on": true, "none": null,
		"user": {"name": "ada"}, "half": 0.50, "kilo": 1e3, "members": [{"id": 1}, {"id": 2}], "ids": [7, "8"]}`
	for where, want := range map[string]bool{
		"user_id=4711": true, "user_id=471": false, "big=12345678901234567890": true, "on=true": true, "none=": false, "none=null": false,
		"user_id=4711.0": true, "user_id=4.711e3": true, "user_id=4711 ": false, "user_id=": false, "user_id=1e999999999": false,
		"big=12345678901234567891": false, "half=.5": false, "half=0.5": true, "kilo=1000": true, "kilo=1E+3": true,
		"user.name=ada": true, "user=ada": false, "user.name.first=ada": false, "members.id=2": true, "members.id=3": false,
		"ids=7": true, "ids=8": true, "ids=9": false, "missing=": false, "id=x": true,
	} {
		d := json.NewDecoder(strings.NewReader(event))
		d.UseNumber()
		var fields any
		if err := d.Decode(&fields); err != nil {
			t.Fatal(err)
		}
		field, value, _ := strings.Cut(where, "=")
		if got := fieldIs(fields, strings.Split(field, "."), value); got != want {
			t.Errorf("%s: got %t", where, got)
		}
	}
}
