package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"service/webhook"
)

func insertProgram(id string) func(*tx) error {
	return func(t *tx) error { return t.ensureProgram(id, time.Now()) }
}

func TestWritesOfACrowdShareCommits(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("again=%t", again), func(t *testing.T) {
			s := open(t)
			var wg sync.WaitGroup
			errs, told := make([]error, 400), make([]int, 400)
			hold := lead(s)
			for i := range errs {
				op := s.writer.submit(&write{again: again, run: func(t *tx) error {
					t.afterCommit(func() { told[i]++ })
					if i%4 == 3 {
						// It writes, and then fails: nothing of it must stay.
						if err := t.ensureProgram(fmt.Sprint("bad-", i), time.Now()); err != nil {
							return err
						}
						return errors.New("refused")
					}
					return t.ensureProgram(fmt.Sprint("good-", i), time.Now())
				}})
				wg.Go(func() { errs[i] = s.writer.wait(op) })
			}
			hold()
			wg.Wait()
			for i, err := range errs {
				if bad := i%4 == 3; bad != (err != nil) || bad == (told[i] == 1) {
					t.Errorf("write %d: error %v, and it was told %d times", i, err, told[i])
				}
			}
			programs, err := s.Programs(context.Background())
			if err != nil || len(programs) != 300 {
				t.Fatalf("got %d programs (%v), want 300", len(programs), err)
			}
			for _, p := range programs {
				if strings.HasPrefix(p.ID, "bad") {
					t.Errorf("%s was stored by a write that failed", p.ID)
				}
			}
		})
	}
}

// lead holds the role of the leader until what it returns is called, so that
// what is submitted meanwhile shares a commit.
func lead(s *Store) (release func()) {
	hold, held := make(chan struct{}), make(chan struct{})
	op := s.writer.submit(&write{again: true, run: func(*tx) error { close(held); <-hold; return nil }})
	go s.writer.wait(op)
	<-held
	return func() { close(hold) }
}

// Writes that may be run again have no savepoint until one of them fails that
// has written something; they are run once unless one does.
func TestWritesAreRunAgainOnlyWhenOneMustBeUndone(t *testing.T) {
	for name, test := range map[string]struct {
		last func(*tx) error
		runs int // of another write of the same commit
	}{
		"all go well":      {insertProgram("last"), 1},
		"it wrote nothing": {func(*tx) error { return errors.New("refused") }, 1},
		"it changed nothing": {func(t *tx) error {
			return errors.Join(t.exec("DELETE FROM programs WHERE id = 'nobody'"), errors.New("refused"))
		}, 1},
		"it wrote": {func(t *tx) error {
			return errors.Join(t.ensureProgram("last", time.Now()), errors.New("refused"))
		}, 2},
		"it wrote and read": {func(t *tx) error {
			var id string
			err := t.scan("INSERT INTO programs (id, created_at) VALUES ('last', 1) RETURNING id", nil, &id)
			return errors.Join(err, errors.New("refused"))
		}, 2},
		"its statement failed": {func(t *tx) error {
			return t.exec("INSERT INTO cursors (subscription_id, seq) VALUES ('nobody', 1)")
		}, 2},
		"it panicked": {func(t *tx) error {
			if err := t.ensureProgram("last", time.Now()); err != nil {
				return err
			}
			panic("poison")
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			release := lead(s)
			runs, told := 0, 0
			first := s.writer.submit(&write{again: true, run: func(t *tx) error {
				runs++
				t.afterCommit(func() { told++ })
				return t.ensureProgram("first", time.Now())
			}})
			last := s.writer.submit(&write{again: true, run: test.last})
			release()
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := s.writer.wait(first); err != nil {
					t.Errorf("the other write failed: %v", err)
				}
			})
			err := s.writer.wait(last)
			wg.Wait()
			programs, e := s.Programs(context.Background())
			want := 1
			if name == "all go well" {
				want = 2
			}
			if (err == nil) != (want == 2) || e != nil || len(programs) != want {
				t.Errorf("the last write: %v; %d programs (%v), want %d", err, len(programs), e, want)
			}
			if runs != test.runs || told != 1 {
				t.Errorf("the other write was run %d times and told %d times, want %d and 1", runs, told, test.runs)
			}
		})
	}
}

// A write that is alone in its commit needs no savepoint to be undone.
func TestALoneWriteIsUndone(t *testing.T) {
	s := open(t)
	err := s.writer.do(func(t *tx) error {
		t.setHead("p", head{seq: 41})
		return errors.Join(t.ensureProgram("p", time.Now()), errors.New("refused"))
	})
	programs, e := s.Programs(context.Background())
	if err == nil || e != nil || len(programs) != 0 {
		t.Errorf("got %v and %d programs (%v), want an error and none", err, len(programs), e)
	}
	program(t, s, "p")
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != 1 {
		t.Errorf("the first event has seq %d, want 1", e[0].Seq)
	}
}

func TestAPanicCostsItsOwnWriteAlone(t *testing.T) {
	s := open(t)
	err := s.writer.do(func(*tx) error { panic("poison") })
	if err == nil || !strings.Contains(err.Error(), "poison") {
		t.Errorf("got %v, want the panic as an error", err)
	}
	if err := s.writer.do(insertProgram("p")); err != nil {
		t.Errorf("the writer did not survive: %v", err)
	}
}

// When the commit itself fails, every write in it has failed, what they told
// each other in memory is forgotten, and the next commit is sound.
func TestAFailedCommitFailsAllItsWrites(t *testing.T) {
	s := open(t)
	program(t, s, "p")
	publish(t, s, "p", "content_updated")
	told := false
	err := s.writer.do(func(t *tx) error {
		t.afterCommit(func() { told = true })
		t.setHead("p", head{seq: 41})
		// A deferred foreign key is checked by COMMIT.
		if err := t.exec("PRAGMA defer_foreign_keys = ON"); err != nil {
			return err
		}
		return t.exec("INSERT INTO cursors (subscription_id, seq) VALUES ('nobody', 1)")
	})
	if err == nil || told {
		t.Fatalf("got error %v, told %t; want a failed commit that tells nobody", err, told)
	}
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != 2 {
		t.Errorf("the next event has seq %d, want 2", e[0].Seq)
	}
}

func TestWritesAreRunInTheOrderOfTheirSubmission(t *testing.T) {
	s := open(t)
	var got []int
	var ops []*write
	release := lead(s)
	var wg sync.WaitGroup
	for i := range 1000 {
		ops = append(ops, s.writer.submit(&write{run: func(*tx) error { got = append(got, i); return nil }}))
	}
	release()
	for _, op := range ops {
		wg.Go(func() { s.writer.wait(op) })
	}
	wg.Wait()
	for i, n := range got {
		if i != n {
			t.Fatalf("write %d came in place %d", n, i)
		}
	}
	if len(got) != 1000 {
		t.Errorf("%d writes were run, want 1000", len(got))
	}
}

func TestAClosedStoreRefusesWrites(t *testing.T) {
	s, err := Open(context.Background(), Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.writer.do(insertProgram("p")); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
}

// A panic after the commit takes down its own caller, and not the writer.
func TestAPanicAfterTheCommitPassesTheRoleOn(t *testing.T) {
	s := open(t)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		s.writer.do(func(t *tx) error { t.afterCommit(func() { panic("after") }); return nil })
	}()
	if err := s.writer.do(insertProgram("p")); err != nil {
		t.Errorf("the writer did not survive: %v", err)
	}
}

// Spans of the log that hold nothing do not add up, and those that do are bounded.
func TestInterestsAreBounded(t *testing.T) {
	ctx := context.Background()
	s := open(t)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated", "content_deleted")
	on, off := true, false
	toggle := func() error {
		if _, err := s.UpdateSubscription(ctx, "p", sub.ID, &webhook.SubscriptionFields{Active: &off}); err != nil {
			return err
		}
		_, err := s.UpdateSubscription(ctx, "p", sub.ID, &webhook.SubscriptionFields{Active: &on})
		return err
	}
	for range 20 {
		publish(t, s, "p", "channel_created")
		if err := toggle(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(lane(t, s, sub.ID).Interests); n != 2 {
		t.Errorf("%d spans, want one a name", n)
	}
	var err error
	for range maxClosedInterests + 1 {
		publish(t, s, "p", "content_updated")
		if err = toggle(); err != nil {
			break
		}
	}
	wantCode(t, err, webhook.CodeConflict)
	if n := len(lane(t, s, sub.ID).Interests); n > maxClosedInterests+2 {
		t.Errorf("%d spans, want at most %d", n, maxClosedInterests+2)
	}
}

// A store that is full says so, forgets nothing, and goes on when there is room.
func TestAFullStoreRecovers(t *testing.T) {
	ctx := context.Background()
	s := open(t)
	program(t, s, "p")
	limit := func(pages string) {
		if _, err := s.writer.conn.ExecContext(ctx, "PRAGMA max_page_count = "+pages); err != nil {
			t.Fatal(err)
		}
	}
	limit("1") // means as many as there are
	stored := 0
	var err error
	for range 1000 {
		if _, err = s.Publish(ctx, "p", []webhook.Event{event("content_updated")}); err != nil {
			break
		}
		stored++
	}
	if !Unavailable(err) {
		t.Fatalf("got %v after %d events, want a store that is full", err, stored)
	}
	limit("1000000")
	if err := s.Check(ctx); err != nil {
		t.Errorf("with room again: %v", err)
	}
	var checked int
	if err := s.readers.QueryRow("SELECT count(*) FROM settings WHERE name = 'checked_at'").Scan(&checked); err != nil || checked != 1 {
		t.Errorf("the check after a failure wrote %d rows (%v), want 1", checked, err)
	}
	if e := publish(t, s, "p", "content_updated"); e[0].Seq != int64(stored)+1 {
		t.Errorf("the log goes on at %d, want %d", e[0].Seq, stored+1)
	}
}
