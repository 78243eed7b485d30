package move

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"service/test/harness"
)

// TestRefused starts moves that the target refuses. Each error says why, and the program stays
// active at the source.
func TestRefused(t *testing.T) {
	harness.Long(t)
	from, to := start(t), start(t)
	token, receiver := from.fill()
	wrong := filepath.Join(t.TempDir(), "wrong")
	writeFile(t, wrong, "svc_0000000000000000000000000000000000000000000\n")
	partner := filepath.Join(t.TempDir(), "partner")
	writeFile(t, partner, to.Token("other", "--secret-key-file", to.key)+"\n")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"error":{"code":404,"title":"Not Found","detail":"No route matches this path."}}`))
	}))
	t.Cleanup(other.Close)
	older := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		state := map[string]any{"status": "none", "format": 1, "schema": 1, "service_version": "0.1"}
		_ = json.NewEncoder(w).Encode(map[string]any{"data": state})
	}))
	t.Cleanup(older.Close)
	secure := newBetween(t, to.URL(), true)
	full := start(t, "--min-free-disk", "1000TiB")
	taken := start(t)
	taken.Token(program, "--secret-key-file", taken.key)

	for _, test := range []struct {
		name, to, tokenFile string
		flags               []string
		want                string
	}{
		{"a wrong token", to.URL(), wrong, nil, "service token create --scope platform"},
		{"a token of a program", to.URL(), partner, nil, "A platform token is needed."},
		{"an active program", taken.URL(), taken.tokenFile, nil, "has a program acme already (active). Delete it there first, or keep it."},
		{"another service", other.URL, to.tokenFile, nil, "Check that the URL is that of an installation of this service."},
		{"an older version", older.URL, to.tokenFile, nil, "runs version 0.1, which is older than this one"},
		{"a full disk", full.URL(), full.tokenFile, nil, "free"},
		{"no certificate of the system", secure.URL, to.tokenFile, nil, "certificate signed by unknown authority"},
		{"another certificate", secure.URL, to.tokenFile, []string{"--ca-file", otherCA(t)}, "certificate signed by unknown authority"},
		{"no certificate", secure.URL, to.tokenFile, []string{"--ca-file", wrong}, "The CA file has no certificate in PEM."},
		{"http", "http://hooks-2.example.com", to.tokenFile, nil, "--to must use https"},
		{"credentials", "https://ada:hidden@hooks-2.example.com", to.tokenFile, nil, "--to must have no user name and no password"},
		{"a query", "https://hooks-2.example.com?key=hidden", to.tokenFile, nil, "--to must have no query and no fragment"},
		{"an empty query", "https://hooks-2.example.com?", to.tokenFile, nil, "--to must have no query and no fragment"},
		{"a fragment", "https://hooks-2.example.com#hidden", to.tokenFile, nil, "--to must have no query and no fragment"},
		{"another scheme", "ftp://hooks-2.example.com", to.tokenFile, nil, "--to must use https"},
		{"no host", "hooks-2.example.com", to.tokenFile, nil, "--to must be the base URL of an installation"},
	} {
		output, err := from.moveFrom(test.to, test.tokenFile, test.flags...)
		if err == nil || !strings.Contains(output, test.want) || strings.Contains(output, "hidden") {
			t.Errorf("%s: got %v, %s", test.name, err, output)
		}
		if status := from.status(); status != "active" {
			t.Errorf("%s: the program is %s", test.name, status)
		}
		from.checkSends(token, receiver)
	}
	if output, err := from.moveFrom(secure.URL, to.tokenFile, "--ca-file", caFile(t, secure.Server)); err != nil {
		t.Fatalf("the move: %v\n%s", err, output)
	}
	to.checkSends(token, receiver)
	if log := from.logs(); strings.Contains(log, "hidden") {
		t.Errorf("the log contains a secret:\n%s", log)
	}
}
