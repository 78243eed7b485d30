package sqlite

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestViewsPrepare runs as many Views as their class has readers. Each uses queries that were never
// prepared, while all readers are in use.
func TestViewsPrepare(t *testing.T) {
	db := open(t, Hooks{})
	const readers = 2 // of the class Service, see openPath
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var inside, ended sync.WaitGroup
	inside.Add(readers)
	for i := range readers {
		ended.Go(func() {
			err := db.View(ctx, func(v *View) error {
				inside.Done()
				inside.Wait()
				var n int
				if err := v.Scan(fmt.Sprintf("SELECT %d", i), nil, &n); err != nil || n != i {
					return fmt.Errorf("scan: got %d, %w", n, err)
				}
				return v.Each(fmt.Sprintf("SELECT %d LIMIT ?", i), []any{1}, func(scan func(...any) error) error { return scan(&n) })
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	ended.Wait()
	for i := range readers {
		if _, ok := db.stmts.Load(fmt.Sprintf("SELECT %d", i)); !ok {
			t.Error("a statement is not cached")
		}
	}
}
