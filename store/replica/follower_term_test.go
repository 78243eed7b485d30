package replica

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/litestream"
)

// TestFollowerCutOff interrupts a follower after it has applied changes and before it has
// recorded the position. The next term lacks these changes, and so must the copy.
func TestFollowerCutOff(t *testing.T) {
	t.Parallel()
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	cfg := fileConfig(t, one, target)
	first := openReplicated(t, one, cfg)
	first.random(20)
	first.settle()
	f := newFollowed(t, cfg)
	at := func() uint64 {
		tx, _ := litestream.ReadTXIDFile(f.cfg.Path)
		return uint64(tx)
	}
	origin := restoreTo(t, fileConfig(t, two, target), two)
	first.write("UPDATE data SET value = randomblob(10000) WHERE id = 1")
	first.settle()
	followUntil(t, f, "the change to be copied", func() bool { return at() > uint64(origin.at) })
	must(t, litestream.WriteTXIDFile(f.cfg.Path, origin.at))
	second := openReplicated(t, two, fileConfig(t, two, target))
	second.random(1)
	second.settle()
	pos, err := second.current().db.Pos()
	must(t, err)
	followUntil(t, f, "the second term to be followed", func() bool {
		last, err := readRecord(f.cfg.Path)
		return err == nil && last.Term == 2 && at() >= uint64(pos.TXID)
	})
	second.mustClose()
	got, want := pages(t, f.cfg.Path), pages(t, filepath.Join(two, "service.db"))
	if !bytes.Equal(got, want) {
		t.Errorf("the copy differs from the database of the second term: got %d bytes, want %d", len(got), len(want))
	}
}

// If a term loses its parent's files, its own snapshot completes it.
func TestCompleteWithSnapshot(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	first := openReplicated(t, one, fileConfig(t, one, target))
	first.random(5)
	first.settle()
	first.random(1)
	first.mustClose()
	cfg := fileConfig(t, two, target)
	restoreTo(t, cfg, two)
	second := openReplicated(t, two, cfg)
	s := second.awaitSession()
	second.settle()
	second.await("complete", func(Status) bool { return s.own.complete.Load() })
	// As if the copies had failed and the parent had been deleted.
	at := s.own.at
	s.own.complete.Store(false)
	must(t, writeTerm(t.Context(), at, s.own.term))
	_, err := s.db.Snapshot(t.Context())
	must(t, err)
	copied, err := ownFiles(t.Context(), s, litestream.SnapshotLevel)
	if err == nil {
		err = at.removeTerm(t.Context(), 1)
	}
	if err == nil {
		err = s.replica.Client.DeleteLTXFiles(t.Context(), copied[:len(copied)-1])
	}
	must(t, err)
	wantError(t, "completeTerm", second.completeTerm(t.Context(), s), nil)
	second.mustClose()
	compare(t, "without its parent", cfg, two)
}

// A service does not remove terms after another service has begun a later term, which may
// need them.
func TestRemoveTermsEnded(t *testing.T) {
	one, two, target := t.TempDir(), t.TempDir(), t.TempDir()
	first := openReplicated(t, one, fileConfig(t, one, target))
	first.random(5)
	first.settle()
	first.mustClose()
	cfg := fileConfig(t, two, target)
	restoreTo(t, cfg, two)
	second := openReplicated(t, two, cfg)
	s := second.awaitSession()
	second.await("complete", func(Status) bool { return s.own.complete.Load() })
	must(t, claim(t.Context(), s.own.at, term{Number: 3, Parent: 1, ParentTXID: s.own.sent}))
	if err := second.removeTerms(t.Context(), s, time.Now().Add(time.Hour)); err == nil {
		t.Error("removeTerms: got no error")
	}
	if _, err := readTerm(t.Context(), s.own.at, 1); err != nil {
		t.Errorf("term 1: got %v, want it kept", err)
	}
}

// awaitSession waits until Litestream is open.
func (r *replicated) awaitSession() *session {
	r.t.Helper()
	r.await("open", func(Status) bool { return r.current() != nil })
	return r.current()
}
