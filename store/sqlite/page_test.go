package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// Pages are those of the last commit, wherever SQLite has them.
func TestPage(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	path := filepath.Join(t.TempDir(), "test.db")
	truncate := false
	db := openPath(t, path, Hooks{BeforeBatch: func(t *Tx) {
		if truncate {
			truncate = !t.TruncateWAL()
		}
	}})
	defer db.Close(nil)
	write := func(fn func(*Tx) error) {
		t.Helper()
		must(t, db.Writer().Do(fn))
	}
	id := 0
	change := func(t *Tx) error {
		err := t.Exec("DELETE FROM items WHERE id < ?", fmt.Sprint(1000+max(0, id-r.IntN(400))))
		for range r.IntN(120) {
			id++
			err = errors.Join(err, t.Exec("INSERT INTO items (id, body) VALUES (?, ?)", fmt.Sprint(1000+id), make([]byte, r.IntN(3000))))
		}
		return err
	}
	for round := range 40 {
		for range 1 + r.IntN(4) {
			write(change)
		}
		pages := committedPages(t, db)
		if r.IntN(2) == 0 {
			continue
		}
		truncate = true
		if write(func(*Tx) error { return nil }); truncate {
			t.Fatal("the WAL was not truncated")
		}
		if file, err := os.ReadFile(path); err != nil || !bytes.Equal(file, pages) {
			t.Fatalf("round %d: the pages are not those of the file, %v", round, err)
		}
	}
}

// committedPages returns all pages of the last commit, in a write that changes them and fails.
func committedPages(t *testing.T, db *DB) (pages []byte) {
	t.Helper()
	failed := errors.New("failed")
	err := db.Writer().Do(func(t *Tx) error {
		if err := t.Exec("UPDATE items SET body = zeroblob(length(body) + 1)"); err != nil {
			return err
		}
		first, err := t.Page(1, nil)
		if err != nil {
			return err
		}
		for n := range binary.BigEndian.Uint32(first[28:]) { // the size of the database in pages
			page, err := t.Page(n+1, nil)
			if err != nil {
				return fmt.Errorf("page %d: %w", n+1, err)
			}
			pages = append(pages, page...)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	return pages
}
