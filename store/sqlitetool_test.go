package store

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/store/schema"
	"service/store/sqlite"
	"service/test/harness"
)

// Operators may read the database with the sqlite3 of their distribution, which may be years older
// than the service's. It must agree with the service about every CHECK: in 3.40, for example,
// json_valid(NULL) is 0. The tables get random rows that satisfy their CHECKs.
func TestOtherSQLite(t *testing.T) {
	tool := harness.Tool(t, "sqlite3", "sqlite3")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "service.db")
	db, err := sql.Open("sqlite3", "file:"+path)
	must(t, err)
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(t.Context(), schema.Script+";PRAGMA foreign_keys = OFF; BEGIN"); err != nil {
		t.Fatal(err)
	}
	tables := make(map[string]string)
	_, each := sqlite.ReadsOf(t.Context(), db)
	must(t, each("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'", nil,
		func(scan func(...any) error) error {
			var name, sql string
			err := scan(&name, &sql)
			tables[name] = sql
			return err
		}))
	filled := 0
	for name, definition := range tables {
		if fillTable(t, db, random, name, definition) > 0 {
			filled++
		}
	}
	if filled < len(tables)*9/10 {
		t.Errorf("random rows fit %d of %d tables", filled, len(tables))
	}
	_, err = db.ExecContext(t.Context(), "COMMIT")
	must(t, errors.Join(err, db.Close()))
	for _, check := range []string{"quick_check", "integrity_check"} {
		if out, err := exec.CommandContext(t.Context(), tool, path, "PRAGMA "+check).CombinedOutput(); err != nil || string(out) != "ok\n" {
			t.Errorf("%s: got %v\n%s", check, err, out)
		}
	}
}

var quoted = regexp.MustCompile(`'([^']*)'`)

// fillTable inserts a few random rows into a table, and returns their number.
func fillTable(t *testing.T, db *sql.DB, random *rand.Rand, name, definition string) (rows int) {
	t.Helper()
	texts := []any{"[]", "{}", "[1]", nil, nil}
	for _, m := range quoted.FindAllStringSubmatch(definition, -1) {
		texts = append(texts, m[1])
	}
	columns := regexp.MustCompile(`(?m)^    ([a-z_]+) +(TEXT|INTEGER|REAL|BLOB)`).FindAllStringSubmatch(definition, -1)
	var names, marks []string
	for _, c := range columns {
		names, marks = append(names, c[1]), append(marks, "?")
	}
	insert := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", name, strings.Join(names, ", "), strings.Join(marks, ", "))
	for try := 0; try < 5_000 && rows < 8; try++ {
		values := make([]any, len(columns))
		for i, c := range columns {
			var all []any
			switch c[2] {
			case "TEXT":
				all = append([]any{fmt.Sprintf("x%d", try), fmt.Sprintf("%036d", try), fmt.Sprintf("a%d@example.com", try)}, texts...)
			case "INTEGER":
				all = []any{0, 1, 1, 2, 5, 100, 200, 60_000, try + 1, nil, nil}
			case "REAL":
				all = []any{0.5, 10.0, nil}
			default:
				all = []any{[]byte(fmt.Sprintf("%032d", try)), []byte("{}"), nil}
			}
			values[i] = all[random.IntN(len(all))]
		}
		if _, err := db.ExecContext(t.Context(), insert, values...); err == nil {
			rows++
		}
	}
	return rows
}
