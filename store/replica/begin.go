package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
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

// claimTries bounds the terms that may be claimed by others while one is begun.
const claimTries = 20

// takeTerm continues the term that this data directory wrote last, or begins a
// new one. After it the database may be opened by Litestream. dir is that of the
// database at path.
func (r *Replication) takeTerm(ctx context.Context) (*ownTerm, error) {
	at, err := newLocation(ctx, r.cfg)
	if err != nil {
		return nil, err
	}
	current, err := newestTerm(ctx, at)
	if err != nil {
		return nil, err
	}
	if began := r.term.Load(); began > 0 && current.Number > began {
		return nil, errTermEnded
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
	t.complete.Store(t.term.Complete)
	r.term.Store(t.term.Number)
	if r.onTerm != nil {
		r.onTerm(t.term.Number)
	}
	return t, nil
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
	device, inode, err := identify(filepath.Dir(r.path))
	if err != nil {
		return record{}, err
	}
	wrote := last.Own
	last.Own = last.Own && inode != 0 && last.Device == device && last.Inode == inode
	client, err := openTerm(ctx, t.at, found, false)
	if err != nil {
		return record{}, err
	}
	newest, err := position(ctx, client)
	if err != nil {
		return record{}, err
	}
	if found.Snapshot && !found.Complete && last.Own {
		return last, nil // its snapshot was not uploaded yet
	}
	t.sent = min(newest, t.log.at)
	if ok, err := r.hasLocal(t.sent+1, t.log.at); err != nil || !ok {
		return record{}, err
	}
	if newest > t.log.at && wrote {
		// Something wrote to the term that this directory does not know of: it may
		// have been put back to an earlier state.
		last.Own = false
		r.logger.Error("this database is older than its replica: it lacks what the replica has beyond it, which stays there; to have that instead, stop the service and call service restore --force --at with a time before this start",
			"replica", r.cfg.Target(), "term", last.Term, "database_transaction", t.log.at.String(), "replica_transaction", newest.String())
	}
	if ok, err := reaches(ctx, client, t.sent); err != nil || !ok {
		return record{}, err
	}
	return last, nil
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
func (r *Replication) nextTerm(ctx context.Context, t *ownTerm, last record, current term) error {
	next := term{Parent: last.Term, ParentTXID: t.sent}
	if t.sent == 0 {
		client, err := openTerm(ctx, t.at, current, false)
		if err != nil {
			return err
		}
		newest, err := position(ctx, client)
		if err != nil {
			return err
		}
		next = term{Parent: current.Number, ParentTXID: newest, Snapshot: true}
	}
	if last.Term != current.Number && t.sent > 0 {
		r.logger.Warn("another service has written to this replica since: what it wrote is not in this database, and stays in the replica as a term of its own",
			"replica", r.cfg.Target(), "its_term", current.Number, "continued_term", last.Term)
	}
	number := current.Number
	for try := 0; ; try++ {
		if r.fenced() {
			return ErrLeaseExpired
		}
		begun, err := beginTerm(ctx, t.at, number, next)
		if err == nil {
			t.term = begun
			break
		}
		if !errors.Is(err, errTermTaken) || try == claimTries {
			return err
		}
		newest, listErr := newestTerm(ctx, t.at)
		if listErr != nil {
			return listErr
		}
		if newest.Number > current.Number {
			return err // the next try sees what it is
		}
		number++ // claimed by a process that has ended without a record
	}
	device, inode, err := identify(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	if t.term.Snapshot {
		// The local files continue nothing.
		if err := os.RemoveAll(litestream.NewDB(r.path).LTXDir()); err != nil {
			return err
		}
		t.log = logState{}
	}
	return writeRecord(r.path, record{Replica: r.cfg.Target(), Term: t.term.Number, Nonce: t.term.Nonce, Own: true, Device: device, Inode: inode})
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

// cutLog makes the database's file the position of a new term: it moves the
// write-ahead log into the database and begins the log again. The parent of the
// term has the position at.
func (r *Replication) cutLog(at ltx.TXID) error {
	r.truncate.Store(true)
	err := r.exec(seqStatement)
	if err == nil && r.truncate.Load() && r.writer.Closed() {
		err = r.cutClosed()
	}
	if err == nil && r.truncate.Swap(false) {
		err = errors.New("the write-ahead log is being read, and cannot be emptied")
	}
	if err != nil {
		return err
	}
	return writeBaseline(r.path, max(at+1, 2)) // transaction 1 would have to be a snapshot
}
