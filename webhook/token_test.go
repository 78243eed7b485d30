package webhook

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestTokenSecret(t *testing.T) {
	for _, prefix := range []string{TokenPrefix, "svc_2_", "svc_eu_", "svc_0123456789abcdef_"} {
		if wrong := CheckTokenPrefix(prefix); wrong != "" {
			t.Errorf("%s: got %q", prefix, wrong)
		}
		secret := NewTokenSecret(prefix)
		if !strings.HasPrefix(secret, prefix) || len(secret) != len(prefix)+46 || strings.Trim(secret[len(prefix):], alphabet) != "" {
			t.Fatalf("got secret %q, want %s and 46 characters", secret, prefix)
		}
		if hash, ok := HashTokenSecret(secret); !ok || hash != sha256.Sum256([]byte(secret)) {
			t.Errorf("%s: got hash %x, %t", prefix, hash, ok)
		}
		if hint := TokenHint(secret); hint != secret[:len(prefix)+6] {
			t.Errorf("got hint %q of a token with %s", hint, prefix)
		}
		checkMistyped(t, secret)
		for _, wrong := range []string{"", prefix, secret[1:], secret[:len(secret)-1], secret + "0", " " + secret, secret + " ",
			strings.ToUpper(secret), "Bearer " + secret, strings.Replace(secret, "svc_", "svc_x_", 1)} {
			if _, ok := HashTokenSecret(wrong); ok {
				t.Errorf("%q: got it accepted", wrong)
			}
		}
	}
	if hint := TokenHint("abc"); hint != "abc" {
		t.Errorf("got hint %q for a short secret", hint)
	}
}

// checkMistyped checks that a mistyped secret is detected without a lookup. The checksum includes the
// label.
func checkMistyped(t *testing.T, secret string) {
	t.Helper()
	for i := range len(secret) {
		for _, c := range []byte("078Zz_ \x00") {
			wrong := []byte(secret)
			wrong[i] = c
			if hash, ok := HashTokenSecret(string(wrong)); secret[i] != c && (ok || hash != [sha256.Size]byte{}) {
				t.Errorf("%q with %q at %d: got it accepted", secret, c, i)
			}
		}
	}
}

func TestTokenPrefixErrors(t *testing.T) {
	for _, prefix := range []string{"", "2", "svc", "svc2_", "svc_2", "svc__", "svc_A_", "svc_a-b_", "svc_a_b_", "svc_é_", "svc_2_ ",
		" svc_2_", "SVC_2_", "svc_0123456789abcdefg_", "svc_2_\n"} {
		wrong, want := CheckTokenPrefix(prefix), "must be svc_, or svc_ and 1 to 16 lower-case letters and digits and an underscore, "
		if !strings.HasPrefix(wrong, want) {
			t.Errorf("%q: got %q, want %q", prefix, wrong, want)
		}
	}
}

// Scanners for leaked secrets compute the checksum, so it must not change.
func TestTokenChecksumIsFixed(t *testing.T) {
	const body = "0123456789abcdefghijABCDEFGHIJ0123456789"
	want := crc32Base62(body)
	if got := tokenChecksum(body); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, ok := HashTokenSecret("svc_" + body + want); !ok {
		t.Error("got a secret with a hand-made checksum rejected")
	}
}

// crc32Base62 is an independent implementation of the checksum, from the definition
// of CRC-32.
func crc32Base62(s string) string {
	crc := uint32(0xffffffff)
	for _, c := range []byte(s) {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320*(crc&1)
		}
	}
	n, sum := ^crc, ""
	for range 6 {
		sum = string(alphabet[n%62]) + sum
		n /= 62
	}
	return sum
}

func TestTokenSecretsDiffer(t *testing.T) {
	seen := make(map[string]bool)
	count := make(map[rune]int)
	for range 2000 {
		secret := NewTokenSecret(TokenPrefix)
		if seen[secret] {
			t.Fatal("got the same secret twice")
		}
		seen[secret] = true
		for _, c := range secret[4:44] {
			count[c]++
		}
	}
	// 80,000 characters, 1,290 of each expected, with a deviation of 36.
	for _, c := range alphabet {
		if n := count[c]; n < 1000 || n > 1580 {
			t.Errorf("got %q %d times in 80000 characters, want a uniform distribution", c, n)
		}
	}
}

func TestTokenValid(t *testing.T) {
	now := testNow
	tests := []struct {
		token Token
		want  bool
	}{
		{Token{}, true},
		{Token{ExpiresAt: now.Add(time.Millisecond)}, true},
		{Token{ExpiresAt: now}, false},
		{Token{ExpiresAt: now.Add(-time.Second)}, false},
		{Token{RevokedAt: now}, false},
		{Token{RevokedAt: now.Add(-time.Hour), ExpiresAt: now.Add(time.Hour)}, false},
	}
	for _, test := range tests {
		if got := test.token.Valid(now); got != test.want {
			t.Errorf("%+v: got %t, want %t", test.token, got, test.want)
		}
	}
}

func TestTokenAllows(t *testing.T) {
	for _, granted := range Scopes() {
		token := Token{Scopes: []Scope{granted}}
		for _, asked := range append(Scopes(), "", "webhooks", "webhooks.*") {
			if got := token.Allows(asked); got != (asked == granted) {
				t.Errorf("token with scope %s: Allows(%q) = %t", granted, asked, got)
			}
		}
	}
	if (&Token{}).Allows(ScopeEventsRead) {
		t.Error("got a scope allowed by a token without scopes")
	}
}

func TestNewTokenCheck(t *testing.T) {
	good := func() NewToken {
		return NewToken{ProgramID: "acme", UserID: "7", Name: "n", Scopes: []Scope{ScopeEventsWrite}, ExpiresAt: testNow.Add(time.Hour)}
	}
	tests := []struct {
		change          func(n *NewToken)
		code, parameter string // "": it passes
	}{
		{func(n *NewToken) {}, "", ""},
		{func(n *NewToken) { n.Name, n.ExpiresAt = "", time.Time{} }, "", ""},
		{func(n *NewToken) { n.Scopes = slices.Clone(Scopes()) }, "", ""},
		{func(n *NewToken) { n.ProgramID = strings.Repeat("a", 64) }, "", ""},
		{func(n *NewToken) { n.ProgramID = "" }, InvalidRequired, "program"},
		{func(n *NewToken) { n.ProgramID = strings.Repeat("a", 65) }, InvalidFormat, "program"},
		{func(n *NewToken) { n.ProgramID = "a b" }, InvalidFormat, "program"},
		{func(n *NewToken) { n.ProgramID = ".a" }, InvalidFormat, "program"},
		{func(n *NewToken) { n.ProgramID = "a\n" }, InvalidFormat, "program"},
		{func(n *NewToken) { n.ProgramID = "a\"" }, InvalidFormat, "program"},
		{func(n *NewToken) { n.ProgramID, n.Scopes = "", []Scope{ScopePlatform} }, "", ""},
		{func(n *NewToken) { n.Scopes = []Scope{ScopePlatform} }, InvalidValue, "program"},
		{func(n *NewToken) { n.ProgramID, n.Scopes = "", []Scope{ScopeMetricsRead} }, "", ""},
		{func(n *NewToken) { n.ProgramID, n.Scopes = "", []Scope{ScopeMetricsRead, ScopeEventsRead} }, InvalidRequired, "program"},
		{func(n *NewToken) { n.UserID = "" }, InvalidRequired, "user"},
		{func(n *NewToken) { n.UserID = "ä" }, InvalidFormat, "user"},
		{func(n *NewToken) { n.UserID = "../7" }, InvalidFormat, "user"},
		{func(n *NewToken) { n.Name = strings.Repeat("n", 200) }, "", ""},
		{func(n *NewToken) { n.Name = strings.Repeat("n", 201) }, InvalidTooLong, "name"},
		{func(n *NewToken) { n.Scopes = nil }, InvalidRequired, "scope"},
		{func(n *NewToken) { n.Scopes = []Scope{"events.wite"} }, InvalidValue, "scope"},
		{func(n *NewToken) { n.Scopes = []Scope{ScopeEventsRead, ScopeEventsRead} }, InvalidDuplicate, "scope"},
		{func(n *NewToken) { n.ExpiresAt = testNow }, InvalidValue, "expires"},
		{func(n *NewToken) { n.ExpiresAt = testNow.Add(-time.Hour) }, InvalidValue, "expires"},
	}
	for i, test := range tests {
		n := good()
		test.change(&n)
		err := n.Check(testNow)
		if test.code == "" && err != nil || test.code != "" && !only(err, test.code, test.parameter) {
			t.Errorf("%d: %+v: got %v, want %q for %q", i, n, err, test.code, test.parameter)
		}
	}
	n := good()
	n.Scopes = []Scope{"x"}
	if err, all := n.Check(testNow), JoinScopes(Scopes(), ", "); err == nil || !strings.Contains(err.Error(), all) {
		t.Errorf("got %v, want the list %s", err, all)
	}
}

// A token in JSON contains no zero times, which would look expired.
func TestTokenJSON(t *testing.T) {
	got, err := json.Marshal(Token{ID: "a", Scopes: []Scope{ScopeEventsRead}, CreatedAt: testNow})
	want := `{"id":"a","hint":"","program_id":"","user_id":"","name":"","scopes":["events.read"],"created_at":"2026-03-14T08:24:48.644Z"}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

// A token of the installation cannot be requested over the API.
func TestParseTokenNeedsAProgram(t *testing.T) {
	body := []byte(`{"user_id": "prometheus", "scopes": ["metrics.read"]}`)
	if _, err := ParseToken(body, "acme", testNow); err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := ParseToken(body, "", testNow); err == nil || err.Validations[0].Parameter != "program_id" {
		t.Errorf("without a program: got %v", err)
	}
}
