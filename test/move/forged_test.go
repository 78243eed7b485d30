package move

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"service/internal/archive"
	"service/test/harness"
)

// forge changes the database in a part of a program, or in a decrypted export.
func forge(t *testing.T, part []byte, queries ...string) []byte {
	t.Helper()
	names, files := []string{}, make(map[string][]byte)
	for r := tar.NewReader(bytes.NewReader(part)); ; {
		f, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, f.Name)
		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "service.db"), string(files["program.db"]))
	db := harness.OpenDatabase(t, dir)
	for _, query := range append([]string{"PRAGMA ignore_check_constraints = ON"}, queries...) {
		if _, err := db.Exec(query); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	files["program.db"] = harness.Read(t, filepath.Join(dir, "service.db"))
	var header map[string]any
	err := json.Unmarshal(files["program.json"], &header)
	header["bytes"] = len(files["program.db"])
	if err == nil {
		files["program.json"], err = json.Marshal(header)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err == nil {
			err = w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(files[name]))})
		}
		if err == nil {
			_, err = w.Write(files[name])
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// forgedRows are changes that would reach beyond the program if accepted.
func forgedRows() map[string]struct{ query, refused string } {
	return map[string]struct{ query, refused string }{
		"a platform token": {"UPDATE tokens SET program_id = NULL, scopes = 'platform', expires_at = NULL",
			"table tokens, row 1, column program_id"},
		"a subscription of another program": {"UPDATE subscriptions SET program_id = 'other'", "table subscriptions, row 1, column program_id"},
		"a policy in the portal's origins": {
			"UPDATE programs SET portal_origins = 'https://a.example; script-src * ''unsafe-inline'''",
			"table programs, row 1, column portal_origins"},
		"events that are no names": {"UPDATE subscriptions SET events = '[1,{}]'", "table subscriptions, row 1, column events"},
	}
}

// TestForgedFiles imports files in each of which one row was changed. The command names the row,
// and changes nothing.
func TestForgedFiles(t *testing.T) {
	harness.Long(t)
	from := start(t)
	from.fill()
	passphrase, exported := filepath.Join(t.TempDir(), "pass"), filepath.Join(t.TempDir(), "acme.program")
	writeFile(t, passphrase, "correct horse battery\n")
	if out, err := from.Command("program", "export", "--data", from.Data, "--passphrase-file", passphrase, program, exported); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file, err := os.Open(exported)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	verified, err := archive.VerifyProgram(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := verified.Open(t.Context(), "correct horse battery")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := io.ReadAll(opened)
	if err != nil {
		t.Fatal(err)
	}

	to := start(t)
	to.Token("other", "--secret-key-file", to.key)
	to.MustStop(to.Last())
	before := filepath.Join(t.TempDir(), "before")
	if err := os.CopyFS(before, os.DirFS(to.Data)); err != nil {
		t.Fatal(err)
	}
	rows := forgedRows()
	rows["an event of another program"] = struct{ query, refused string }{
		"UPDATE events SET program_id = 'other' WHERE seq = 1", "table events, row 1, column program_id"}
	rows["a view for a table"] = struct{ query, refused string }{
		"ALTER TABLE losses RENAME TO gone; CREATE VIEW losses AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) " +
			"SELECT '' AS subscription_id, i AS events, 1 AS first_at, 1 AS last_at FROM n",
		"table losses is not the one of schema"}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		forged := filepath.Join(t.TempDir(), "forged.program")
		out, err := os.Create(forged)
		if err == nil {
			_, err = archive.WriteProgram(out, bytes.NewReader(forge(t, whole, rows[name].query)), "correct horse battery",
				func(int64) error { return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Close()
		text, err := to.Command("program", "import", "--data", to.Data, "--secret-key-file", to.key, "--passphrase-file", passphrase, forged)
		if err == nil || !strings.Contains(text, rows[name].refused) || strings.Count(strings.TrimSpace(text), "\n") > 0 {
			t.Errorf("%s: got %v, %q, want one line with %q", name, err, text, rows[name].refused)
		}
		for _, difference := range harness.DatabaseDifferences(t, before, to.Data) {
			if !strings.Contains(difference, "settings") { // the counts of commits and of time
				t.Errorf("%s: the database has changed: %s", name, difference)
			}
		}
	}
	if text, err := to.Command("program", "import", "--data", to.Data, "--secret-key-file", to.key, "--passphrase-file", passphrase,
		exported); err != nil {
		t.Errorf("the true export: %v, %s", err, text)
	}
}

type listedToken struct {
	ID        string
	ProgramID string `json:"program_id"`
}

// tokens returns the tokens of the installation.
func (in *installation) tokens() (all []listedToken) {
	in.t.Helper()
	out, err := in.Command("token", "list", "--data", in.Data, "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		in.t.Fatalf("token list: %v\n%s", err, out)
	}
	return all
}

// isPart reports whether a step of a move sends a part: "first" or "rest".
func isPart(step, part string) bool {
	last, put := strings.CutPrefix(step, "PUT ")
	return put && last != "changes" && (part == "rest") == (last == "rest")
}

// forgeRequest changes the part of a program in a request.
func forgeRequest(t *testing.T, r *http.Request, query string) {
	part, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	part = forge(t, part, query)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(part)), int64(len(part))
	r.Header.Set("Content-Length", strconv.Itoa(len(part)))
}

// TestForgedMoves moves a program from a source that changes a row of one part in transit. The
// target refuses the part, keeps nothing of it, and records in its audit log that the move was
// aborted.
func TestForgedMoves(t *testing.T) {
	harness.Long(t)
	from, to := start(t), start(t)
	token, receiver := from.fill()
	others := to.Token("other", "--secret-key-file", to.key)
	to.CreateEventType(strings.TrimSpace(string(harness.Read(t, to.tokenFile))), ownEvent)
	kept := newReceiver(t)
	subscription := to.Subscribe(others, harness.Subscription{URL: kept.url, Events: harness.Events(ownEvent)})
	before := to.tokens()
	other := before[slices.IndexFunc(before, func(k listedToken) bool { return k.ProgramID == "other" })].ID
	rows := forgedRows()
	rows["another program's token"] = struct{ query, refused string }{"UPDATE tokens SET id = '" + other + "'",
		"Another program here has tokens"}
	rows["another program's subscription"] = struct{ query, refused string }{
		"UPDATE subscriptions SET id = '" + subscription + "'", "cannot be decrypted"}

	aborted := 0
	for _, step := range []string{"first", "rest"} {
		for _, name := range slices.Sorted(maps.Keys(rows)) {
			between := newBetween(t, to.URL(), false)
			changes := func(s string, r *http.Request) {
				if isPart(s, step) {
					forgeRequest(t, r, rows[name].query)
				}
			}
			between.changes.Store(&changes)
			text, err := from.moveFrom(between.URL, to.tokenFile)
			if err == nil || !strings.Contains(text, rows[name].refused) {
				t.Errorf("%s in the part %s: got %v, %s, want %q", name, step, err, text, rows[name].refused)
			}
			if step == "rest" {
				aborted++
			}
			between.Close()
			harness.WaitFor(t, "the program to be erased", func() bool { return to.status() == "" })
			from.checkSends(token, receiver)
		}
	}
	if after := to.tokens(); !slices.Equal(after, before) {
		t.Errorf("the tokens were %+v, and are %+v", before, after)
	}
	to.checkSends(others, kept)
	out, err := to.Command("audit", "list", "--data", to.Data, "--json")
	if n := strings.Count(out, `"program.move_abort"`); err != nil || n != aborted {
		t.Errorf("the audit log contains %d aborted moves, %v; want %d", n, err, aborted)
	}
	if out, err := from.moveFrom(to.URL(), to.tokenFile); err != nil {
		t.Errorf("the true program: %v, %s", err, out)
	}
	to.checkSends(token, receiver)
}
