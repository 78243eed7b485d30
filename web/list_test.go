package web

import (
	"testing"

	"service/test/harness"
)

// A list whose rows cannot be read shows its filters, the request ID that is in the log, and a link
// to try again.
func TestListsThatCannotBeLoaded(t *testing.T) {
	for path, table := range map[string]string{
		"/deliveries":    "delivery_events",
		"/subscriptions": "losses",
		"/events":        "events",
		"/programs":      "tokens",
		"/tokens":        "tokens",
		"/audit":         "audit",
	} {
		t.Run(path, func(t *testing.T) {
			v, w := startSignedIn(t, nil)
			v.do("GET", path).want(t, 200, "")
			db := harness.OpenDatabase(t, w.store.Dir())
			defer db.Close()
			_, err := db.Exec("ALTER TABLE " + table + " RENAME TO elsewhere")
			must(t, err)
			query := "?page[size]=50"
			if path == "/deliveries" {
				query = "?filter[event]=content_updated"
			}
			p := v.do("GET", path+query)
			p.want(t, 500, "could not be loaded.")
			p.has(t, `class="filters"`, "<code>"+p.Header.Get("X-Request-Id")+"</code>", `href="`+path+query+`"`, "Try again")
			p.hasNot(t, "no such table", "No results", "There is no")
		})
	}
}
