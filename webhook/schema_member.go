package webhook

import (
	"maps"
	"reflect"
	"slices"
)

// rest returns the schema of the members or elements that no other keyword of n names,
// and whether there is one. keyword is additionalProperties or items; unevaluated… means
// the same if nothing else in the schema can evaluate them.
func (n schemaNode) rest(keyword string) (schemaNode, bool) {
	if n.has(keyword) {
		return n.sub(keyword), true
	}
	if other := unevaluatedFor(keyword); n.has(other) && !n.hasAny(inPlaceKeywords...) && !(keyword == "items" && n.has("contains")) {
		return n.sub(other), true
	}
	return schemaNode{value: true}, false
}

// unevaluatedFor returns the keyword for what is not evaluated.
func unevaluatedFor(keyword string) string {
	if keyword == "items" {
		return "unevaluatedItems"
	}
	return "unevaluatedProperties"
}

// members compares the keywords about the members of an object.
func (c *schemaComparison) members(o, n schemaNode) bool {
	ok := c.properties(o, n)
	before, after := o.named("properties"), n.named("properties")
	patternsBefore, patterns := o.named("patternProperties"), n.named("patternProperties")
	others, _ := o.rest("additionalProperties")
	known := sortedNodes(before, patternsBefore)
	for _, pattern := range slices.Sorted(maps.Keys(patterns)) {
		if c.steps < 0 {
			return false
		}
		if was, found := patternsBefore[pattern]; found {
			ok = c.child(was, patterns[pattern]) && ok
		} else {
			ok = c.newPattern(known, others, patterns[pattern]) && ok
		}
	}
	rest, closed := n.rest("additionalProperties")
	if !closed {
		return c.unevaluatedMembers(o, n) && ok
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, found := after[name]; found {
			continue
		}
		if rest.value == false && before[name].value != false {
			ok = c.fail(before[name].at, "was removed")
		} else {
			ok = c.child(before[name], rest) && ok
		}
	}
	for _, pattern := range slices.Sorted(maps.Keys(patternsBefore)) {
		if _, found := patterns[pattern]; !found {
			ok = c.child(patternsBefore[pattern], rest) && ok
		}
	}
	return c.child(others, rest) && ok
}

// newPattern compares the schema of a new pattern with those of all members that it may apply to.
func (c *schemaComparison) newPattern(known []schemaNode, others, n schemaNode) bool {
	ok := c.child(others, n)
	for _, was := range known {
		if c.steps < 0 {
			return false
		}
		ok = c.child(was, n) && ok
	}
	return ok
}

// sortedNodes returns the schemas of several keywords in a fixed order.
func sortedNodes(all ...map[string]schemaNode) (nodes []schemaNode) {
	for _, m := range all {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			nodes = append(nodes, m[name])
		}
	}
	return nodes
}

// properties compares the properties of the new schema.
func (c *schemaComparison) properties(o, n schemaNode) bool {
	ok := true
	before, after := o.named("properties"), n.named("properties")
	for _, name := range slices.Sorted(maps.Keys(after)) {
		was, found := before[name]
		if !found {
			was = c.unnamed(o, name)
		}
		ok = c.child(was, after[name]) && ok
	}
	return ok
}

// unnamed returns the schema under which the old schema allowed a property that is not
// one of its properties.
func (c *schemaComparison) unnamed(o schemaNode, name string) schemaNode {
	if o.has("patternProperties") {
		return schemaNode{value: true} // may match
	}
	if rest, ok := o.rest("additionalProperties"); ok {
		return rest
	}
	if o.object()["unevaluatedProperties"] == false && !c.mentions(o, name, make(map[string]bool)) {
		return schemaNode{value: false}
	}
	return schemaNode{value: true}
}

// mentions reports whether a part of an old schema may evaluate a property.
func (c *schemaComparison) mentions(o schemaNode, name string, visited map[string]bool) bool {
	if visited[o.at] {
		return false
	}
	visited[o.at] = true
	if !c.more() {
		return true
	}
	parts := sortedNodes(o.named("dependentSchemas"), o.named("dependencies"))
	for _, keyword := range schemaLists[:3] {
		parts = append(parts, o.subs(keyword)...)
	}
	for _, keyword := range []string{"if", "then", "else"} {
		if o.has(keyword) {
			parts = append(parts, o.sub(keyword))
		}
	}
	if ref, ok := o.object()["$ref"]; ok {
		to, ok := resolve(c.old, ref)
		if !ok {
			return true
		}
		parts = append(parts, to)
	}
	for _, part := range parts {
		properties, _ := part.object()["properties"].(map[string]any)
		_, named := properties[name]
		if named || part.hasAny("patternProperties", "additionalProperties", "unevaluatedProperties") || c.mentions(part, name, visited) {
			return true
		}
	}
	return false
}

// unevaluatedMembers compares unevaluatedProperties of a schema with other keywords that
// evaluate properties. Those must be the same, so that no property becomes unevaluated.
func (c *schemaComparison) unevaluatedMembers(o, n schemaNode) bool {
	const keyword = "unevaluatedProperties"
	if !n.has(keyword) {
		return true
	}
	at := n.at + "/" + keyword
	if !o.has(keyword) || o.has("additionalProperties") || !c.sameInPlace(o, n) {
		return c.fail(at, "is new, or the schema changed in a way that cannot be compared")
	}
	ok := true
	for _, k := range []string{"properties", "patternProperties"} {
		after := n.named(k)
		for name, was := range o.named(k) {
			if _, found := after[name]; !found {
				ok = c.fail(was.at, "was removed")
			}
		}
	}
	return c.child(o.sub(keyword), n.sub(keyword)) && ok
}

// sameInPlace reports whether the parts of two schemas for the same instance are the
// same.
func (c *schemaComparison) sameInPlace(o, n schemaNode) bool {
	for _, keyword := range inPlaceKeywords {
		if o.has(keyword) != n.has(keyword) || o.has(keyword) && !c.sameKeyword(o, n, keyword, make(map[string]bool)) {
			return false
		}
	}
	return true
}

// elements compares the keywords about the elements of an array.
func (c *schemaComparison) elements(o, n schemaNode) bool {
	ok := true
	before, after := o.subs("prefixItems"), n.subs("prefixItems")
	others, _ := o.rest("items")
	for i, is := range after {
		was := others
		if i < len(before) {
			was = before[i]
		}
		ok = c.child(was, is) && ok
	}
	if rest, found := n.rest("items"); found {
		for i := len(after); i < len(before); i++ {
			ok = c.child(before[i], rest) && ok
		}
		return c.child(others, rest) && ok
	}
	if !n.has("unevaluatedItems") {
		return ok
	}
	for _, keyword := range []string{"prefixItems", "items", "contains", "minContains", "maxContains", "unevaluatedItems"} {
		if o.has(keyword) != n.has(keyword) || o.has(keyword) && !c.sameKeyword(o, n, keyword, make(map[string]bool)) {
			return c.fail(n.at+"/unevaluatedItems", "is new, or the schema changed in a way that cannot be compared")
		}
	}
	return (c.sameInPlace(o, n) || c.fail(n.at+"/unevaluatedItems", "is used with keywords that changed")) && ok
}

// same reports whether two schemas mean the same. visited has the pairs that have been
// compared, or are being compared.
func (c *schemaComparison) same(o, n schemaNode, visited map[string]bool) bool {
	if !c.more() {
		return false
	}
	before, after := o.object(), n.object()
	if before == nil || after == nil {
		return before == nil && after == nil && reflect.DeepEqual(o.value, n.value)
	}
	pair := o.at + "\x00" + n.at
	if visited[pair] {
		return true
	}
	visited[pair] = true
	for keyword := range before {
		if !isAnnotation(keyword) && !n.has(keyword) {
			return false
		}
	}
	for keyword := range after {
		if !isAnnotation(keyword) && (!o.has(keyword) || !c.sameKeyword(o, n, keyword, visited)) {
			return false
		}
	}
	return true
}

// sameKeyword reports whether a keyword that both schemas have means the same in both.
func (c *schemaComparison) sameKeyword(o, n schemaNode, keyword string, visited map[string]bool) bool {
	switch {
	case keyword == "$ref":
		from, found := resolve(c.old, o.object()[keyword])
		to, ok := resolve(c.new, n.object()[keyword])
		return found && ok && c.same(from, to, visited)
	case slices.Contains(schemaKeywords, keyword), slices.Contains(unevaluated, keyword):
		return c.same(o.sub(keyword), n.sub(keyword), visited)
	case slices.Contains(schemaLists, keyword):
		return slices.EqualFunc(o.subs(keyword), n.subs(keyword), func(a, b schemaNode) bool { return c.same(a, b, visited) })
	case slices.Contains(schemaMaps, keyword):
		return maps.EqualFunc(o.named(keyword), n.named(keyword), func(a, b schemaNode) bool { return c.same(a, b, visited) })
	}
	return reflect.DeepEqual(o.object()[keyword], n.object()[keyword])
}
