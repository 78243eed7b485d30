package people_test

import (
	"slices"
	"testing"

	"service/store/people"
	"service/store/sqlite/sqlitetest"
	"service/store/storetest"
	"service/webhook"
)

// Every query uses an index, so its cost does not depend on the number of rows.
func TestQueryPlans(t *testing.T) {
	s := storetest.Open(t)
	for _, c := range people.QueryPlans {
		sqlitetest.CheckPlan(t, people.DB(s.Admins()), c.Query, c.Args, c.Want)
	}
	known := []string{"low", "high", "limit", "value"}
	for _, f := range webhook.AuditList.Filters {
		known = append(known, f.Name)
	}
	for _, name := range people.AuditParameters {
		if !slices.Contains(known, name) {
			t.Errorf("the parameter %q of the audit log is never bound", name)
		}
	}
}
