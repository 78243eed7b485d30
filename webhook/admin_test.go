package webhook

import (
	"strings"
	"testing"
	"time"
)

func TestCheckEmail(t *testing.T) {
	for email, want := range map[string]string{
		"ana@example.com": "", "a@b": "", "ana+hook@sub.example.com": "", "o'neil@example.com": "", "ana@localhost": "",
		"":    InvalidRequired,
		"ana": InvalidFormat, "@example.com": InvalidFormat, "ana@": InvalidFormat, "a@b@c": InvalidFormat, "Ana@example.com": InvalidFormat,
		" ana@example.com": InvalidFormat, "ana @example.com": InvalidFormat, "ana@example.com\n": InvalidFormat,
		"ana@exa\x00mple.com": InvalidFormat,
		"änna@example.com":    InvalidFormat, "ana\u202e@example.com": InvalidFormat, "Ana <ana@example.com>": InvalidFormat,
		"a,b@example.com":          InvalidFormat,
		"a%0d%0abcc:x@example.com": InvalidFormat, "a%0abcc@example.com": InvalidFormat, "a@example.com%0d%0a": InvalidFormat,
		"a%0Ab@example.com": InvalidFormat, "a%00@example.com": InvalidFormat, "a%1fb@example.com": InvalidFormat,
		"a%7f@example.com": InvalidFormat, "a%b@example.com": "", "50%@example.com": "", "a%20b@example.com": "",
		"ana@.example.com": InvalidFormat, "ana@example.com.": InvalidFormat,
		strings.Repeat("a", 243) + "@example.com": InvalidTooLong, strings.Repeat("a", 242) + "@example.com": "",
	} {
		got := CheckEmail("email", email)
		switch {
		case want == "" && got != nil:
			t.Errorf("%q: got %v, want none", email, got)
		case want != "" && (len(got) != 1 || got[0].Code != want || got[0].Parameter != "email"):
			t.Errorf("%q: got %v, want %s", email, got, want)
		}
	}
	if got, want := NormalizeEmail(" Ana@Example.COM\n"), "ana@example.com"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckPassword(t *testing.T) {
	for password, want := range map[string]string{
		"correct horse": "", strings.Repeat("ö", 12): "", strings.Repeat("x", 1024): "", " blanks at ends ": "", "123456789012": "",
		"": InvalidRequired, "elevenchars": InvalidValue, strings.Repeat("ö", 11): InvalidValue, strings.Repeat("x", 1025): InvalidTooLong,
		strings.Repeat("ö", 513): InvalidTooLong, "twelve chars\xff": InvalidFormat, "twelve chars\n": InvalidFormat,
		"twelve\x00chars": InvalidFormat,
	} {
		got := CheckPassword("password", password)
		switch {
		case want == "" && got != nil:
			t.Errorf("%q: got %v, want none", password, got)
		case want != "" && (len(got) != 1 || got[0].Code != want):
			t.Errorf("%q: got %v, want %s", password, got, want)
		}
		for _, v := range got {
			if password != "" && strings.Contains(v.Detail, password) {
				t.Errorf("%q: the error repeats the password: %s", password, v.Detail)
			}
		}
	}
}

func TestPasswordHash(t *testing.T) {
	const password = "correct horse battery"
	hash := HashPassword(password)
	if !strings.HasPrefix(string(hash), "$argon2id$v=19$m=19456,t=2,p=1$") || strings.Contains(string(hash), password) {
		t.Errorf("got %s", hash)
	}
	if hash == HashPassword(password) {
		t.Error("two hashes of a password are equal, want different salts")
	}
	for given, want := range map[string]bool{password: true, "": false, password + " ": false, "Correct horse battery": false,
		password[1:]: false} {
		if ok, stale, err := hash.Matches(given); ok != want || stale || err != nil {
			t.Errorf("%q: got matches %t, stale %t (%v); want %t, false", given, ok, stale, err, want)
		}
	}
	if ok, stale, err := NoPassword().Matches(password); ok || stale || err != nil {
		t.Errorf("NoPassword: got matches %t, stale %t (%v); want false, false", ok, stale, err)
	}

	// A hash from argon2's reference implementation, with other parameters:
	reference := PasswordHash("$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc")
	if ok, stale, err := reference.Matches("password"); !ok || !stale || err != nil {
		t.Errorf("reference hash: got matches %t, stale %t (%v); want true, true", ok, stale, err)
	}
	if ok, _, err := reference.Matches("Password"); ok || err != nil {
		t.Errorf("reference hash with another password: got matches %t (%v), want false", ok, err)
	}
}

func TestPasswordHashStrictParsing(t *testing.T) {
	const good = "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	if err := PasswordHash(good).Check(); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{good, ""}, {good, "correct horse battery"}, {good, "$$$$$"}, {"argon2id", "argon2i"}, {"argon2id", "ARGON2ID"}, {"v=19",
			"v=16"}, {"$v=19", ""},
		{"m=19456", "m=4294967295"}, {"m=19456", "m=7"}, {"m=19456", "m=-1"}, {"m=19456", "m=019456"}, {"m=19456", "m=99999999999"}, {"t=2",
			"t=0"}, {"t=2", "t=17"}, {"p=1", "p=0"},
		{"p=1", "p=17"}, {"p=1", "p=256"}, {"p=1", "p=1,x=1"}, {"p=1", "p=1 "}, {"m=19456,t=2", "t=2,m=19456"}, {"$AAAAAAAAAAAAAAAAAAAAAA$",
			"$$"},
		{"$AAAAAAAAAAAAAAAAAAAAAA$", "$AAAAAAAAAAAAAAAAAAAAAB$"}, {"$AAAAAAAAAAAAAAAAAAAAAA$",
			"$AAAAAAAAAAAAAAAAAAAAAA==$"}, {"$AAAAAAAAAAAAAAAAAAAAAA$", "$AAAA$"},
		{good, good + "$"}, {good, good + "\n"}, {good, good[:len(good)-2]}, {good, good[:len(good)-23]},
	} {
		hash := PasswordHash(strings.Replace(good, change[0], change[1], 1))
		if err := hash.Check(); err == nil {
			t.Errorf("%q: got it accepted as a hash", hash)
		} else if hash != "" && strings.Contains(err.Error(), string(hash)) {
			t.Errorf("%q: the error repeats the hash: %v", hash, err)
		}
	}
}

func TestSessionValid(t *testing.T) {
	began := time.Date(2026, 3, 14, 8, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		seen, now time.Duration // since the start
		want      bool
	}{
		{0, 0, true}, {0, SessionIdle - 1, true}, {0, SessionIdle, false}, {3 * time.Hour, 4 * time.Hour, true},
		{11 * time.Hour, SessionLife - 1, true}, {11 * time.Hour, SessionLife, false}, {time.Hour, time.Hour, true},
	} {
		s := Session{CreatedAt: began, SeenAt: began.Add(tt.seen), ExpiresAt: began.Add(SessionLife)}
		if got := s.Valid(began.Add(tt.now)); got != tt.want {
			t.Errorf("seen after %s, now %s: got %v, want %v", tt.seen, tt.now, got, tt.want)
		}
	}
}

func BenchmarkHashPassword(b *testing.B) {
	for b.Loop() {
		HashPassword("correct horse battery")
	}
}
