package sqlite

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// While reads overlap, so that the WAL is always in use, the writer truncates it.
func TestWALLimit(t *testing.T) {
	limit := &WALLimit{frames: 2 * AutoCheckpointFrames}
	path := filepath.Join(t.TempDir(), "test.db")
	db := openPath(t, path, Hooks{BeforeBatch: func(tx *Tx) {
		limit.next = limit.next.Add(-walInterval) // at every commit
		limit.BeforeBatch(tx)
	}})
	t.Cleanup(func() { db.Close(nil) })
	ctx, cancel := context.WithCancel(t.Context())
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	reading.Go(func() {
		end := beginRead(t, db)
		for ctx.Err() == nil {
			last := end
			end = beginRead(t, db)
			last()
		}
		end()
	})
	body, longest := make([]byte, 64<<10), int64(0)
	for range 2_000 {
		err := db.Writer().Do(func(tx *Tx) error { return tx.Exec("INSERT OR REPLACE INTO items (id, body) VALUES ('a', ?)", body) })
		must(t, err)
		info, err := os.Stat(path + "-wal")
		must(t, err)
		if info.Size() < longest {
			return // it was truncated
		}
		if longest = info.Size(); longest/4096 > 4*limit.frames {
			t.Fatalf("the WAL has %d frames, and was not truncated above %d", longest/4096, limit.frames)
		}
	}
	// The reads did not overlap, so SQLite restarted the WAL by itself.
}

// beginRead begins a read, which uses the WAL until the result is called.
func beginRead(t *testing.T, db *DB) (end func()) {
	begun, ending, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		begin := sync.OnceFunc(func() { close(begun) })
		defer begin()
		err := db.View(context.Background(), func(v *View) error {
			err := v.Scan("SELECT count(*) FROM refs", nil, new(int))
			begin()
			<-ending
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}()
	<-begun
	return func() { close(ending); <-ended }
}
