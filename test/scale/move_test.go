package scale

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"service/store"
	"service/test/harness"
	"service/webhook"
)

// TestMovedBehindHAProxy sends requests of a program that has moved from installation 1 to 2.
// HAProxy sends them to installation 1 because of their token's prefix, and installation 1 forwards
// them: streams arrive while they are sent, and installation 2 sees the client's address.
func TestMovedBehindHAProxy(t *testing.T) {
	harness.Long(t)
	f := newFleet(t)
	token := f.program(f.one, "acme", "svc_")
	f.move("acme")
	f.checkEvents(map[string]string{"acme": token})
	f.forge(token)

	f.two.Kill(f.two.Last())
	a := f.request("GET", shared+"/v2/token", token, "")
	var e struct{ Error struct{ Code int } }
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.status != http.StatusServiceUnavailable || e.Error.Code != a.status ||
		a.header.Get("Retry-After") == "" || a.header.Get("X-Request-Id") == "" || strings.Contains(a.body, "127.0.0.12") {
		t.Errorf("without the target: %v: %+v", err, a)
	}
	requests := 0
	for _, line := range harness.ParseLog(t, "json", f.two.Last().Log.Bytes()) {
		if line["msg"] == "request" && line["program"] == "acme" {
			if requests++; line["remote"] != clientAddress+":0" {
				t.Errorf("installation 2 logged %v, want the address of the client", line)
			}
		}
	}
	if requests < 20 {
		t.Errorf("got %d requests in the log of installation 2", requests)
	}
}

// forge sends headers that name another client.
func (f *fleet) forge(token string) {
	f.tb.Helper()
	a := f.request("GET", shared+"/v2/token", token, "", "X-Forwarded-For", "203.0.113.9", "Forwarded", "for=203.0.113.9")
	if a.status != http.StatusOK {
		f.tb.Errorf("forged address: status %d: %s", a.status, a.body)
	}
}

// move moves a program from installation 1 to installation 2.
func (f *fleet) move(program string) {
	t := f.tb
	t.Helper()
	dir := t.TempDir()
	file, passphrase := filepath.Join(dir, "program"), filepath.Join(dir, "passphrase")
	if err := os.WriteFile(passphrase, []byte("correct horse battery staple\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(f.one.URL(), "https://")
	f.one.MustStop(f.one.Last())
	for _, command := range [][]string{
		{"program", "export", program, file, "--data", f.one.Data, "--passphrase-file", passphrase},
		{"program", "import", file, "--data", f.two.Data, "--passphrase-file", passphrase},
	} {
		if out, err := f.one.Command(command...); err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
	}
	st, err := store.Open(t.Context(), store.Config{Dir: f.one.Data, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	id := webhook.NewID()
	target := &store.MoveTarget{URL: f.two.URL(), CA: string(harness.Read(t, filepath.Join(f.two.Data, "ca.pem"))), Token: "unused"}
	for _, step := range []func(store.Write) error{
		func(w store.Write) error { return w.Moves().Begin(program, id, target) },
		func(w store.Write) error { return w.Moves().Complete(program, id) },
		func(w store.Write) error { return w.Moves().Activated(program, id) },
	} {
		if err := st.Write(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	f.one.Flags = append(f.one.Flags, "--listen", address)
	f.one.MustStart()
	f.await(shared+"/readyz", "", http.StatusOK)
}
