package server

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"service/webhook"
)

// docsExample returns the code block in docs/event-types.md that defines an own event type.
func docsExample(t *testing.T, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/event-types.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1) {
		if bytes.Contains(block[1], []byte("order_shipped")) {
			return string(block[1])
		}
	}
	t.Fatalf("docs/event-types.md has no %s block with order_shipped", language)
	return ""
}

// TestEventTypesOfTheDocs checks that the example in docs/event-types.md works, and that
// invalid files are reported.
func TestEventTypesOfTheDocs(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "event_types")
	builtIn, err := LoadCatalog(data)
	if err != nil {
		t.Fatalf("without the directory: %v", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	schema := docsExample(t, "json")
	write("order_shipped.json", schema)
	write(".order_shipped.json.swp", "an editor's")
	catalog, err := LoadCatalog(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(catalog.Types()) != len(builtIn.Types())+1 || !catalog.Has("order_shipped") {
		t.Errorf("got %d event types, want %d and order_shipped", len(catalog.Types()), len(builtIn.Types()))
	}
	body := regexp.MustCompile(`-d '(.*)'`).FindStringSubmatch(docsExample(t, "sh"))
	if body == nil {
		t.Fatal("the docs publish no event")
	}
	if _, err := catalog.NewEvent([]byte(body[1]), "", time.Now()); err != nil {
		t.Error(err)
	}

	for name, content := range map[string]string{
		"order_paid.json":      schema,
		"content_updated.json": schema,
		"README.md":            "Our event types",
		"broken.json":          schema[:len(schema)/2],
		"huge.json":            schema + strings.Repeat(" ", webhook.MaxEventTypeBytes),
	} {
		write(name, content)
		if _, err := LoadCatalog(data); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want an error with the directory and the file", name, err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "more"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadCatalog(data); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "more")+" is not a regular file") {
		t.Errorf("a directory: got %v", err)
	}
}
