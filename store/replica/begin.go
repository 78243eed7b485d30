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
	term     term // as it began, or was continued
	complete atomic.Bool
	client   *termClient
	// sent is the newest transaction in the replica that the local files continue.
	sent ltx.TXID
	// snapshot is set while the term needs a snapshot of the whole database before
	// anything else.
	snapshot bool
	log      logState // when the session began
}

// takeTerm continues the term that this data directory wrote last, or begins a
// new one. After it the database may be opened by Litestream. dir is that of the
// database at path.
func (r *Replication) takeTerm(ctx context.Context) (*ownTerm, error) {
	at, err := r.cfg.location(ctx)
	if err != nil {
		return nil, err
	}
	current, err := newestTerm(ctx, at)
	if err != nil {
		return nil, err
	}
	if began := r.term.Load(); began > 0 && current.Number > began && !r.claimed[current.Nonce] {
		return nil, errTermEnded
	}
	if err := r.holdLog(); err != nil {
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
	if err := r.openOwn(ctx, t); err != nil {
		return nil, err
	}
	if err := r.checkBegun(ctx, t, current); err != nil {
		return nil, err
	}
	t.complete.Store(t.term.Complete)
	r.term.Store(t.term.Number)
	if r.onTerm != nil {
		r.onTerm(t.term.Number)
	}
	return t, nil
}

// checkBegun checks once more that a new term can be restored: without a lease the
// service that wrote the term before may have removed files until this one began.
// After an error the next try begins a term with a snapshot.
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

// lastTerm returns the record beside the database if the database continues
// that term of this replica, and sets t.log and t.sent. Otherwise the result is zero.
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
	if t.log, err = readLog(r.path); err != nil || !t.log.proven {
		return record{}, err
	}
	here, err := identify(filepath.Dir(r.path))
	if err != nil {
		return record{}, err
	}
	wrote := last.Own
	last.Own = last.Own && here.inode != 0 && last.place() == here
	if found.Snapshot && !found.Complete {
		if last.Own {
			t.sent, err = r.findSnapshot(ctx, t, found)
			return last, err
		}
		return record{}, nil // the replica has nothing that this database continues
	}
	sent, newest, err := r.findSent(ctx, t, found)
	if err != nil || sent == 0 {
		return record{}, err
	}
	t.sent = sent
	if newest > t.log.at && wrote {
		// Something wrote to the term that this directory does not know of: it may
		// have been put back to an earlier state.
		last.Own = false
		r.logger.Error("this database is older than its replica: it lacks what the replica has beyond it, which stays there; to have that instead, stop the service and call service restore --force --at with a time before this start",
			"replica", r.cfg.Target(), "term", last.Term, "database_transaction", t.log.at.String(), "replica_transaction", newest.String())
	}
	return last, nil
}

// findSnapshot returns the newest transaction that a term which begins with a
// snapshot has of its own, 0 while the snapshot was not uploaded.
func (r *Replication) findSnapshot(ctx context.Context, t *ownTerm, found term) (ltx.TXID, error) {
	own, err := t.at.client(found.Number)
	if err != nil {
		return 0, err
	}
	newest, _, err := position(ctx, own)
	if err != nil || newest > t.log.at {
		return 0, err
	}
	if ok, err := r.hasLocal(newest+1, t.log.at); err != nil || !ok {
		return 0, err
	}
	return newest, nil
}

// findSent returns the newest transaction of a term that the local files continue,
// 0 for none, and the newest in any file of the term.
func (r *Replication) findSent(ctx context.Context, t *ownTerm, found term) (sent, any ltx.TXID, err error) {
	client, err := openTerm(ctx, t.at, found, false)
	if err != nil {
		return 0, 0, ignoreNoTerm(err)
	}
	newest, any, err := position(ctx, client)
	if err != nil {
		return 0, 0, err
	}
	sent = min(newest, t.log.at)
	if sent < t.log.at && t.log.baseline {
		return 0, 0, nil // the replica has lost what the database was restored from
	}
	if ok, err := r.hasLocal(sent+1, t.log.at); err != nil || !ok {
		return 0, 0, err
	}
	if sent < newest {
		if ok, err := reaches(ctx, client, sent); err != nil || !ok {
			return 0, 0, err
		}
	}
	return sent, any, nil
}

// hasLocal reports whether the local LTX files from one transaction to another
// exist.
func (r *Replication) hasLocal(from, to ltx.TXID) (bool, error) {
	db := litestream.NewDB(r.path)
	for tx := from; tx <= to; tx++ {
		if _, err := os.Stat(db.LTXPath(0, tx, tx)); errors.Is(err, os.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// nextTerm begins a new term after current. It continues the term of last; when
// that is zero it begins with a snapshot.
func (r *Replication) nextTerm(ctx context.Context, t *ownTerm, last record, current term) (err error) {
	next := term{Parent: last.Term, ParentTXID: t.sent}
	if t.sent == 0 { // the snapshot of last may not be uploaded
		if next, err = r.breakTerm(ctx, t.at, current); err != nil {
			return err
		}
	}
	if last.Term != current.Number && t.sent > 0 {
		r.logger.Warn("another service has written to this replica since: what it wrote is not in this database, and stays in the replica as a term of its own",
			"replica", r.cfg.Target(), "its_term", current.Number, "continued_term", last.Term)
	}
	if t.term, err = r.claimTerm(ctx, t.at, current, next); err != nil {
		return err
	}
	here, err := identify(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	if t.term.Snapshot {
		// The local files continue nothing.
		if err := os.RemoveAll(litestream.NewDB(r.path).LTXDir()); err != nil {
			return err
		}
	}
	if err := writeRecord(r.path, record{Replica: r.cfg.Target(), Term: t.term.Number, Nonce: t.term.Nonce, Own: true, Device: here.device, Inode: here.inode, Boot: here.boot}); err != nil {
		return err
	}
	if t.term.Snapshot {
		// A crash before this leaves a record without files: they prove nothing.
		if err := writeBaseline(r.path, max(t.term.ParentTXID+1, 2)); err != nil { // transaction 1 would have to be a snapshot
			return err
		}
		if t.log, err = readLog(r.path); err == nil && !t.log.proven {
			err = errLogChanged
		}
	}
	return err
}

// breakTerm returns a term after current that begins with a snapshot. It leaves
// the write-ahead log with only what is committed after it.
func (r *Replication) breakTerm(ctx context.Context, at location, current term) (term, error) {
	var newest ltx.TXID
	client, err := openTerm(ctx, at, current, false)
	if err == nil {
		newest, _, err = position(ctx, client)
	}
	if err := ignoreNoTerm(err); err != nil {
		return term{}, err
	}
	// While something reads the log it cannot be emptied: no term is begun then.
	return term{Parent: current.Number, ParentTXID: newest, Snapshot: true}, r.emptyLog()
}

// claimTerm claims a number after current for next.
func (r *Replication) claimTerm(ctx context.Context, at location, current, next term) (term, error) {
	for number := current.Number; ; number++ { // a number may be claimed by a process that has ended without a record
		if r.fenced() {
			return term{}, ErrLeaseExpired
		}
		next.Number, next.Nonce, next.Began = number+1, webhook.NewID(), time.Now().UTC()
		if r.claimed == nil {
			r.claimed = map[string]bool{}
		}
		r.claimed[next.Nonce] = true // also when the response is lost
		err := at.claim(ctx, next)
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
			return term{}, err // the next try sees what it is
		}
	}
}

// openOwn opens the files of t.term for writing.
func (r *Replication) openOwn(ctx context.Context, t *ownTerm) (err error) {
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
		return fmt.Errorf("the replica cannot be reached: %w", err)
	}
	return nil
}

// emptyLog moves the write-ahead log into the database, and begins it again.
func (r *Replication) emptyLog() error {
	r.truncate.Store(true)
	err := r.exec(seqStatement)
	if err == nil && r.truncate.Load() && r.writer.Closed() {
		err = r.emptyClosedLog()
	}
	if err == nil && r.truncate.Swap(false) {
		err = errors.New("the write-ahead log is being read, and cannot be emptied")
	}
	return err
}
