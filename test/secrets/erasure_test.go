package secrets

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"service/store/dictionary"
	"service/store/sqlite"
	"service/test/harness"
)

// eraser drives a service whose events contain a canary.
type eraser struct {
	*harness.Instance
	t      *testing.T
	token  string
	canary harness.Canary
	text   string
}

func newEraser(t *testing.T, flags ...string) *eraser { return newEraserIn(t, t.TempDir(), flags...) }

func newEraserIn(t *testing.T, data string, flags ...string) *eraser {
	text := "canary" + harness.RandomHex(24)
	e := &eraser{t: t, text: text, canary: harness.NewCanary("payload", text, text, nil)}
	flags = append([]string{"--retry-schedule", "1s,1s,1s,1s", "--retry-jitter", "0", "--failing-after", "0",
		"--rejecting-after", "0"}, flags...)
	e.Instance = harness.NewInstance(t, harness.Build(t), data, flags...)
	e.token = e.Token("acme")
	e.MustStart()
	return e
}

// publish publishes events in one request, and returns their IDs.
func (e *eraser) publish(n int) (ids []string) {
	e.t.Helper()
	events := make([]map[string]any, n)
	for i := range events {
		more := strings.Repeat(fmt.Sprint("text ", i, " "), 20)
		if i%8 == 7 { // has pages of its own
			more = strings.Repeat(e.text+" "+harness.RandomHex(100+i), 20+i)
		}
		events[i] = map[string]any{"name": "user_notification_created", "version": "1", "category": "erasure_test", "user_id": 4711,
			"notification_id": i + 1, "acknowledged": false, "label": "l", "text": "t",
			"details": map[string]any{"text": e.text, "more": more}}
	}
	var answer struct{ Data []struct{ ID string } }
	if status, err := e.Call(e.t.Context(), e.token, "POST", e.URL()+"/v2/events", map[string]any{"events": events}, &answer); err != nil ||
		status != http.StatusCreated {
		e.t.Fatalf("publish: status %d, %v", status, err)
	}
	for _, d := range answer.Data {
		ids = append(ids, d.ID)
	}
	return ids
}

// erase erases an event over the API.
func (e *eraser) erase(id string) {
	e.t.Helper()
	status, err := e.Call(e.t.Context(), e.token, "DELETE", e.URL()+"/v2/events/"+id, nil, nil)
	if err != nil || status != http.StatusAccepted {
		e.t.Fatalf("erase: status %d, %v", status, err)
	}
}

// awaitErased waits until the erasures have ended.
func (e *eraser) awaitErased() {
	e.t.Helper()
	db := harness.OpenDatabase(e.t, e.Data)
	harness.WaitFor(e.t, "the end of the erasures", func() bool {
		var left int
		if err := db.QueryRow("SELECT (SELECT count(*) FROM erasures) + (SELECT count(*) FROM blanks)").Scan(&left); err != nil {
			e.t.Fatal(err)
		}
		return left == 0
	})
}

// copies returns where a data directory has the canary: files, but for those of Litestream, and events,
// which are compressed.
func (e *eraser) copies(data string) (all []string) {
	e.t.Helper()
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == ".service.db-litestream" {
			return fs.SkipDir
		}
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".db-shm") {
			return err
		}
		b, err := os.ReadFile(path)
		if spelling := e.canary.Find(b); spelling != "" {
			at := bytes.Index(b, e.canary.Spellings[spelling])
			all = append(all, fmt.Sprintf("%s at page %d, offset %d, as %s", d.Name(), at/4096+1, at%4096, spelling))
		}
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	db := harness.OpenDatabase(e.t, data)
	var dictionaries dictionary.Set
	_, each := sqlite.ReadsOf(e.t.Context(), db)
	if err := dictionaries.Read(each); err != nil {
		e.t.Fatal(err)
	}
	err = each("SELECT id, json FROM events", nil, func(scan func(...any) error) error {
		var id string
		var stored []byte
		if err := scan(&id, &stored); err != nil {
			return err
		}
		plain, err := dictionaries.Unpack(id, stored)
		if e.canary.Find(plain) != "" {
			all = append(all, "event "+id)
		}
		return err
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return append(all, e.cells(db)...)
}

// cells returns the columns of all tables that contain the canary.
func (e *eraser) cells(db *sql.DB) (all []string) {
	e.t.Helper()
	columns := make(map[string]bool)
	_, each := sqlite.ReadsOf(e.t.Context(), db)
	var queries [][2]string
	const tables = "SELECT t.name, c.name FROM pragma_table_list t, pragma_table_info(t.name) c " +
		"WHERE t.type = 'table' AND t.schema = 'main'"
	err := each(tables, nil,
		func(scan func(...any) error) error {
			var table, column string
			err := scan(&table, &column)
			queries = append(queries, [2]string{table, column})
			return err
		})
	for _, q := range queries {
		if err != nil {
			break
		}
		var n int
		if err = db.QueryRow("SELECT count(*) FROM "+q[0]+" WHERE instr("+q[1]+", ?)", e.text).Scan(&n); n > 0 {
			columns[q[0]+"."+q[1]] = true
		}
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(columns))
}

func (e *eraser) wantCopies(want bool) {
	e.t.Helper()
	all := e.copies(e.Data)
	if want && len(all) == 0 {
		e.t.Error("the data directory has no canary before the erasure, so the test would find none")
	}
	if !want && len(all) > 0 {
		e.t.Errorf("after the erasure: %s", strings.Join(all, "; "))
	}
}

// echo answers deliveries with what they contain.
func echo(status func(n int64) int) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if harness.IsPing(body) {
			return
		}
		if i := bytes.Index(body, []byte("canary")); i >= 0 {
			w.Header().Set("X-Echo", string(body[i:i+30]))
		}
		w.WriteHeader(status(n.Add(1)))
		w.Write(body[:min(len(body), 8<<10)])
	})
}

// After an erasure nothing in the data directory contains the payload: no row, no page, no file.
func TestErasureLeavesNothing(t *testing.T) {
	e := newEraser(t)
	always := func(status int) func(int64) int { return func(int64) int { return status } }
	var subs []string
	for _, status := range []func(int64) int{always(200), always(500), always(410), func(n int64) int { return []int{200, 503}[n%2] }} {
		subs = append(subs, e.Subscribe(e.token, harness.Subscription{URL: harness.Listen(t, echo(status)),
			Events: harness.Events("user_notification_created")}))
	}
	var ids []string
	for range 30 {
		ids = append(ids, e.publish(1)...)
	}
	ids = append(ids, e.publish(40)...)
	// A stored answer, which the server encrypts: the unit tests look into it.
	req, err := http.NewRequestWithContext(t.Context(), "POST", e.URL()+"/v2/events", strings.NewReader(
		`{"name":"user_notification_created","version":"1","category":"erasure_test","user_id":4711,"notification_id":1,"acknowledged":false,"label":"l","text":"t","details":{"text":"`+e.text+`"}}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "erase-me")
	send := func() string {
		again := req.Clone(t.Context())
		again.Body, _ = req.GetBody()
		resp, err := e.Client.Do(again)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusCreated {
			t.Fatalf("publish: %s %s", resp.Status, b)
		}
		return string(b)
	}
	_, rest, _ := strings.Cut(send(), `"id":"`)
	ids = append(ids, rest[:36])
	for _, id := range subs {
		e.AwaitFinal(e.token, "/v2/webhooks/subscriptions/"+id+"/deliveries")
	}
	ids = append(ids, e.publish(20)...) // some of them are in flight, and some wait for a retry
	e.wantCopies(true)
	out, err := e.Command("event", "erase", "--data", e.Data, "--program", "acme", "--where", "details.text="+e.text, "--dry-run")
	if err != nil || !strings.Contains(out, fmt.Sprint(len(ids), " events of ")) {
		t.Errorf("dry run: %s, %v; want %d events", out, err, len(ids))
	}
	out, err = e.Command("event", "erase", "--data", e.Data, "--program", "acme", "--where", "details.text="+e.text, "--yes")
	if err != nil || !strings.Contains(out, fmt.Sprint("Erased ", len(ids), " events")) {
		t.Errorf("erase: %s, %v; want %d events", out, err, len(ids))
	}
	e.awaitErased()
	e.wantCopies(false)
	if strings.Contains(send(), e.text) {
		t.Error("the stored answer has the payload")
	}
	for _, id := range subs {
		e.AwaitFinal(e.token, "/v2/webhooks/subscriptions/"+id+"/deliveries")
	}
	e.wantCopies(false)
	e.MustStop(e.Last())
	e.wantCopies(false)
}

// An erasure that was accepted goes on after kill -9.
func TestErasureGoesOnAfterKill(t *testing.T) {
	e := newEraser(t)
	sub := e.Subscribe(e.token, harness.Subscription{URL: harness.Listen(t, echo(func(n int64) int { return []int{200, 410, 503}[n%3] })),
		Events: harness.Events("user_notification_created")})
	var ids []string
	for range 3 {
		for range 20 {
			ids = append(ids, e.publish(1)...)
		}
		ids = append(ids, e.publish(50)...)
	}
	e.AwaitFinal(e.token, "/v2/webhooks/subscriptions/"+sub+"/deliveries")
	e.wantCopies(true)
	for i, id := range ids {
		e.erase(id)
		if i%30 == 29 || i == len(ids)-1 {
			e.Kill(e.Last())
			e.MustStart()
		}
	}
	e.awaitErased()
	e.wantCopies(false)
}

// A program that was deleted leaves nothing either.
func TestDeletedProgramLeavesNothing(t *testing.T) {
	e := newEraser(t)
	sub := e.Subscribe(e.token, harness.Subscription{URL: harness.Listen(t, echo(func(n int64) int { return []int{200, 410}[n%2] })),
		Events: harness.Events("user_notification_created")})
	for range 10 {
		e.publish(30)
	}
	e.AwaitFinal(e.token, "/v2/webhooks/subscriptions/"+sub+"/deliveries")
	e.wantCopies(true)
	if out, err := e.Command("program", "delete", "acme", "--data", e.Data, "--yes"); err != nil {
		t.Fatalf("delete: %s, %v", out, err)
	}
	db := harness.OpenDatabase(t, e.Data)
	harness.WaitFor(t, "the end of the program", func() bool {
		var left int
		if err := db.QueryRow("SELECT count(*) FROM programs WHERE id = 'acme'").Scan(&left); err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	e.awaitErased()
	e.wantCopies(false)
}

// With a replica, Litestream checkpoints and truncates the WAL. What the replica restores after an
// erasure has no payload, even in free pages.
func TestErasureWithReplica(t *testing.T) {
	data, replica := t.TempDir(), t.TempDir()
	config := filepath.Join(t.TempDir(), "litestream.yml")
	text := "dbs:\n  - path: " + data + "/service.db\n    monitor-interval: 50ms\n" +
		"    replica:\n      sync-interval: 50ms\n      path: " + replica
	if err := os.WriteFile(config, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEraserIn(t, data, "--litestream", config)
	sub := e.Subscribe(e.token, harness.Subscription{URL: harness.Listen(t, echo(func(n int64) int { return []int{200, 410, 503}[n%3] })),
		Events: harness.Events("user_notification_created")})
	var ids []string
	for range 20 {
		ids = append(ids, e.publish(1)...)
	}
	ids = append(ids, e.publish(50)...)
	e.AwaitFinal(e.token, "/v2/webhooks/subscriptions/"+sub+"/deliveries")
	restored := func() string {
		e.MustStop(e.Last()) // uploads the last changes
		to := filepath.Join(t.TempDir(), "restored")
		if out, err := e.Command("restore", "--data", to, "--from", "file://"+replica); err != nil {
			t.Fatalf("restore: %v\n%s", err, out)
		}
		e.MustStart()
		return to
	}
	e.wantCopies(true)
	if len(e.copies(restored())) == 0 {
		t.Error("the replica has no canary before the erasure")
	}
	for _, id := range ids {
		e.erase(id)
	}
	e.awaitErased()
	e.wantCopies(false)
	to := restored()
	if all := e.copies(to); len(all) > 0 {
		t.Errorf("restored after the erasure: %s", strings.Join(all, "; "))
	}
	var erased int
	err := harness.OpenDatabase(t, to).QueryRow("SELECT count(*) FROM events WHERE erased_at IS NOT NULL").Scan(&erased)
	if err != nil || erased != len(ids) {
		t.Errorf("restored: got %d erased events, %v; want %d", erased, err, len(ids))
	}
	e.wantCopies(false)
}
