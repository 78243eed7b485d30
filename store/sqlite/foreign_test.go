package sqlite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

// TestForeignLimits runs statements that exceed the limits for a database of unknown origin: each is
// refused.
func TestForeignLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "foreign.db")
	made, err := OpenPrivate(t.Context(), path, testSchema)
	if err == nil {
		err = made.Close()
	}
	must(t, err)
	db, err := OpenForeign(t.Context(), path, testSchema, errors.New("unfit"))
	must(t, err)
	defer db.Close()
	for name, query := range map[string]string{
		"a long value":      "SELECT length(zeroblob(64 * 1024 * 1024 + 1))",
		"a long statement":  "SELECT '" + strings.Repeat("x", 64<<10) + "'",
		"many columns":      "SELECT 1" + strings.Repeat(", 1", 100),
		"a deep expression": "SELECT 1" + strings.Repeat(" + 1", 100),
		"a long compound":   "SELECT 1" + strings.Repeat(" UNION ALL SELECT 1", 8),
		"many arguments":    "SELECT max(1" + strings.Repeat(", 1", 16) + ")",
		"another database":  "ATTACH ':memory:' AS other",
		"a long pattern":    "SELECT 'a' LIKE '" + strings.Repeat("%a", 501) + "'",
		"many parameters":   "SELECT ?101",
		"a write":           "CREATE TABLE more (a)",
	} {
		rows, err := db.QueryContext(t.Context(), query)
		if err == nil {
			err = Drain(rows, func(func(...any) error) error { return nil })
		}
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
