package failover

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"service/test/harness"
)

// oldPrimary is a primary that was killed, and the new primary, which lacks the last
// events.
type oldPrimary struct {
	old, present *harness.Instance
	token        string
	revoked      string // ID of a token that was revoked on the old primary only
}

const contentPublished = `{"id":"%s","name":"content_published","version":"1","content_id":%d,"channel_ids":[1]}`

// eventID returns the ID of the nth event.
func eventID(n int) string { return fmt.Sprintf("00000000-0000-7000-8000-%012d", n) }

func publishNumbers(in *harness.Instance, token string, from, to int) {
	var lines strings.Builder
	for n := from; n < to; n++ {
		fmt.Fprintf(&lines, contentPublished+"\n", eventID(n), n)
	}
	in.Publish(token, harness.NDJSON(lines.String()))
}

// newOldPrimary returns an old primary with the events 0 to 50, and a new primary with the events 0
// to 20.
func newOldPrimary(t *testing.T) *oldPrimary {
	binary := harness.Build(t)
	y := &oldPrimary{old: harness.NewInstance(t, binary, filepath.Join(t.TempDir(), "old"), "--litestream", "off")}
	old := y.old
	p := old.MustStart()
	y.token = old.Token("p")
	old.Token("p", "--name", "laptop")
	publishNumbers(old, y.token, 0, 20)
	old.MustStop(p)

	y.present = harness.NewInstance(t, binary, filepath.Join(t.TempDir(), "present"), "--litestream", "off")
	harness.Copy(t, old.Data, y.present.Data)
	own := filepath.Join(old.Data, "event_types")
	if err := os.MkdirAll(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "order_shipped.json"), []byte(orderShipped), 0o600); err != nil {
		t.Fatal(err)
	}
	p = old.MustStart()
	publishNumbers(old, y.token, 20, 50)
	old.Publish(y.token, []byte(`{"id":"`+eventID(50)+`","name":"order_shipped","version":"1","order_id":1}`))
	old.Publish(old.Token("lost"), []byte(fmt.Sprintf(contentPublished, eventID(51), 51)))
	receiver := harness.Listen(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	subscription := old.Subscribe(y.token, harness.Subscription{URL: receiver + "/hook?key=hidden",
		Events: harness.Events("content_published")})
	y.revoked = revoke(t, old, "laptop")
	publishNumbers(old, y.token, 52, 53)
	harness.WaitFor(t, "the delivery of the last event", func() bool {
		all, err := harness.Feed[harness.Delivery](old, y.token, "/v2/webhooks/subscriptions/"+subscription+"/deliveries")
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(all, func(d harness.Delivery) bool { return d.Events[0].ID == eventID(52) && d.Status.Final() })
	})
	old.Kill(p)
	return y
}

// revoke revokes the token with the given name and returns its ID.
func revoke(t *testing.T, in *harness.Instance, name string) string {
	t.Helper()
	out, err := in.Command("token", "list", "--data", in.Data)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		if strings.Contains(line, name) {
			id := strings.Fields(line)[0]
			if out, err := in.Command("token", "revoke", "--yes", id, "--data", in.Data); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			return id
		}
	}
	t.Fatalf("got no token %s:\n%s", name, out)
	return ""
}

// kill makes an event of the old primary older than the new primary's retention. It returns a copy
// of the data directory as after a kill: the last commits are only in the write-ahead log.
func (y *oldPrimary) kill(t *testing.T) string {
	t.Helper()
	db := harness.OpenDatabase(t, y.old.Data)
	if _, err := db.Exec("UPDATE events SET received_at = ? WHERE id = ?", time.Now().AddDate(0, 0, -40).UnixMilli(),
		eventID(30)); err != nil {
		t.Fatal(err)
	}
	harness.Copy(t, y.old.Data, y.old.Data+".killed")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	from := y.old.Data + ".killed"
	if info, err := os.Stat(filepath.Join(from, "service.db-wal")); err != nil || info.Size() == 0 {
		t.Fatalf("the old data has no write-ahead log: %v, %v", info, err)
	}
	return from
}

// TestSalvage publishes to a new primary the events that only the old data directory contains: with
// the same IDs, in the same order, once. The command must report events that cannot be published,
// and leave the old directory unchanged.
func TestSalvage(t *testing.T) {
	y := newOldPrimary(t)
	from := y.kill(t)
	salvage := func(more ...string) (string, error) {
		t.Helper()
		return y.present.Command(append([]string{"salvage", "--from", from, "--data", y.present.Data}, more...)...)
	}
	if out, err := salvage(); err == nil || !strings.Contains(out, "no server is running on") {
		t.Errorf("without a server: got %v, want an error\n%s", err, out)
	}
	p := y.present.MustStart()
	before := fingerprint(t, from)
	wants := func(out string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(out, want) {
				t.Errorf("want %q in the output:\n%s", want, out)
			}
		}
	}
	left := []string{
		"1 event of program lost not published: the new primary has no such program; create it with: ",
		"service token create --program lost\n",
		"event " + eventID(50) + " of program p not published: name is not the name of an event type",
		"1 event not published: older than the new primary's retention",
		"not all missing events could be published",
		"program lost: created at ",
		"/hook): created at ",
		"token " + y.revoked + " of program p (",
		"revoked; still valid on the new primary",
	}
	out, err := salvage("--dry-run")
	if err == nil {
		t.Errorf("a dry run that found unpublishable events: got success, want an error\n%s", out)
	}
	wants(out, append(left, "53 events compared: 31 missing, 30 would be published; subscribers already got 1 of them")...)
	if events := y.events(t); len(events) != 20 {
		t.Fatalf("after a dry run: got %d events, want 20", len(events))
	}
	if out, err = salvage(); err == nil {
		t.Errorf("events were not published: got success, want an error\n%s", out)
	}
	wants(out, append(left, "53 events compared: 31 missing, 30 published; subscribers already got 1 of them")...)
	var want []string
	for n := range 53 {
		if n != 30 && n != 50 && n != 51 {
			want = append(want, eventID(n))
		}
	}
	if got := y.events(t); !slices.Equal(got, want) {
		t.Errorf("events of the new primary: got\n%v, want\n%v", got, want)
	}

	// With the program and the event type created, the rest can be published.
	y.present.Token("lost")
	y.present.MustStop(p)
	harness.Copy(t, filepath.Join(from, "event_types"), filepath.Join(y.present.Data, "event_types"))
	y.present.MustStart()
	if out, err = salvage(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	wants(out, "53 events compared: 2 missing, 2 published")
	if out, err = salvage(); err != nil {
		t.Errorf("second run: %v\n%s", err, out)
	}
	wants(out, "53 events compared: none to publish")
	if strings.Contains(out, "hidden") {
		t.Errorf("the output contains the query of a URL:\n%s", out)
	}
	if after := fingerprint(t, from); after != before {
		t.Errorf("salvage changed the old data: got\n%s\nwant\n%s", after, before)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(from), "salvage-*")); err != nil || len(left) > 0 {
		t.Errorf("got temporary files %v, %v; want none", left, err)
	}
}

// TestSalvageInUse passes the data directory of a running service, which must fail.
func TestSalvageInUse(t *testing.T) {
	in := harness.NewInstance(t, harness.Build(t), filepath.Join(t.TempDir(), "data"), "--litestream", "off")
	in.MustStart()
	out, err := in.Command("salvage", "--from", in.Data, "--data", in.Data)
	if err == nil || !strings.Contains(out, "--from: the data directory is in use: ") {
		t.Errorf("a directory in use: got %v, want an error\n%s", err, out)
	}
	out, err = in.Command("salvage", "--from", t.TempDir(), "--data", in.Data)
	if err == nil || !strings.Contains(out, "--from: there is no data in ") {
		t.Errorf("an empty directory: got %v, want an error\n%s", err, out)
	}
}

// events returns the IDs of the new primary's events, in the order of publication.
func (y *oldPrimary) events(t *testing.T) (ids []string) {
	t.Helper()
	all, err := harness.Feed[struct{ ID string }](y.present, y.token, "/v2/events")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	slices.Reverse(ids)
	return ids
}

// fingerprint lists the files of a directory with their modes and content hashes.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprint(&b, strings.TrimPrefix(path, dir), " ", info.Mode(), " ", info.ModTime().UnixNano())
		if d.Type().IsRegular() {
			fmt.Fprintf(&b, " %x", sha256.Sum256(harness.Read(t, path)))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

const orderShipped = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Order shipped",
  "description": "Emitted when an order leaves the warehouse.",
  "type": "object",
  "properties": {
    "id": { "type": "string", "format": "uuid", "description": "Identifier of the event." },
    "timestamp": { "type": "string", "format": "date-time", "description": "When the event happened." },
    "name": { "const": "order_shipped", "description": "Name of the event." },
    "version": { "const": "1", "description": "Version of the event's payload." },
    "order_id": { "type": "integer", "format": "int64", "description": "ID of the order." }
  },
  "required": ["id", "timestamp", "name", "version", "order_id"],
  "additionalProperties": false,
  "examples": [{"id": "019ddcfe-0f37-7cf8-8f53-1f6be7c2d3c7", "timestamp": "2026-03-14T08:24:48.644Z", "name": "order_shipped", "version": "1", "order_id": 48211}]
}
`
