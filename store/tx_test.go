package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

func insertProgram(id string) func(*tx) error {
	return func(t *tx) error { return t.ensureProgram(id, time.Now()) }
}

// submit is [sqlite.Writer.Submit] with the store's transaction.
func (w *writer) submit(fn func(*tx) error, repeatable bool) *sqlite.Op {
	return w.Submit(func(*sqlite.Tx) error { return fn(&w.tx) }, repeatable)
}

// lead holds leadership of the writer until release is called, so that writes submitted
// until then share a commit.
func lead(s *Store) (release func()) {
	done, leading := make(chan struct{}), make(chan struct{})
	op := s.writer.submit(func(*tx) error { close(leading); <-done; return nil }, true)
	go s.writer.Wait(op)
	<-leading
	return func() { close(done) }
}

// A failed write that is alone in its commit is rolled back without a savepoint.
func TestFailedWriteAloneInCommit(t *testing.T) {
	s := open(t)
	err := s.writer.do(func(t *tx) error {
		t.setHead("p", head{seq: 41})
		return errors.Join(t.ensureProgram("p", time.Now()), errors.New("refused"))
	})
	programs, e := s.Programs().List(context.Background())
	if err == nil || e != nil || len(programs) != 0 {
		t.Errorf("got %v and %d programs (%v), want an error and none", err, len(programs), e)
	}
	program(t, s, "p")
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != 1 {
		t.Errorf("first seq: got %d, want 1", e[0].Seq)
	}
}

// When a commit fails, all its writes fail, and cached state is discarded.
func TestFailedCommitFailsAllWrites(t *testing.T) {
	s := openProgram(t)
	publish(t, s, "p", "content_updated")
	called := false
	err := s.writer.do(func(t *tx) error {
		t.AfterCommit(func() { called = true })
		t.setHead("p", head{seq: 41})
		// A deferred foreign key is checked by COMMIT.
		if err := t.Exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		return t.Exec("INSERT INTO cursors (subscription_id, seq) VALUES ('unknown', 1)")
	})
	if err == nil || called {
		t.Fatalf("got error %v, AfterCommit called %t; want an error and false", err, called)
	}
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != 2 {
		t.Errorf("next seq: got %d, want 2", e[0].Seq)
	}
}

// Closed ranges without events are removed, and the number of the others is bounded.
func TestInterestsAreBounded(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	sub := subscribe(t, s, "p", "content_updated", "content_deleted")
	on, off := true, false
	toggle := func() error {
		if _, err := s.Subscriptions().Update(ctx, "p", sub.ID, &webhook.SubscriptionFields{Active: &off}); err != nil {
			return err
		}
		_, err := s.Subscriptions().Update(ctx, "p", sub.ID, &webhook.SubscriptionFields{Active: &on})
		return err
	}
	for range 20 {
		publish(t, s, "p", "channel_created")
		must(t, toggle())
	}
	wantNumber(t, "interests, one per name", len(queue(t, s, sub.ID).Interests), 2)
	var err error
	for range maxClosedInterests + 1 {
		publish(t, s, "p", "content_updated")
		if err = toggle(); err != nil {
			break
		}
	}
	wantCode(t, err, webhook.CodeConflict)
	if n := len(queue(t, s, sub.ID).Interests); n > maxClosedInterests+2 {
		t.Errorf("%d interests, want at most %d", n, maxClosedInterests+2)
	}
}

// A full store reports an error, loses nothing, and recovers when there is space.
func TestFullStoreRecovers(t *testing.T) {
	ctx := context.Background()
	s := openProgram(t)
	limit := func(pages string) {
		_, err := s.db.Writer().Conn().ExecContext(ctx, "PRAGMA max_page_count = "+pages)
		must(t, err)
	}
	limit("1") // rounded up to the current size
	stored := 0
	var err error
	for range 1000 {
		if _, err = s.Events().Publish(ctx, "p", []webhook.Event{event("content_updated")}); err != nil {
			break
		}
		stored++
	}
	if !Unavailable(err) {
		t.Fatalf("got %v after %d events, want an error", err, stored)
	}
	limit("1000000")
	wantError(t, "with space again", s.Check(ctx), nil)
	var checked int
	if err := s.db.Readers().QueryRow("SELECT count(*) FROM settings WHERE name = 'checked_at'").Scan(&checked); err != nil || checked != 1 {
		t.Errorf("Check after a failure wrote %d rows (%v), want 1", checked, err)
	}
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != int64(stored)+1 {
		t.Errorf("next seq: got %d, want %d", e[0].Seq, stored+1)
	}
}
