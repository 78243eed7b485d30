package store

import (
	"bytes"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// schema12 creates a data directory of schema 12 with a delivery of each kind, and returns
// their ids, oldest first, and those of the subscription and an event.
func schema12(t *testing.T, dir string) (deliveries []string, sub, event string) {
	t.Helper()
	path := filepath.Join(dir, databaseFile)
	key, err := os.ReadFile("testdata/schema-1/secret.key")
	must(t, err)
	schema1(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "secret.key"), key, 0o600))
	db, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Migrations: schemaBefore{migrations, "0014"}, Readers: 1,
		Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, db.Close(nil))
	old, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	defer old.Close()
	exec := func(query string, args ...any) {
		t.Helper()
		if _, err := old.Exec(query, args...); err != nil {
			t.Fatalf("%s: %v", query, err)
		}
	}
	must(t, old.QueryRow("SELECT id FROM subscriptions WHERE deleted_at IS NULL AND active = 1 AND program_id = (SELECT program_id "+
		"FROM events LIMIT 1) ORDER BY id LIMIT 1").Scan(&sub))
	var program string
	must(t, old.QueryRow("SELECT program_id, id FROM events ORDER BY seq LIMIT 1").Scan(&program, &event))
	exec("DELETE FROM attempts")
	exec("DELETE FROM delivery_events")
	exec("DELETE FROM deliveries")
	at := time.Now().Add(-time.Hour).UnixMilli()
	for i := range 40 {
		num, status, response := i+1, "success", 200
		if i%4 == 3 {
			status, response = "failed", 404
		}
		id := webhook.NewID()
		deliveries = append(deliveries, id)
		var reason any
		if status == "failed" {
			reason = "rejected"
		}
		exec("INSERT INTO deliveries (num, id, subscription_id, program_id, status, failure_reason, attempts_made, response_status, seqs, "+
			"created_at, completed_at) VALUES (?, ?, ?, ?, ?, ?, 1, ?, '[1]', ?, ?)",
			num, id, sub, program, status, reason, response, at+int64(num), at+100-int64(num))
		exec("INSERT INTO attempts (delivery, number, started_at, duration_ms, result, response_status, response_header, response_body, "+
			"response_truncated) VALUES (?, 1, ?, 7, ?, ?, 'X-A: b', x'6f6b', 0)", num, at+int64(num), status, response)
		exec("INSERT INTO delivery_events (program_id, seq, delivery) VALUES (?, 1, ?)", program, num)
	}
	return deliveries, sub, event
}

// upgraded is a database of an earlier schema with deliveries from before and after the
// upgrade.
type upgraded struct {
	*testing.T
	s                   *Store
	program, sub, event string
	old, all            []string // ids of deliveries in the order of creation; the last of all is a redelivery of old[3]
}

// Records from before an upgrade are in every list, page and action, together with newer ones.
func TestUpgradeFromSchema12(t *testing.T) {
	dir := t.TempDir()
	u := upgraded{T: t}
	u.old, u.sub, u.event = schema12(t, dir)
	s := openDir(t, dir)
	u.s, u.program = s, string(readText(t, s, "SELECT program_id FROM subscriptions WHERE id = ?", u.sub))
	names := []string{"content_updated"}
	sub, err := s.Subscriptions().Update(t.Context(), u.program, u.sub, &webhook.SubscriptionFields{Events: &names})
	must(t, err)
	for range 5 {
		attempt(t, s, &sub, 200, 300)
	}
	d, err := s.Deliveries().Redeliver(t.Context(), u.program, u.sub, u.old[3])
	must(t, err)
	if d.RedeliveryOf != u.old[3] || len(d.Events) != 1 || d.Events[0].ID != u.event {
		t.Errorf("redelivery: got %+v", d)
	}
	u.all = u.listed("sort=created_at")
	if len(u.all) != 46 || !slices.Equal(u.all[:40], u.old) || u.all[45] != d.ID {
		t.Fatalf("sorted by creation: got %v", u.all)
	}
	u.lists()
	u.deliveries()
	u.others()
	u.removals()
}

// listed returns the subscription's deliveries in a list, read in small pages.
func (u *upgraded) listed(raw string) (ids []string) {
	u.Helper()
	q := query(u.T, webhook.DeliveryList, raw+"&page[size]=7")
	for {
		page, next, err := u.s.Deliveries().Page(u.Context(), u.program, u.sub, q)
		must(u, err)
		for _, d := range page {
			ids = append(ids, d.ID)
		}
		if next == "" {
			return ids
		}
		q.Cursor = next
	}
}

func (u *upgraded) lists() {
	down := u.listed("sort=-created_at")
	slices.Reverse(down)
	if !slices.Equal(down, u.all) {
		u.Errorf("sorted by creation, descending: got %v", down)
	}
	byEnd := slices.Clone(u.old) // completed in the reverse order of creation
	slices.Reverse(byEnd)
	if got := u.listed("sort=completed_at"); !slices.Equal(got, append(byEnd, u.all[40:]...)) {
		u.Errorf("sorted by completion: got %v", got)
	}
	if got := u.listed("sort=-completed_at"); len(got) != 46 || !slices.Equal(got[5:45], u.old) {
		u.Errorf("sorted by completion, descending: got %v", got)
	}
	if got := u.listed("sort=created_at&filter[status]=failed"); len(got) != 10 || got[0] != u.old[3] {
		u.Errorf("filtered by status: got %v", got)
	}
	for _, raw := range []string{"filter[id]=" + u.old[0], "filter[redelivery_of]=" + u.old[3],
		"filter[subscription_id]=" + u.sub + "&filter[status]=success"} {
		page, _, err := u.s.Deliveries().PageAll(u.Context(), query(u.T, webhook.AllDeliveryList, raw))
		if err != nil || len(page) == 0 {
			u.Errorf("%s: got no deliveries, %v", raw, err)
		}
	}
}

func (u *upgraded) deliveries() {
	for _, id := range []string{u.old[0], u.old[3], u.all[44], u.all[45]} {
		got, err := u.s.Deliveries().View(u.Context(), id)
		if err != nil || got.ID != id || len(got.EventJSON) != 1 || !bytes.Contains(got.EventJSON[0], []byte(got.Events[0].ID)) {
			u.Errorf("page of %s: got %+v, %v", id, got, err)
		}
		if id != u.all[45] && (len(got.Attempts) != 1 || got.Attempts[0].ResponseHeader == "" || len(got.Attempts[0].ResponseBody) == 0) {
			u.Errorf("attempts of %s: got %+v", id, got.Attempts)
		}
		found, err := u.s.Search().Prefix(u.Context(), id[:30], 5)
		if err != nil || !slices.ContainsFunc(found, func(f Found) bool { return f.ID == id && f.Kind == FoundDelivery }) {
			u.Errorf("Find %s: got %v, %v", id, found, err)
		}
	}
	got, err := u.s.Deliveries().View(u.Context(), u.old[3])
	if err != nil || len(got.Redeliveries) != 1 || got.Redeliveries[0].ID != u.all[45] {
		u.Errorf("redelivery of %s: got %+v, %v", u.old[3], got.Redeliveries, err)
	}
}

func (u *upgraded) others() {
	last, err := u.s.Deliveries().LastAttempts(u.Context(), []string{u.old[0], u.all[44]})
	if err != nil || len(last) != 2 {
		u.Errorf("last attempts: got %v, %v", last, err)
	}
	if e, err := u.s.Events().View(u.Context(), u.program, u.event, ""); err != nil || len(e.Deliveries) != 41 ||
		e.Deliveries[40].ID != u.old[0] {
		u.Errorf("got %d deliveries of the event, %v", len(e.Deliveries), err)
	}
	sub, err := u.s.Subscriptions().View(u.Context(), u.sub, 10)
	if err != nil || len(sub.Recent) != 10 || sub.Recent[9].ID != u.old[36] || sub.Success.DeliveryID != u.all[44] ||
		sub.Failure.DeliveryID != u.old[39] {
		u.Errorf("page of the subscription: got %+v, %v", sub, err)
	}
	r, err := u.s.Replays().Plan(u.Context(), u.program, u.sub, &webhook.ReplayFields{Only: webhook.ReplayAll})
	if must(u, err); r.cursor.Total == 0 {
		u.Error("got 0 events to replay")
	}
}

// removals removes responses from before and after the upgrade, then everything old.
func (u *upgraded) removals() {
	u.s.quotas.successes = 10
	u.s.housekeeping.trim[u.sub] = struct{}{}
	must(u, u.s.removeResponses(u.Context()))
	for id, want := range map[string]bool{u.old[38]: false, u.old[0]: true, u.all[44]: true, u.old[3]: true} {
		got, err := u.s.Deliveries().View(u.Context(), id)
		if must(u, err); got.Attempts[0].ResponseRemoved == want {
			u.Errorf("response of %s stored: got %v", id, !want)
		}
	}
	_, err := u.s.sweep(u.Context(), time.Now().Add(-30*time.Minute), time.Time{})
	must(u, err)
	if n := count(u.T, u.s, "SELECT count(*) FROM deliveries"); n != 6 {
		u.Errorf("%d deliveries are left, want the 6 new ones", n)
	}
}

func readText(t *testing.T, s *Store, query string, args ...any) (text []byte) {
	t.Helper()
	must(t, s.db.Scan(t.Context(), query, args, &text))
	return text
}
