package replica

import (
	"os"
	"strings"
	"testing"
)

// damagePlanned damages the object of a level that the newest state needs and returns its
// name.
func damagePlanned(t *testing.T, cfg *Config, level int) string {
	t.Helper()
	name, path := planned(t, cfg, level)
	content, err := os.ReadFile(path)
	must(t, err)
	replaceContent(t, path, damages[0].do(content))
	return name
}

// TestDamagedEnd damages an object before a replication ends. An object of level 0 is uploaded
// again. With another level, Close fails, and the next start repairs the newest state.
func TestDamagedEnd(t *testing.T) {
	dir := t.TempDir()
	cfg := stillConfig(t, dir)
	r := openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	for range 2 {
		r.insert(10_000)
		r.awaitSent(r.current())
	}
	damagePlanned(t, cfg, 0)
	r.mustClose()
	wantNumber(t, "rows restored", restoredRows(t, cfg), 2)

	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	for range 2 {
		r.insert(10_000)
		r.awaitSent(r.current())
	}
	r.current().compact(t)
	name := damagePlanned(t, cfg, 1)
	if err := r.close(); err == nil || !strings.Contains(err.Error(), name) {
		t.Fatalf("got %v, want an error with %s", err, name)
	}
	r = openReplicated(t, dir, cfg)
	r.await("up to date", upToDate)
	wantNumber(t, "rows restored", restoredRows(t, cfg), 4)
}
