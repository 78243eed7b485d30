package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// What a power cut may leave of a log is no damage.
func TestTornLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{})
	defer db.Close(nil)
	body := bytes.Repeat([]byte("body"), 3000) // several frames a commit
	for i := range 4 {
		if err := db.Writer().Do(func(t *Tx) error { return t.Exec("INSERT INTO items (id, body) VALUES (?, ?)", strconv.Itoa(i), body) }); err != nil {
			t.Fatal(err)
		}
	}
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	const frame = walFrameHeader + 4096
	var ends []int // of commits
	for at := walHeader; at < len(log); at += frame {
		if [4]byte(log[at+4:]) != [4]byte{} {
			ends = append(ends, at+frame)
		}
	}
	check := func(what string, log []byte) {
		t.Helper()
		if got, err := walDamage(bytes.NewReader(log)); got != "" || err != nil {
			t.Errorf("%s: got %q, %v; want no damage", what, got, err)
		}
	}
	check("whole", log)
	for n := 0; n < len(log); n += 511 {
		check("cut short", log[:n])
	}
	last := ends[len(ends)-2]
	for at := last; at < len(log); at += frame {
		torn := slices.Clone(log)
		clear(torn[at : at+frame])
		check("a frame of the last commit was not written", torn)
		torn = slices.Clone(log)
		clear(torn[at+frame/2 : at+frame])
		check("half a frame of the last commit was not written", torn)
	}
	// A commit that failed is overwritten by a shorter one.
	short := slices.Clone(log[:last])
	check("what is left of a commit that failed", append(short, log[len(log)-frame:]...))
	old := slices.Clone(log)
	for at := walHeader + 5*frame; at < len(old); at += frame {
		old[at+8]-- // of another salt
	}
	check("frames of before SQLite restarted the log", old)
	torn := slices.Clone(log)
	torn[ends[0]-1]++
	if got, err := walDamage(bytes.NewReader(torn)); got == "" || err != nil {
		t.Errorf("the third last commit and two whole ones after it: got %q, %v; want damage", got, err)
	}
}
