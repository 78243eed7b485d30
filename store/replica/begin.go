package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/webhook"
)

// ownTerm is the term that a replication writes to.
type ownTerm struct {
	at       location
	term     term // as it began or was continued
	complete atomic.Bool
	client   *termClient
	// sent is the newest transaction in the replica that the local files continue.
	sent ltx.TXID
	// snapshot is set while the term needs a snapshot of the whole database before
	// anything else.
	snapshot bool
	wal      walState // state of the WAL when the session began
}

// acquireTerm continues the term that this data directory wrote last, or begins a new
// one. Afterwards Litestream may open the database.
func (r *Replication) acquireTerm(ctx context.Context) (*ownTerm, error) {
	at, err := r.cfg.location(ctx)
	if err != nil {
		return nil, err
	}
	current, err := newestTerm(ctx, at)
	if err != nil {
		return nil, err
	}
	if err := r.checkWriter(ctx, current); err != nil {
		return nil, err
	}
	if err := r.disableAutoCheckpoint(); err != nil {
		return nil, err
	}
	t := &ownTerm{at: at}
	last, err := r.lastTerm(ctx, t)
	if err != nil {
		return nil, err
	}
	if last.Own && last.Term == current.Number {
		t.term = current
	} else if err := r.nextTerm(ctx, t, last, current); err != nil {
		return nil, err
	}
	if err := r.openTermFiles(ctx, t); err != nil {
		return nil, err
	}
	if err := r.checkBegun(ctx, t, current); err != nil {
		return nil, err
	}
	t.complete.Store(t.term.Complete)
	r.term.Store(t.term.Number)
	r.sign.ended.Store(false)
	r.sign.confirmed.Store(int64(uptime()))
	if r.signs() {
		r.renewSign(ctx) // a new term must not lack one
	}
	return t, nil
}

// checkBegun checks again that a new term can be restored. Without a lease, the service
// that wrote the previous term may have deleted files until the new term began. After
// an error, the next attempt begins a term with a snapshot.
func (r *Replication) checkBegun(ctx context.Context, t *ownTerm, current term) error {
	if t.term.Snapshot || t.term.Number == current.Number || r.lease.Load() != nil {
		return nil
	}
	ok, err := reaches(ctx, t.client, t.term.ParentTXID)
	if err == nil && !ok {
		err = errReplicaIncomplete
	}
	return err
}

// lastTerm returns the local record if the database continues that term of this
// replica, and sets t.wal and t.sent. Otherwise it returns a zero record.
func (r *Replication) lastTerm(ctx context.Context, t *ownTerm) (record, error) {
	last, err := readRecord(r.path)
	if err != nil || last.Replica != r.cfg.Target() {
		return record{}, err
	}
	found, err := readTerm(ctx, t.at, last.Term)
	if errors.Is(err, errNoTerm) || err == nil && found.Nonce != last.Nonce {
		return record{}, nil
	} else if err != nil {
		return record{}, err
	}
	if t.wal, err = readWALState(r.path); err != nil || !t.wal.proven {
		return record{}, err
	}
	here, err := last.in(filepath.Dir(r.path))
	if err != nil {
		return record{}, err
	}
	wrote := last.Own // by this directory or by the one it was copied from
	last.Own = last.Own && here
	if found.Snapshot && !found.Complete {
		if last.Own {
			t.sent, err = r.findSnapshot(ctx, t, found)
			return last, err
		}
		return record{}, nil // the replica contains nothing that this database continues
	}
	sent, newest, err := r.findSent(ctx, t, found)
	if err != nil || sent == 0 {
		return record{}, err
	}
	t.sent = sent
	if newest > t.wal.at && wrote {
		// The term contains writes that this directory does not know: the directory may
		// have been set back to an earlier state.
		last.Own = false
		r.logger.Error("database is older than its replica; the newer changes stay in the replica; "+
			"to restore them, stop the service and run service restore --force --at with a time before this start",
			"replica", r.cfg.Target(), "term", last.Term,
			"database_transaction", t.wal.at.String(), "replica_transaction", newest.String())
	}
	return last, nil
}

// findSnapshot returns the newest transaction in a term that begins with a snapshot, or
// 0 if the snapshot is not uploaded yet.
func (r *Replication) findSnapshot(ctx context.Context, t *ownTerm, found term) (ltx.TXID, error) {
	own, err := t.at.client(found.Number)
	if err != nil {
		return 0, err
	}
	newest, _, err := position(ctx, own)
	if err != nil || newest > t.wal.at {
		return 0, err
	}
	if ok, err := r.hasLocal(newest+1, t.wal.at); err != nil || !ok {
		return 0, err
	}
	return newest, nil
}

// findSent returns the newest transaction of a term that the local files continue, or
// 0, and the newest transaction in any file of the term.
func (r *Replication) findSent(ctx context.Context, t *ownTerm, found term) (sent, any ltx.TXID, err error) {
	client, err := openTerm(ctx, t.at, found, false)
	if err != nil {
		return 0, 0, ignoreNoTerm(err)
	}
	newest, any, err := position(ctx, client)
	if err != nil {
		return 0, 0, err
	}
	sent = min(newest, t.wal.at)
	if sent < t.wal.at && t.wal.baseline {
		return 0, 0, nil // the replica has lost what the database was restored from
	}
	if ok, err := r.hasLocal(sent+1, t.wal.at); err != nil || !ok {
		return 0, 0, err
	}
	if sent < newest {
		if ok, err := reaches(ctx, client, sent); err != nil || !ok {
			return 0, 0, err
		}
	}
	return sent, any, nil
}

// hasLocal reports whether the local LTX files of the transactions from one to another
// exist.
func (r *Replication) hasLocal(from, to ltx.TXID) (bool, error) {
	db := litestream.NewDB(r.path)
	for tx := from; tx <= to; tx++ {
		if _, err := os.Stat(db.LTXPath(0, tx, tx)); err != nil {
			return false, ignoreNoFile(err)
		}
	}
	return true, nil
}

// nextTerm begins a new term after current. The term continues that of last, or begins
// with a snapshot if last is zero.
func (r *Replication) nextTerm(ctx context.Context, t *ownTerm, last record, current term) (err error) {
	next := term{Parent: last.Term, ParentTXID: t.sent}
	if t.sent == 0 { // the snapshot of the last term may not be uploaded
		if next, err = r.snapshotTerm(ctx, t.at, current); err != nil {
			return err
		}
	}
	if last.Term != current.Number && t.sent > 0 {
		r.logger.Warn("another service has written to this replica since this one stopped; "+
			"its changes are not in this database, and stay in the replica as a separate term",
			"replica", r.cfg.Target(), "its_term", current.Number, "continued_term", last.Term)
	}
	if t.term, err = r.claimTerm(ctx, t.at, current, next); err != nil {
		return err
	}
	here, err := identifyDir(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	if t.term.Snapshot {
		// The local files belong to an earlier term.
		if err := os.RemoveAll(litestream.NewDB(r.path).LTXDir()); err != nil {
			return err
		}
	}
	err = writeRecord(r.path, record{
		Replica: r.cfg.Target(), Term: t.term.Number, Nonce: t.term.Nonce, Own: true, dirID: here,
	})
	if err != nil {
		return err
	}
	if t.term.Snapshot {
		// A crash before this leaves a record without files, which proves nothing.
		if err := writeBaseline(r.path, max(t.term.ParentTXID+1, 2)); err != nil { // transaction 1 must be a snapshot
			return err
		}
		if t.wal, err = readWALState(r.path); err == nil && !t.wal.proven {
			err = errWALChanged
		}
	}
	return err
}

// snapshotTerm returns a term after current that begins with a snapshot. It resets the
// WAL, which then contains only later commits.
func (r *Replication) snapshotTerm(ctx context.Context, at location, current term) (term, error) {
	var newest ltx.TXID
	client, err := openTerm(ctx, at, current, false)
	if err == nil {
		newest, _, err = position(ctx, client)
	}
	if err := ignoreNoTerm(err); err != nil {
		return term{}, err
	}
	// While a reader uses the WAL, it cannot be reset, and no term begins.
	return term{Parent: current.Number, ParentTXID: newest, Snapshot: true}, r.resetWAL()
}

// claimTerm claims a number after current for next.
func (r *Replication) claimTerm(ctx context.Context, at location, current, next term) (term, error) {
	for number := current.Number; ; number++ { // a process may have claimed a number and died before it wrote the record
		if r.fenced() {
			return term{}, ErrLeaseExpired
		}
		next.Number, next.Nonce, next.Began = number+1, webhook.NewID(), time.Now().UTC()
		if r.claimed == nil {
			r.claimed = map[string]bool{}
		}
		r.claimed[next.Nonce] = true // even if the response is lost
		err := claim(ctx, at, next)
		if err == nil {
			return next, nil
		}
		err = fmt.Errorf("begin term %d of the replica: %w", next.Number, err)
		if !errors.Is(err, errTermTaken) {
			return term{}, err
		}
		newest, listErr := newestTerm(ctx, at)
		if listErr != nil {
			return term{}, listErr
		}
		if newest.Number > current.Number {
			return term{}, err // the next attempt handles the newer term
		}
	}
}

// openTermFiles creates the client that writes to t.term.
func (r *Replication) openTermFiles(ctx context.Context, t *ownTerm) (err error) {
	if t.term.Snapshot {
		own, err := t.at.client(t.term.Number)
		if err != nil {
			return err
		}
		t.client, t.snapshot = &termClient{ReplicaClient: own, number: t.term.Number}, !t.term.Complete
	} else if t.client, err = openTerm(ctx, t.at, t.term, false); err != nil {
		return err
	}
	if err := t.client.Init(ctx); err != nil {
		return fmt.Errorf("connect to the replica: %w", err)
	}
	return nil
}

// resetWAL checkpoints and truncates the WAL.
func (r *Replication) resetWAL() error {
	r.truncate.Store(true)
	err := r.exec(seqStatement)
	if err == nil && r.truncate.Load() && r.writer.Closed() {
		err = r.resetClosedWAL()
	}
	if err == nil && r.truncate.Swap(false) {
		err = errors.New("the WAL cannot be truncated while it is being read")
	}
	return err
}
