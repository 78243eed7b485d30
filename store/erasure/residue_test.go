package erasure

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"service/store/schema"
	"service/store/sqlite"
)

var canary = []byte("canary-4711-canary")

// rows is a database with random rows in the tables with payloads.
type rows struct {
	t    *testing.T
	path string
	db   *sqlite.DB
	rand *rand.Rand

	truncate bool // the WAL before the next commit
}

func openRows(t *testing.T, seed uint64) *rows {
	r := &rows{t: t, path: filepath.Join(t.TempDir(), "service.db"), rand: rand.New(rand.NewPCG(seed, 0))}
	var err error
	truncate := sqlite.Hooks{BeforeBatch: func(t *sqlite.Tx) {
		if r.truncate {
			r.truncate = !t.TruncateWAL()
		}
	}}
	r.db, err = sqlite.Open(t.Context(), sqlite.Config{Path: r.path, Schema: schema.Current, Readers: [...]int{1, 1, 1}, Hooks: truncate,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.db.Close(nil) })
	r.exec("INSERT INTO programs (id, created_at, updated_at) VALUES ('acme', 0, 0)")
	return r
}

func (r *rows) write(fn func(*sqlite.Tx) error) {
	r.t.Helper()
	if err := r.db.Writer().Do(fn); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rows) exec(query string, args ...any) {
	r.t.Helper()
	r.write(func(t *sqlite.Tx) error { return t.Exec(query, args...) })
}

// payload returns a payload that repeats the canary.
func (r *rows) payload() []byte {
	size := 1 + r.rand.IntN(600)
	if r.rand.IntN(8) == 0 {
		size = 1 + r.rand.IntN(30_000)
	}
	return bytes.Repeat(canary, size/len(canary)+1)[:size]
}

// insert stores a payload in each table.
func (r *rows) insert(n int) {
	r.t.Helper()
	r.write(func(t *sqlite.Tx) error {
		err := t.Exec("INSERT INTO events (program_id, seq, id, name, received_at, json) VALUES ('acme', ?, ?, 'n', 0, ?)",
			n, fmt.Sprintf("%036d", n), r.payload())
		if err != nil {
			return err
		}
		if err := t.Exec("INSERT INTO responses (delivery, header, body) VALUES (?, '', ?)", r.rand.Int64N(1<<40), r.payload()); err != nil {
			return err
		}
		return t.Exec("INSERT INTO attempts (delivery, number, started_at, duration_ms, result, response_status, response_header, "+
			"response_body, response_truncated) VALUES (?, 1, 0, 0, 'failed', 500, '', ?, 0)", n, r.payload())
	})
}

// contents returns a digest of all rows.
func (r *rows) contents() (all string) {
	r.t.Helper()
	for _, query := range []string{"SELECT group_concat(seq || hex(json)) FROM events",
		"SELECT group_concat(delivery || hex(body)) FROM responses", "SELECT group_concat(delivery || hex(response_body)) FROM attempts"} {
		var text *string
		if err := r.db.Scan(r.t.Context(), query, nil, &text); err != nil {
			r.t.Fatal(err)
		}
		if text != nil {
			all += *text + "\n"
		}
	}
	return all
}

// copies returns how often the files have the canary.
func (r *rows) copies() (n int) {
	r.t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(r.path + suffix)
		if err != nil {
			r.t.Fatal(err)
		}
		n += bytes.Count(b, canary)
	}
	return n
}

// clear does what an erasure does after the rows, but for the parts that are left out.
func (r *rows) clear(residue bool) {
	r.t.Helper()
	run := func() {
		var from, next Residue
		for end := !residue; !end; from = next {
			r.write(func(t *sqlite.Tx) (err error) {
				next, end, err = from.Next(t, 1+r.rand.IntN(64))
				return err
			})
		}
	}
	run()
	for left := int64(1); left > 0; {
		r.write(func(t *sqlite.Tx) (err error) {
			left, err = Fill(t, 8)
			return err
		})
	}
	r.exec(DropBlanks, 1<<20)
	run()
	r.truncate = true
	if r.write(func(*sqlite.Tx) error { return nil }); r.truncate {
		r.t.Error("the WAL was not truncated")
	}
}

// replace stores payloads, moves some by removing others, as retention and quotas do, and replaces all, as if each
// had been erased.
func (r *rows) replace() {
	r.t.Helper()
	for n := range 400 {
		r.insert(n + 1)
	}
	for range 60 {
		from, to := 1+r.rand.IntN(400), r.rand.IntN(8)
		r.exec("DELETE FROM events WHERE seq BETWEEN ?1 AND ?1 + ?2", from, to)
		r.exec("DELETE FROM attempts WHERE delivery BETWEEN ?1 AND ?1 + ?2", from, to)
		r.exec("DELETE FROM responses WHERE delivery % 97 = ?", from%97)
	}
	r.exec("UPDATE events SET json = CAST('{}' AS BLOB)")
	r.exec("UPDATE responses SET body = zeroblob(length(body) / 3)")
	r.exec("UPDATE attempts SET response_body = x''")
}

// Rows move when others are removed, and their pages keep what they had. Afterwards no page has anything
// of the payloads that were replaced, and all rows are as they were.
func TestResidue(t *testing.T) {
	residue := 0
	for range 6 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := openRows(t, seed)
			r.replace()
			want := r.contents()
			r.clear(false)
			residue += r.copies()
			r.clear(true)
			if n := r.copies(); n > 0 {
				t.Errorf("the files have %d copies of the canary", n)
			}
			if r.contents() != want {
				t.Error("rows have changed")
			}
			var check string
			if err := r.db.Scan(t.Context(), "PRAGMA integrity_check", nil, &check); err != nil || check != "ok" {
				t.Errorf("integrity check: %s, %v", check, err)
			}
		})
	}
	if residue == 0 {
		t.Error("no page had a copy without the removal of residue, so the test would find none")
	}
}
