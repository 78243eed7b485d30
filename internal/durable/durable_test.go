package durable

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, content := range []string{"", "first", "second, longer"} {
		if err := WriteFile(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("got %q, %v, want %q", got, err, content)
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode: %v, %v, want 0640", info.Mode(), err)
		}
	}
	if err := WriteFile(filepath.Join(dir, "missing", "file"), nil, 0o600); err == nil {
		t.Error("missing directory: got no error")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"file"}) {
		t.Errorf("got files %q, want file", got)
	}
}

func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := ReplaceFile(path, []byte("new")); err == nil {
		t.Error("missing file: got no error")
	}
	if err := os.WriteFile(path, []byte("old"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("file", link); err != nil {
		t.Fatal(err)
	}
	if err := ReplaceFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "new" {
		t.Errorf("got %q, %v, want new", got, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("mode: %v, %v, want 0400", info.Mode(), err)
	}
	if target, err := os.Readlink(link); err != nil || target != "file" {
		t.Errorf("link: got target %q, %v, want file", target, err)
	}
}

func TestRemoveTemp(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"db", "db.copy", "db" + TempSuffix + "1", "db.copy" + TempSuffix + "2", "key" + TempSuffix + "3"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemp(dir, "db"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"db", "db.copy", "key" + TempSuffix + "3"}) {
		t.Errorf("got files %q, want only those without the prefix or the suffix", got)
	}
	if err := RemoveTemp(filepath.Join(dir, "missing"), "db"); err != nil {
		t.Errorf("missing directory: got %v, want no error", err)
	}
}

// Only RemoveTempAll removes directories that are not empty.
func TestRemoveTempAll(t *testing.T) {
	dir := t.TempDir()
	full := "db" + TempSuffix + "1"
	if err := os.MkdirAll(filepath.Join(dir, full, "below"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "db"+TempSuffix+"2"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTemp(dir, "db"); err == nil {
		t.Error("RemoveTemp of a directory with files: got no error")
	}
	if got := names(t, dir); !slices.Equal(got, []string{full}) {
		t.Errorf("RemoveTemp left %q, want only the directory", got)
	}
	if err := RemoveTempAll(dir, "db"); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) > 0 {
		t.Errorf("RemoveTempAll left %q, want nothing", got)
	}
}

func TestRenameAndSync(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := os.WriteFile(from, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if size, err := SyncFile(from); err != nil || size != 5 {
		t.Errorf("SyncFile: %d, %v, want 5", size, err)
	}
	if err := Rename(from, to); err != nil {
		t.Fatal(err)
	}
	if err := Rename(from, to); err == nil {
		t.Error("rename of a missing file: got no error")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"to"}) {
		t.Errorf("got files %q, want to", got)
	}
}
