// Package sqlitetest checks the plans of queries.
package sqlitetest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"service/store/sqlite"
)

// CheckPlan checks that the plan of a query contains want, and scans no table.
func CheckPlan(t *testing.T, db *sqlite.DB, query string, args int, want string) {
	t.Helper()
	var plan []string
	rows, err := db.Readers().QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, make([]any, args)...)
	if err != nil {
		t.Errorf("%s: %v", query, err)
		return
	}
	err = sqlite.Drain(rows, func(scan func(...any) error) error {
		var id, parent, unused int
		var detail string
		err := scan(&id, &parent, &unused, &detail)
		plan = append(plan, detail)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(plan, "\n\t")
	if !strings.Contains(text, want) || strings.Contains(text, "TEMP B-TREE FOR ORDER BY") && !strings.Contains(query, "json_each") ||
		ScansATable(plan) {
		t.Errorf("%s\n\tgot  %s\n\twant %s, and no table scan", query, text, want)
	}
}

// ScansATable reports whether a plan reads a whole table. JSON arrays, automatic indexes and
// subquery results do not count.
func ScansATable(plan []string) bool {
	for _, step := range plan {
		if strings.HasPrefix(step, "SCAN ") && !strings.Contains(step, "VIRTUAL TABLE") && !strings.Contains(step, "CONSTANT ROW") &&
			!slices.Contains(plan, strings.Replace(step, "SCAN ", "CO-ROUTINE ", 1)) {
			return true
		}
	}
	return false
}
