package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"service/store"
	"service/store/datadir"
	"service/store/storetest"
	"service/webhook"
)

// exportOf returns an export of a program.
func exportOf(t *testing.T, st *store.Store, id string) []byte {
	t.Helper()
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	source, err := NewProgramSource(t.Context(), st, catalog, &ProgramRequest{ProgramID: id}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	var sent, b bytes.Buffer
	if err := errors.Join(source.Send(&sent), source.Close()); err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{0, 100, 4096, sent.Len() / 2, sent.Len() - 2048} {
		_, err := WriteProgram(io.Discard, bytes.NewReader(sent.Bytes()[:length]), passphrase, func(int64) error { return nil })
		if err == nil {
			t.Errorf("%d bytes of %d: got an export, want an error", length, sent.Len())
		}
	}
	h, err := WriteProgram(&b, &sent, passphrase, func(int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if h.ProgramID != id || h.Version != "v1" || h.Bytes == 0 {
		t.Errorf("got the header %+v", h)
	}
	return b.Bytes()
}

// testProgram opens a store with a program that has a subscription.
func testProgram(t *testing.T) (st *store.Store, secret webhook.SigningSecret) {
	t.Helper()
	st, err := store.Open(t.Context(), store.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	_, _, err = storetest.CreateToken(t.Context(), st, webhook.NewToken{ProgramID: "acme", UserID: "u", Scopes: webhook.Scopes()})
	if err != nil {
		t.Fatal(err)
	}
	url, names := "https://partner.example", []string{"content_updated"}
	_, secret, err = storetest.CreateSubscription(t.Context(), st, "acme", "u", &webhook.SubscriptionFields{URL: &url, Events: &names})
	if err != nil {
		t.Fatal(err)
	}
	return st, secret
}

func TestProgramRoundTrip(t *testing.T) {
	st, secret := testProgram(t)
	b := exportOf(t, st, "acme")
	if left, err := os.ReadDir(st.Dir()); err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool {
		return strings.Contains(e.Name(), "export") || strings.Contains(e.Name(), "snapshot")
	}) {
		t.Errorf("files are left: %v, %v", left, err)
	}
	for _, text := range []string{string(secret), secret.Reveal(), "partner.example"} {
		if bytes.Contains(b, []byte(text)) {
			t.Error("a part of the program is not encrypted")
		}
	}
	p, err := VerifyProgram(t.Context(), bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Open(t.Context(), "another passphrase"); !errors.Is(err, errProgramPassphrase) {
		t.Errorf("with another passphrase: got %v, want %v", err, errProgramPassphrase)
	}
	from, err := p.Open(t.Context(), passphrase)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReceiveProgram(t.Context(), from, t.TempDir(), func(int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer got.Remove()
	contents, err := datadir.Inspect(t.Context(), got.Path, got.Key)
	if err != nil || contents.Programs != 1 || contents.Subscriptions != 1 {
		t.Errorf("got %+v, %v", contents, err)
	}
	catalog, err := webhook.LoadCatalog()
	if err != nil {
		t.Fatal(err)
	}
	if checked, err := got.Types.Check(t.Context(), catalog); err != nil || len(checked.Missing) > 0 || len(got.Types) != 1 {
		t.Errorf("types %v, missing %v: %v", got.Types, checked.Missing, err)
	}
	got.Types["order_shipped"] = json.RawMessage("{}")
	got.Types["content_updated"] = json.RawMessage(`{"type":"object"}`)
	for _, want := range []string{"It cannot create order_shipped: ", "Its schema of content_updated may reject events of the program: "} {
		if _, err := got.Types.Check(t.Context(), catalog); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("other types: got %v, want %q", err, want)
		}
	}
}

// TestProgramDamage checks that every changed byte and every truncation is detected.
func TestProgramDamage(t *testing.T) {
	st, _ := testProgram(t)
	b := exportOf(t, st, "acme")
	for at := 0; at < len(b); at += 1 + at/200 {
		changed := bytes.Clone(b)
		changed[at] ^= 1
		if _, err := VerifyProgram(t.Context(), bytes.NewReader(changed)); !errors.Is(err, errDamagedProgram) {
			t.Fatalf("byte %d of %d changed: got %v, want %v", at, len(b), err, errDamagedProgram)
		}
	}
	for _, length := range []int{0, 1, 50, 200, len(b) / 2, len(b) - 33, len(b) - 32, len(b) - 1} {
		if _, err := VerifyProgram(t.Context(), bytes.NewReader(b[:length])); !errors.Is(err, errDamagedProgram) {
			t.Errorf("%d bytes of %d: got %v, want %v", length, len(b), err, errDamagedProgram)
		}
	}
	if _, err := VerifyProgram(t.Context(), bytes.NewReader(append(bytes.Clone(b), 0))); !errors.Is(err, errDamagedProgram) {
		t.Errorf("a byte added: got %v", err)
	}
	newer := bytes.Replace(b, []byte(`"format":1`), []byte(`"format":2`), 1)
	if _, err := VerifyProgram(t.Context(), bytes.NewReader(newer)); err == nil || !strings.Contains(err.Error(), "use a newer version") {
		t.Errorf("a newer format: got %v", err)
	}
	if _, err := VerifyProgram(t.Context(), strings.NewReader(strings.Repeat("x", 1<<16))); !errors.Is(err, errDamagedProgram) {
		t.Errorf("another file: got %v", err)
	}
}
