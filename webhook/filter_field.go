package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of the fields that a form offers for conditions.
const (
	maxFilterFields = 100
	maxFieldDepth   = 4
)

// FilterField is a field that conditions on the events of a type can have.
type FilterField struct {
	Path  string     `json:"path"`
	Ops   []FilterOp `json:"ops"`
	Kinds []string   `json:"kinds"` // that values can have: null, boolean, number, string

	Values []string `json:"values,omitempty"` // JSON of the values that the field can have, if the schema lists them
}

// FilterFields returns fields that the type's schema names, by name, at most 100 and four deep, without
// those that always have the same value. open says that conditions on other fields are possible.
func (t *EventType) FilterFields() (fields []FilterField, open bool) {
	c := filterCheck{eventType: t, steps: maxFilterSteps}
	var visit func(p place, path []string)
	visit = func(p place, path []string) {
		s := c.shape(p)
		if len(path) > 0 {
			fields = append(fields, FilterField{strings.Join(path, "."), s.ops(), c.scalars(p, s), listedValues(p)})
		}
		if s.kinds&kindObject == 0 {
			return
		}
		names := make(map[string]bool)
		c.names(p, names)
		_, other := c.member(p, "\x00") // stands for any name that the schema does not mention
		open = open || other
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if len(path) == maxFieldDepth || len(fields) == maxFilterFields || name == "" || strings.Contains(name, ".") {
				open = true
				continue
			}
			member, _ := c.member(p, name)
			if !slices.ContainsFunc(member.schemas, func(s *jsonschema.Schema) bool { return s != nil && s.Const != nil }) {
				visit(member, append(slices.Clip(path), name))
			}
		}
	}
	visit(place{schemas: []*jsonschema.Schema{t.schema}}, nil)
	return fields, open
}

// scalars names the kinds of the values that conditions on a place can have.
func (c *filterCheck) scalars(p place, s shape) (kinds []string) {
	if s.kinds&kindArray != 0 {
		s.or(c.shape(c.elements(p)))
	}
	kinds = []string{}
	for _, k := range kindNames {
		if k.kinds&kindScalar != 0 && s.kinds&k.kinds != 0 && k.name != "integer" {
			kinds = append(kinds, k.name)
		}
	}
	return kinds
}

// listedValues returns the scalars that the first enumeration at a place lists, nil for none.
func listedValues(p place) (values []string) {
	for _, s := range p.schemas {
		for ; s != nil; s = s.Ref {
			if s.Enum == nil {
				continue
			}
			for _, value := range s.Enum.Values {
				if text, err := json.Marshal(value); err == nil && kindOfValue(value)&kindScalar != 0 {
					values = append(values, string(text))
				}
			}
			return values
		}
	}
	return nil
}
