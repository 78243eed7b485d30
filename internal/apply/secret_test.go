package apply

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestResolve(t *testing.T) {
	const mustBeFile = "it must be a file with the secret on one line (or use {env: NAME})"
	dir := t.TempDir()
	write := func(name, content string) string { return writeFile(t, filepath.Join(dir, name), content) }
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"GOOD": "hunter2", "EMPTY": "", "LINES": "hunter2\nhunter3"}[name]
		return v, ok
	}
	for _, test := range []struct {
		secret Secret
		want   string // or the end of the error
		ok     bool
	}{
		{Secret{Env: "GOOD"}, "hunter2", true},
		{Secret{Path: write("good", "hunter2\n")}, "hunter2", true},
		{Secret{Env: "NONE"}, "variable NONE is not set", false},
		{Secret{Env: "EMPTY"}, "variable EMPTY must have exactly one line, the secret", false},
		{Secret{Env: "LINES"}, "variable LINES must have exactly one line, the secret", false},
		{Secret{Path: write("lines", "hunter2\nhunter3\n")}, "lines must have exactly one line, the secret", false},
		{Secret{Path: filepath.Join(dir, "none")}, "none does not exist; " + mustBeFile, false},
		{Secret{Path: dir}, "cannot be read: is a directory; " + mustBeFile, false},
		{Secret{Path: write("large", strings.Repeat("x", maxSecret+1))}, "is larger than 65536 bytes; " + mustBeFile, false},
	} {
		test.secret.At = "at"
		got, err := test.secret.resolve(lookup)
		switch {
		case test.ok && (err != nil || got != test.want):
			t.Errorf("%+v: got %q, %v; want %q", test.secret, got, err, test.want)
		case !test.ok && (err == nil || !strings.HasPrefix(err.Error(), "at: ") || !strings.HasSuffix(err.Error(), test.want)):
			t.Errorf("%+v: got %v, want %s", test.secret, err, test.want)
		case err != nil && strings.Contains(err.Error(), "hunter"):
			t.Errorf("the error has the secret: %v", err)
		}
	}
}

// TestOutput follows the file of a secret from before the request to its end.
func TestOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	check := func(step string, exists, pending bool) {
		t.Helper()
		if o := inspect(path); o.Exists != exists || o.Pending() != pending || o.Problem != "" {
			t.Errorf("%s: got %+v", step, o)
		}
	}
	check("at first", false, false)
	began := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	if err := begin(path, began); err != nil {
		t.Fatal(err)
	}
	check("after begin", false, true)
	if o := inspect(path); !o.Began.Equal(began) {
		t.Errorf("got %s, want %s", o.Began, began)
	}
	if err := finish(path, "svc_1"); err != nil {
		t.Fatal(err)
	}
	check("after finish", true, false)
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "svc_1\n" {
		t.Errorf("got %q, %v", content, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("got the mode %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v; want only the secret", entries, err)
	}

	// A file that appears between check and write is not overwritten, and the pending file
	// stays.
	if err := begin(path, began); err != nil {
		t.Fatal(err)
	}
	if err := finish(path, "svc_2"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want that it exists", err)
	}
	if content, _ := os.ReadFile(path); string(content) != "svc_1\n" {
		t.Errorf("got %q", content)
	}

	// Tidy removes only what interrupted runs leave.
	for _, name := range []string{".unfinished-1", ".pending.unfinished-2", "2", "2.pending", "2.unfinished-3"} {
		writeFile(t, path+name, "")
	}
	if err := Tidy(map[string]Output{path: inspect(path)}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if want := []string{"token", "token2", "token2.pending", "token2.unfinished-3"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("got %q, %v; want %q", names, err, want)
	}
}

func TestOutputProblems(t *testing.T) {
	dir := t.TempDir()
	if o := inspect(filepath.Join(dir, "none", "token")); o.Problem == "" {
		t.Error("a missing directory is no problem")
	}
	path := filepath.Join(dir, "token")
	writeFile(t, path+pendingSuffix, "other")
	if o := inspect(path); !strings.HasSuffix(o.Problem, "is not a file of service apply: remove it") {
		t.Errorf("got %q", o.Problem)
	}
}
