package sqlite

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// A WAL that a power cut has left incomplete does not count as damaged.
func TestTornWAL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{})
	defer db.Close(nil)
	body := bytes.Repeat([]byte("body"), 3000) // several frames per commit
	for i := range 4 {
		err := db.Writer().Do(func(t *Tx) error {
			return t.Exec("INSERT INTO items (id, body) VALUES (?, ?)", strconv.Itoa(i), body)
		})
		must(t, err)
	}
	wal, err := os.ReadFile(path + "-wal")
	must(t, err)
	const frame = walFrameHeader + 4096
	var ends []int // offsets at which commits end
	for at := walHeader; at < len(wal); at += frame {
		if [4]byte(wal[at+4:]) != [4]byte{} {
			ends = append(ends, at+frame)
		}
	}
	check := func(name string, wal []byte) {
		t.Helper()
		if got, err := walDamage(bytes.NewReader(wal)); got != "" || err != nil {
			t.Errorf("%s: got %q, %v, want no damage", name, got, err)
		}
	}
	check("complete", wal)
	for n := 0; n < len(wal); n += 511 {
		check("truncated", wal[:n])
	}
	last := ends[len(ends)-2]
	for at := last; at < len(wal); at += frame {
		torn := slices.Clone(wal)
		clear(torn[at : at+frame])
		check("a frame of the last commit is missing", torn)
		torn = slices.Clone(wal)
		clear(torn[at+frame/2 : at+frame])
		check("half a frame of the last commit is missing", torn)
	}
	// A shorter commit overwrites the beginning of a failed one.
	short := slices.Clone(wal[:last])
	check("leftover frames of a failed commit", append(short, wal[len(wal)-frame:]...))
	old := slices.Clone(wal)
	for at := walHeader + 5*frame; at < len(old); at += frame {
		old[at+8]-- // another salt
	}
	check("frames from before SQLite restarted the WAL", old)
	torn := slices.Clone(wal)
	torn[ends[0]-1]++
	if got, err := walDamage(bytes.NewReader(torn)); got == "" || err != nil {
		t.Errorf("third to last commit damaged: got %q, %v, want damage", got, err)
	}
}
