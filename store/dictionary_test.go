package store

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"service/store/dictionary"
	"service/store/tail"
	"service/webhook"
)

// openWith opens a data directory with a dictionary.
func openWith(t *testing.T, dir, dictionary string) *Store {
	t.Helper()
	s := opened(t, Config{Dir: dir, Dictionary: []byte(dictionary)})
	t.Cleanup(func() { s.Close() })
	return s
}

// Every event is read back unchanged, whether it was stored uncompressed, with an earlier
// dictionary or with the newest.
func TestEventsOfEveryDictionary(t *testing.T) {
	dir := memoryDir(t)
	var published []webhook.Event
	for _, dictionary := range []string{"", `,"name":"content_updated","version":"1","content_id":`,
		strings.Repeat("another catalog ", 8000), ""} {
		s := openWith(t, dir, dictionary)
		if len(published) == 0 {
			program(t, s, "p")
		}
		published = append(published, publish(t, s, "p", "content_updated", "content_updated")...)
		large := event("content_updated")
		large.JSON = append(bytes.TrimSuffix(large.JSON, []byte("}")), `,"text":"`+strings.Repeat("ü", 100_000)+`"}`...)
		publishAll(t, s, "p", large)
		published = append(published, large)
		s.tail = tail.New(0)
		for _, e := range published {
			got, err := s.Events().Get(t.Context(), "p", e.ID)
			if err != nil || !bytes.Equal(got.JSON, e.JSON) || got.Timestamp != "2026-01-02T03:04:05.000Z" {
				t.Fatalf("%s is read as %.200s, %v", e.JSON[:50], got.JSON, err)
			}
		}
		page, _, err := s.Events().Page(t.Context(), "p", query(t, webhook.EventList,
			"filter[timestamp][from]=2026-01-02T03:04:05Z&filter[timestamp][to]=2026-01-02T03:04:06Z&page[size]=100"))
		if err != nil || len(page) != len(published) {
			t.Errorf("found %d of %d events by timestamp (%v)", len(page), len(published), err)
		}
		must(t, s.Close())
	}
	s := openWith(t, dir, "")
	if got := count(t, s, "SELECT count(DISTINCT substr(json, 1, 1)) FROM events"); got != 3 || s.dictionaries.Current() != 2 {
		t.Errorf("got %d stored forms of events, and current dictionary %d", got, s.dictionaries.Current())
	}
}

// The same dictionary is stored once, and the number of dictionaries is bounded.
func TestDictionariesAreBounded(t *testing.T) {
	dir := memoryDir(t)
	s := openWith(t, dir, "what events have in common")
	must(t, s.Close())
	s = openWith(t, dir, "what events have in common")
	wantNumber(t, "dictionaries", count(t, s, "SELECT count(*) FROM dictionaries"), 1)
	must(t, s.writer.do(func(t *tx) error {
		return t.Exec("INSERT INTO dictionaries WITH RECURSIVE n(v) AS (SELECT 2 UNION ALL SELECT v + 1 FROM n " +
			"WHERE v < 100) SELECT v, content FROM n, dictionaries")
	}))
	must(t, s.Close())
	s = openWith(t, dir, "a dictionary that is not stored yet")
	if n := count(t, s, "SELECT count(*) FROM dictionaries"); n != dictionary.Max || s.dictionaries.Current() != dictionary.Max {
		t.Errorf("%d dictionaries, current %d", n, s.dictionaries.Current())
	}
}

// An event that cannot be decompressed is an error.
func TestUnpackErrors(t *testing.T) {
	s := open(t)
	e := notification(rand.New(rand.NewPCG(1, 2)), webhook.NewID(), time.Now())
	var buf []byte
	packed := bytes.Clone(s.dictionaries.Pack(&buf, &e))
	if len(packed) > 140 {
		t.Errorf("packed %d bytes into %d", len(e.JSON), len(packed))
	}
	if got, err := s.dictionaries.Unpack(e.ID, packed); err != nil || !bytes.Equal(got, e.JSON) {
		t.Fatalf("unpacked %s, %v", got, err)
	}
	for _, bad := range [][]byte{packed[:20], packed[:len(packed)-1], append([]byte{99}, packed[1:]...),
		append(bytes.Clone(packed[:26]), 0xff, 0xff, 0xff, 0xff, 0x0f)} {
		if got, err := s.dictionaries.Unpack(e.ID, bad); err == nil {
			t.Errorf("unpacked %q as %s, want an error", bad, got)
		}
	}
	// JSON without the usual start of an event is stored unchanged.
	for _, json := range []string{`{}`, `{"id":"other","timestamp":"2026-01-02T03:04:05Z"}`, `{"id":"` + e.ID + `","timestamp":"`, ""} {
		other := webhook.Event{ID: e.ID, JSON: []byte(json)}
		if got := s.dictionaries.Pack(&buf, &other); string(got) != json {
			t.Errorf("%s is stored as %q", json, got)
		}
	}
}
