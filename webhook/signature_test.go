package webhook

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// TestSign uses the vector of the Standard Webhooks reference libraries.
func TestSign(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1614265330, 999_999_999) // fractions of a second are not signed
	got := SigningSecret(key).Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The reference library verifies our signatures for bodies of any size, and rejects
// changed ones.
func TestSignVerifies(t *testing.T) {
	now := time.Now()
	for _, body := range []string{"", "{}", "ünïcödé \x00\xff", strings.Repeat("x", 1<<20)} {
		secret := NewSigningSecret()
		if len(secret) != 32 {
			t.Fatalf("got a secret of %d bytes, want 32", len(secret))
		}
		id := NewID()
		verifier, err := standardwebhooks.NewWebhook(secret.Reveal())
		if err != nil {
			t.Fatal(err)
		}
		header := func(id string, at time.Time, signature string) http.Header {
			h := http.Header{}
			h.Set("webhook-id", id)
			h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
			h.Set("webhook-signature", signature)
			return h
		}
		signature := secret.Sign(id, now, []byte(body))
		if err := verifier.Verify([]byte(body), header(id, now, signature)); err != nil {
			t.Errorf("body of %d bytes: %v", len(body), err)
		}
		// During a rotation both secrets sign.
		both := NewSigningSecret().Sign(id, now, []byte(body)) + " " + signature
		if err := verifier.Verify([]byte(body), header(id, now, both)); err != nil {
			t.Errorf("two signatures: %v", err)
		}
		for what, err := range map[string]error{
			"another body":   verifier.Verify([]byte(body+" "), header(id, now, signature)),
			"another id":     verifier.Verify([]byte(body), header(NewID(), now, signature)),
			"another time":   verifier.Verify([]byte(body), header(id, now.Add(time.Second), signature)),
			"another secret": verifier.Verify([]byte(body), header(id, now, NewSigningSecret().Sign(id, now, []byte(body)))),
		} {
			if err == nil {
				t.Errorf("%s: got it verified, want an error", what)
			}
		}
	}
}

func TestSigningSecretIsRedacted(t *testing.T) {
	secret := NewSigningSecret()
	if !strings.HasPrefix(secret.Reveal(), "whsec_") {
		t.Errorf("Reveal must start with whsec_")
	}
	var text, object strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Info("x", "secret", secret)
	slog.New(slog.NewJSONHandler(&object, nil)).Info("x", "secret", secret)
	encoded, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{secret.String(), fmt.Sprint(secret), fmt.Sprintf("%v %s %+v", secret, secret, secret), text.String(),
		object.String(), string(encoded)} {
		plain := base64.StdEncoding.EncodeToString(secret)
		if strings.Contains(got, plain) || strings.Contains(got, string(secret)) || !strings.Contains(got, "[redacted]") {
			t.Errorf("got a secret formatted as %q, want it redacted", got)
		}
	}
	if string(secret) == string(NewSigningSecret()) {
		t.Error("two secrets are equal")
	}
}

func BenchmarkSign(b *testing.B) {
	secret, body, now := NewSigningSecret(), make([]byte, 1024), time.Unix(1614265330, 0)
	b.ReportAllocs()
	for b.Loop() {
		secret.Sign("019a0000-0000-7000-8000-000000000000", now, body)
	}
}
