package store

import (
	"context"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// pull reads all pages of a subscription's log from a cursor to the end, and returns the seqs, the
// cursor at the end and whether a page was truncated.
func pull(t *testing.T, s *Store, sub *webhook.Subscription, programID, raw, cursor string) (seqs []int64, next string, truncated bool) {
	t.Helper()
	for {
		q := query(t, webhook.SubscriptionLog, raw)
		q.Cursor = cursor
		p, err := s.Events().Pull(t.Context(), programID, sub, q)
		must(t, err)
		for i := range p.Events {
			seqs = append(seqs, p.Events[i].Seq)
		}
		truncated = truncated || p.Truncated
		if cursor = p.Next; p.Head {
			return seqs, p.Next, truncated
		}
	}
}

func wantSeqs(t *testing.T, what string, got []int64, want ...int64) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// A pull selects by the current names and filters, and reads a bounded number of events per page.
func TestPullSelects(t *testing.T) {
	s := openProgram(t)
	sub := subscribeTo(t, s, "p", "content_updated", below5)
	_, start, _ := pull(t, s, &sub, "p", "", "")
	s.lists.Limits.CostlyScan = 10
	var all []string
	for range 35 {
		all = append(all, "content_updated") // content_id 7, which the filter excludes
	}
	publish(t, s, "p", all...)
	p, err := s.Events().Pull(t.Context(), "p", &sub, withCursor(query(t, webhook.SubscriptionLog, ""), start))
	must(t, err)
	if len(p.Events) != 0 || p.Head || p.Next == start {
		t.Errorf("a page without matches: got %+v, want one that continues", p)
	}
	got, end, _ := pull(t, s, &sub, "p", "", start)
	wantSeqs(t, "the filter passes none", got)
	sub.Filters = nil // from its position on
	publish(t, s, "p", "content_updated", "content_deleted")
	got, _, _ = pull(t, s, &sub, "p", "", end)
	wantSeqs(t, "without filter", got, 36)
	sub.Events = []string{"content_updated", "content_deleted"}
	got, _, _ = pull(t, s, &sub, "p", "", end)
	wantSeqs(t, "with another name", got, 36, 37)
	got, _, _ = pull(t, s, &sub, "p", "page[size]=3", start)
	if len(got) != 37 || !slices.IsSorted(got) {
		t.Errorf("in small pages: got %v", got)
	}
}

func withCursor(q *webhook.ListQuery, cursor string) *webhook.ListQuery {
	q.Cursor = cursor
	return q
}

// A page reports once that retention has removed events after the cursor, even of other names.
func TestPullTruncated(t *testing.T) {
	s := openProgram(t)
	sub := subscribe(t, s, "p", "content_deleted")
	_, start, truncated := pull(t, s, &sub, "p", "", "")
	publish(t, s, "p", "content_updated", "content_updated", "content_deleted")
	remove := func(seq int64) {
		execute(t, s, "DELETE FROM events WHERE program_id = 'p' AND seq <= ?", seq)
	}
	if truncated {
		t.Error("an empty log is truncated")
	}
	if _, _, truncated = pull(t, s, &sub, "p", "", start); truncated {
		t.Error("truncated, although nothing was removed")
	}
	if _, _, truncated = pull(t, s, &sub, "p", "from=1999-01-01", ""); truncated {
		t.Error("truncated from a time, although nothing was removed")
	}
	remove(1)
	got, end, truncated := pull(t, s, &sub, "p", "", start)
	if wantSeqs(t, "after the removal", got, 3); !truncated {
		t.Error("not truncated after the removal of an event")
	}
	if _, _, truncated = pull(t, s, &sub, "p", "from=1999-01-01", ""); !truncated {
		t.Error("not truncated from a time before the oldest event")
	}
	remove(2)
	if _, _, truncated = pull(t, s, &sub, "p", "", end); truncated {
		t.Error("truncated at the end")
	}
}

// After a restore, a cursor beyond the restored log continues at the end of that log, although its
// seqs are assigned again.
func TestPullAfterRestore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := opened(t, Config{Dir: dir})
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	_, early, _ := pull(t, s, &sub, "p", "page[size]=1", "")
	backup := backUp(t, s)
	publish(t, s, "p", "content_updated", "content_updated")
	_, late, _ := pull(t, s, &sub, "p", "", "")
	must(t, s.Close())

	restoreBackup(t, dir, backup)
	s = openDir(t, dir)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	got, end, _ := pull(t, s, &sub, "p", "", late)
	wantSeqs(t, "from a cursor that was lost", got, 4, 5, 6)
	got, _, _ = pull(t, s, &sub, "p", "", early)
	wantSeqs(t, "from a cursor that was not", got, 4, 5, 6)
	got, _, _ = pull(t, s, &sub, "p", "", end)
	wantSeqs(t, "at the end", got)
}

// A log keeps its newest 100 epochs. A cursor of one that was dropped continues at the beginning, since
// those that followed it may have given out any of its seqs again.
func TestPullAfterManyEpochs(t *testing.T) {
	s := openProgram(t)
	publish(t, s, "p", "content_updated", "content_updated", "content_updated")
	log := func(cursor string) (seqs []int64, next string) {
		p, err := s.Events().Pull(t.Context(), "p", nil, withCursor(query(t, webhook.EventLog, "sort=received_at"), cursor))
		must(t, err)
		for i := range p.Events {
			seqs = append(seqs, p.Events[i].Seq)
		}
		return seqs, p.Next
	}
	begin := func() {
		for _, q := range []string{schema.BeginEpochs, schema.DropEpochs} {
			execute(t, s, q, "p")
		}
	}
	_, first := log("")
	begin() // at the head 3, but with fewer events, as after the restore of an older copy
	execute(t, s, "UPDATE log_epochs SET head = 1")
	_, second := log("")
	for range 99 {
		begin()
	}
	got, _ := log(first)
	wantSeqs(t, "after 100 epochs, from the first one", got, 2, 3)
	got, _ = log(second)
	wantSeqs(t, "from the second one", got)
	begin()
	got, _ = log(first)
	wantSeqs(t, "after 101 epochs, from the first one", got, 1, 2, 3)
	got, _ = log(second)
	wantSeqs(t, "from the second one, which was dropped", got, 1, 2, 3)
	_, last := log("")
	got, _ = log(last)
	wantSeqs(t, "from the last one", got)
	for range 50 {
		begin()
	}
	got, _ = log(last)
	wantSeqs(t, "after 50 more, from the one that was the last", got)
	for range 150 {
		begin()
	}
	got, _ = log(last)
	wantSeqs(t, "after 200 more, from the one that was the last", got, 1, 2, 3)
}

// A cursor stays valid in an imported program, which starts an epoch, and only there.
func TestPullAfterImport(t *testing.T) {
	from, p := exportSource(t)
	sub := &p.subscriptions[0]
	_, mid, _ := pull(t, from, sub, p.id, "", "")
	x := exported(t, from, p.id)
	publish(t, from, p.id, "content_updated")
	_, late, _ := pull(t, from, sub, p.id, "", mid)
	s := open(t)
	_, err := s.Programs().Import(t.Context(), copyOf(t, x))
	must(t, err)
	next := publish(t, s, p.id, "content_updated")[0].Seq
	got, _, _ := pull(t, s, sub, p.id, "", mid)
	wantSeqs(t, "a cursor from before the export", got, next)
	got, _, _ = pull(t, s, sub, p.id, "", late)
	wantSeqs(t, "a cursor from after it", got, next)
	wantNumber(t, "epochs, including that of the fixture", count(t, s, "SELECT count(*) FROM log_epochs WHERE program_id = ?", p.id), 2)
	program(t, s, "p")
	_, err = s.Events().Pull(t.Context(), "p", nil, withCursor(query(t, webhook.EventLog, "sort=received_at"), mid))
	wantCode(t, err, webhook.CodeInvalid)
}

// With AcknowledgeTimeout a page waits again once the replica may have lost what it had, which resets
// what is known of it, even for events that an earlier page has shown.
func TestPullAfterReplicaReset(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(t.Context(), Config{
		Dir: dir, Replica: fileReplica(t, dir, filepath.Join(t.TempDir(), "replica")), AcknowledgeTimeout: time.Minute, Logger: testLogger(t),
	})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	stop := background(t, s.Replica().Run)
	program(t, s, "p")
	sub := subscribe(t, s, "p", "content_updated")
	_, start, _ := pull(t, s, &sub, "p", "", "")
	publish(t, s, "p", "content_updated")
	got, _, _ := pull(t, s, &sub, "p", "", start)
	wantSeqs(t, "in the replica", got, 1)
	stop()
	got, _, _ = pull(t, s, &sub, "p", "", start)
	wantSeqs(t, "known to be in the replica", got, 1)

	s.replication.Acknowledge(time.Millisecond) // nothing is known to be in the replica, as after a session
	_, err = s.Events().Pull(t.Context(), "p", &sub, withCursor(query(t, webhook.SubscriptionLog, ""), start))
	wantCode(t, err, webhook.CodeUnavailable)
}

// With AcknowledgeTimeout a page waits for a COMMIT in progress to be counted, since it may have seen what
// that writes.
func TestPullDuringCommit(t *testing.T) {
	dir := t.TempDir()
	var during atomic.Pointer[func()]
	s, err := Open(t.Context(), Config{
		Dir: dir, Replica: fileReplica(t, dir, filepath.Join(t.TempDir(), "replica")), AcknowledgeTimeout: time.Minute, Logger: testLogger(t),
		Fault: func(query string, _ bool) sqlite.Fault {
			if f := during.Load(); f != nil && query == "COMMIT" && during.CompareAndSwap(f, nil) {
				(*f)()
			}
			return sqlite.NoFault
		},
	})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	stop := background(t, s.Replica().Run)
	program(t, s, "p")
	publish(t, s, "p", "content_updated")
	must(t, s.Replica().Acknowledge(t.Context()))
	pulled := make(chan error, 1)
	f := func() {
		go func() {
			_, err := s.Events().Pull(context.Background(), "p", nil, query(t, webhook.EventLog, "sort=received_at"))
			pulled <- err
		}()
		for range 100_000 {
			if len(pulled) > 0 {
				t.Error("the page did not wait for the COMMIT in progress")
				return
			}
			runtime.Gosched()
		}
	}
	during.Store(&f)
	publish(t, s, "p", "content_updated")
	must(t, <-pulled)
	stop()
}
