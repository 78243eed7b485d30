package harness

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"strings"
)

// Canary is a secret that must not appear, in any of its spellings, where [Canary.Find] looks.
type Canary struct {
	Name      string
	Spellings map[string][]byte
}

// NewCanary returns a canary of a secret. core is a unique part of it that no escaping changes.
// raw is the decoded secret, if the secret is encoded.
func NewCanary(name, secret, core string, raw []byte) Canary {
	c := Canary{name, make(map[string][]byte)}
	add := func(spelling string, b []byte) {
		if len(b) >= 8 {
			c.Spellings[spelling] = b
		}
	}
	inJSON, err := json.Marshal(secret)
	if err != nil {
		panic(err)
	}
	add("core", []byte(core))
	add("JSON", bytes.Trim(inJSON, `"`))
	add("URL query", []byte(url.QueryEscape(secret)))
	add("URL path", []byte(url.PathEscape(secret)))
	add("HTML", []byte(html.EscapeString(secret)))
	encoded := func(of string, b []byte) {
		add(of+"hex", []byte(hex.EncodeToString(b)))
		add(of+"HEX", []byte(strings.ToUpper(hex.EncodeToString(b))))
		for before := range 3 {
			plain := append(make([]byte, before), b...)
			first := (before*8 + 5) / 6
			add(fmt.Sprintf("%sbase64 %d", of, before), []byte(base64.StdEncoding.EncodeToString(plain[:len(plain)/3*3])[first:]))
			add(fmt.Sprintf("%sbase64 URL %d", of, before), []byte(base64.URLEncoding.EncodeToString(plain[:len(plain)/3*3])[first:]))
		}
	}
	encoded("", []byte(core))
	if raw != nil {
		add("bytes", raw)
		encoded("bytes ", raw)
	}
	return c
}

// RandomHex returns n random hexadecimal characters.
func RandomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)[:n]
}

// Find returns the spelling in which the canary occurs in a text, "" if it does not.
func (c *Canary) Find(in []byte) string {
	for spelling, b := range c.Spellings {
		if bytes.Contains(in, b) {
			return spelling
		}
	}
	return ""
}
