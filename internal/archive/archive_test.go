package archive

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"service/store"
	"service/store/datadir"
)

const passphrase = "correct horse battery"

// write returns an archive of the data directory of st.
func write(t *testing.T, st *store.Store, r Request) (archive []byte, m *Manifest) {
	t.Helper()
	source, err := NewSource(t.Context(), st, &r, "v1")
	if err != nil {
		t.Fatal(err)
	}
	var sent, b bytes.Buffer
	if err := errors.Join(source.Send(&sent), source.Close()); err != nil {
		t.Fatal(err)
	}
	m, err = Write(&b, &sent, passphrase, func(int64) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

// testStore opens a store with every file that a backup may include.
func testStore(t *testing.T) *store.Store {
	t.Helper()
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	if err := os.Mkdir(filepath.Join(dir, EventTypesDir), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		caFile: "certificate", caKeyFile: "ca key", alertFile: "alert secret",
		EventTypesDir + "/order_shipped.json": "{}", EventTypesDir + "/.swp": "an editor's",
	} {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return st
}

func TestRoundTrip(t *testing.T) {
	st := testStore(t)
	b, m := write(t, st, Request{Keys: true, Copies: 1})
	if !m.HasKeys() || m.Version != "v1" || m.Schema == 0 {
		t.Errorf("got the manifest %+v", m)
	}
	dir := t.TempDir()
	a, err := Read(t.Context(), bytes.NewReader(b), dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range a.Files {
		names = append(names, f.Name)
	}
	if want := []string{caFile, EventTypesDir + "/order_shipped.json", Database, encryptedFile}; !slices.Equal(names, want) {
		t.Errorf("got the files %q, want %q", names, want)
	}
	keys, err := a.OpenKeys(passphrase)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{alertFile, caKeyFile, SecretKeyFile}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, want) || string(keys[caKeyFile]) != "ca key" {
		t.Errorf("got the keys %q, want %q", got, want)
	}
	for _, secret := range []string{"ca key", "alert secret", strings.TrimSpace(string(keys[SecretKeyFile]))} {
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%q is not encrypted", secret)
		}
	}
	if _, err := datadir.Inspect(t.Context(), filepath.Join(dir, Database), keys[SecretKeyFile]); err != nil {
		t.Error(err)
	}
	if _, err := a.OpenKeys("another passphrase"); !errors.Is(err, errPassphrase) {
		t.Errorf("with another passphrase: got %v, want %v", err, errPassphrase)
	}
}

func TestWithoutKeys(t *testing.T) {
	b, _ := write(t, testStore(t), Request{Copies: 1})
	a, err := Read(t.Context(), bytes.NewReader(b), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if a.HasKeys() || a.has(caFile) {
		t.Errorf("got the files %v, want no keys and no certificate", a.Files)
	}
}

// TestDamage checks that damaged backups are refused.
func TestDamage(t *testing.T) {
	b, m := write(t, testStore(t), Request{Keys: true, Copies: 1})
	damaged := map[string][]byte{
		"empty":        nil,
		"not a tar":    []byte(strings.Repeat("not a backup ", 100)),
		"no manifest":  b[:len(b)-2048-512],
		"truncated":    b[:len(b)/2],
		"another name": bytes.Replace(b, []byte(caFile), []byte("ca.pom"), 1),
		"a changed CA": bytes.Replace(b, []byte("certificate"), []byte("certificatf"), 1),
		"a new format": bytes.Replace(b, []byte(`"format": 1`), []byte(`"format": 2`), 1),
	}
	for name, text := range damaged {
		if _, err := Read(t.Context(), bytes.NewReader(text), t.TempDir()); !errors.Is(err, errDamaged) {
			t.Errorf("%s: got %v, want %v", name, err, errDamaged)
		}
	}
	if m.Files[len(m.Files)-1].Name != encryptedFile {
		t.Errorf("the keys are not the last file: %v", m.Files)
	}
}

// TestTruncatedSource checks that no archive is created from an incomplete source.
func TestTruncatedSource(t *testing.T) {
	source, err := NewSource(t.Context(), testStore(t), &Request{Copies: 1}, "v1")
	if err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	if err := errors.Join(source.Send(&sent), source.Close()); err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{0, 100, 4096, sent.Len() / 2} {
		_, err := Write(new(bytes.Buffer), bytes.NewReader(sent.Bytes()[:length]), passphrase, func(int64) error { return nil })
		if err == nil {
			t.Errorf("%d bytes of %d: got an archive, want an error", length, sent.Len())
		}
	}
	full := errors.New("full")
	_, err = Write(new(bytes.Buffer), bytes.NewReader(sent.Bytes()), passphrase, func(int64) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("without disk space: got %v, want %v", err, full)
	}
}

// TestKeysOfAnotherBackup checks that keys of another backup are refused.
func TestKeysOfAnotherBackup(t *testing.T) {
	st := testStore(t)
	read := func() *Archive {
		b, _ := write(t, st, Request{Keys: true, Copies: 1})
		a, err := Read(t.Context(), bytes.NewReader(b), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	one := read()
	if err := os.WriteFile(filepath.Join(st.Dir(), EventTypesDir, "order_shipped.json"), []byte("{ }"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := read()
	one.encrypted = other.encrypted
	if _, err := one.OpenKeys(passphrase); !errors.Is(err, errDamaged) {
		t.Errorf("got %v, want %v", err, errDamaged)
	}
}
