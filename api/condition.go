package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"
	"strings"

	"service/webhook"
)

// entityTag returns the strong entity tag (RFC 9110, section 8.8.3) of a single record.
// Two responses have the same tag only if their bodies and revisions are equal.
func (ans *answer) entityTag(body []byte) string {
	h := sha256.New()
	var revision [8]byte
	binary.BigEndian.PutUint64(revision[:], uint64(ans.revision))
	h.Write(revision[:])
	h.Write(body)
	return `"` + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16]) + `"`
}

// conditions are the preconditions of a request (RFC 9110, section 13.1). The zero value
// is always met.
type conditions struct{ match, noneMatch *tagList }

// tagList is the value of If-Match or If-None-Match.
type tagList struct {
	any    bool     // *
	strong []string // with their quotes
	weak   []string // without their W/
}

// conditions reads the preconditions of the request.
func (req *request) conditions() (c conditions, err error) {
	if c.match, err = req.tagList("If-Match"); err != nil {
		return c, err
	}
	c.noneMatch, err = req.tagList("If-None-Match")
	return c, err
}

// tagList reads a header that is * or a list of entity tags; nil if it is absent.
func (req *request) tagList(name string) (*tagList, error) {
	values := req.http.Header[name]
	if values == nil {
		return nil, nil
	}
	list, ok := parseTagList(strings.Join(values, ","))
	if !ok {
		return nil, webhook.Invalid(webhook.Validation{
			Code: webhook.InvalidFormat, Parameter: name,
			Detail: `must be the ETag of an earlier response with its quotes, several separated by commas, or *`,
		})
	}
	return list, nil
}

// parseTagList parses the value of If-Match or If-None-Match (RFC 9110, section 13.1.1).
func parseTagList(s string) (*tagList, bool) {
	const blank = " \t"
	list := &tagList{}
	if strings.Trim(s, blank) == "*" {
		list.any = true
		return list, true
	}
	for {
		s = strings.TrimLeft(s, blank+",") // empty elements are allowed
		if s == "" {
			return list, list.strong != nil || list.weak != nil
		}
		rest, weak := strings.CutPrefix(s, "W/")
		if !strings.HasPrefix(rest, `"`) {
			return nil, false
		}
		end := strings.IndexByte(rest[1:], '"') + 2
		if end == 1 || strings.ContainsAny(rest[:end], blank) {
			return nil, false
		}
		if weak {
			list.weak = append(list.weak, rest[:end])
		} else {
			list.strong = append(list.strong, rest[:end])
		}
		s = strings.TrimLeft(rest[end:], blank)
		if s != "" && s[0] != ',' {
			return nil, false
		}
	}
}

// has reports whether the list contains a tag; with weakly, weak tags match too.
func (l *tagList) has(tag string, weakly bool) bool {
	return l.any || slices.Contains(l.strong, tag) || weakly && slices.Contains(l.weak, tag)
}

// compare reports whether If-None-Match has the tag of the record, which the client of a GET then has
// already. It returns an error if If-Match has not.
func (c conditions) compare(tag string) (unchanged bool, err error) {
	if c.match != nil && !c.match.has(tag, false) {
		return false, changed("If-Match")
	}
	return c.noneMatch != nil && c.noneMatch.has(tag, true), nil
}

// tag returns the entity tag of a response to GET, and empties the body if the client
// already has it.
func (req *request) tag(ans *answer, body *bytes.Buffer) (string, error) {
	conditions, err := req.conditions()
	if err != nil {
		return "", err
	}
	var tag string
	if ans.file != nil {
		tag = ans.file.tag
	} else {
		tag = ans.entityTag(body.Bytes())
	}
	unchanged, err := conditions.compare(tag)
	if unchanged {
		ans.status = http.StatusNotModified
		body.Reset()
	}
	return tag, err
}

// write returns an error if a request that changes the record does not meet its
// preconditions. current returns the response to a GET of the record, read in the write
// that changes it.
func (c conditions) write(current func() (answer, error)) error {
	if c.match == nil && c.noneMatch == nil {
		return nil
	}
	ans, err := current()
	if err != nil {
		return err
	}
	var body bytes.Buffer
	if err := ans.render(&body); err != nil {
		return err
	}
	unchanged, err := c.compare(ans.entityTag(body.Bytes()))
	if unchanged {
		return changed("If-None-Match")
	}
	return err
}

// exists is write for a record without an ETag: * is met if the record exists, and no other
// tag matches it.
func (c conditions) exists(exists bool) error {
	switch {
	case c.match != nil && !(exists && c.match.any):
		return changed("If-Match")
	case c.noneMatch != nil && exists && c.noneMatch.any:
		return changed("If-None-Match")
	}
	return nil
}

// changed returns the 412 for a failed precondition.
func changed(header string) error {
	if header == "If-None-Match" {
		return webhook.NewError(webhook.CodePrecondition, "The record matches If-None-Match. Nothing was changed.")
	}
	return webhook.NewError(webhook.CodePrecondition,
		"The record does not match If-Match: it has changed, or the tag is weak. Read the record again for its current ETag.")
}
