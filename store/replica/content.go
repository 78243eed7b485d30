package replica

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

const (
	// contentRate is the rate in bytes per second at which the pages of a replica are
	// compared with the database.
	contentRate = 16 << 20
	// contentDelay is the time until the first comparison of a new replica, or of one
	// whose comparison is overdue at the start.
	contentDelay = 5 * time.Minute
	// contentRetry is the time until the next comparison after one that failed, and
	// damagedRetry after one that found damage even after a new snapshot. Both are at
	// most the interval.
	contentRetry = 10 * time.Minute
	damagedRetry = time.Hour
	// contentAttempts is how often a comparison is attempted if the position cannot be
	// restored.
	contentAttempts = 3
)

// Verification is the result of comparisons of a replica with its database.
type Verification struct {
	Time    time.Time     // of the last comparison that found them equal; zero for never
	TXID    string        // position of Litestream in that comparison
	Bytes   int64         // size of the database in that comparison
	Took    time.Duration // duration of that comparison
	Failed  time.Time     // of the last comparison that found damage; zero for never
	Err     string        // the damage that it found
	Failing bool          // damage was found, and no later comparison found them equal
}

// errBusy means that a comparison was aborted because the WAL became too long. No
// checkpoint can run while the comparison reads the database.
var errBusy = errors.New("the database is too busy to be compared with its replica")

// errNoSnapshot means that the first snapshot of a term is not uploaded yet.
var errNoSnapshot = errors.New("the replica has no snapshot yet")

// contentError means that a replica is damaged or differs from its database.
type contentError struct{ error }

// contentVerifier compares a replica with its database periodically.
type contentVerifier struct {
	r         *Replication
	every     time.Duration
	delay     time.Duration // contentDelay, but at most every
	rate      int64         // contentRate
	record    func(Verification)
	requested chan struct{} // a damaged object was found; has room for one

	mu   sync.Mutex
	last Verification
}

// VerifyContent turns on comparisons of the replica with the database at the interval
// every. last is the result of the last comparison, if there was one, and record
// receives new results. VerifyContent must be called at most once, before Run.
func (r *Replication) VerifyContent(every time.Duration, last Verification, record func(Verification)) {
	r.content = &contentVerifier{
		r: r, every: every, delay: min(every, contentDelay), rate: contentRate,
		record: record, requested: make(chan struct{}, 1), last: last,
	}
}

// checked returns a client for Litestream's compaction. If it finds a damaged object,
// the content is compared immediately.
func (r *Replication) checked(client litestream.ReplicaClient) litestream.ReplicaClient {
	c := newCheckedClient(client, func(err error) {
		r.logger.Error("found a damaged object in the replica", "replica", r.cfg.Target(), "error", err)
		if r.content != nil {
			wake(r.content.requested)
		}
	})
	c.listsDamaged = true
	return c
}

// interval returns the time between two comparisons, or 0 for a nil verifier.
func (v *contentVerifier) interval() time.Duration {
	if v == nil {
		return 0
	}
	return v.every
}

// status returns the last result, or a zero value for a nil verifier.
func (v *contentVerifier) status() Verification {
	if v == nil {
		return Verification{}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last
}

// run makes comparisons until ctx ends.
func (v *contentVerifier) run(ctx context.Context, s *session) {
	wait := v.delay
	for {
		if last := v.status(); !last.Failing {
			wait = max(wait, time.Until(last.Time.Add(v.every)))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-v.requested:
		}
		switch err := v.verify(ctx, s); {
		case ctx.Err() != nil:
			return
		case errors.As(err, new(contentError)):
			wait = min(v.every, damagedRetry)
		case err != nil:
			wait = min(v.every, contentRetry)
		default:
			wait = v.every
		}
	}
}

// verify makes a comparison. If the replica is damaged or differs, verify uploads a
// snapshot of the whole database, which repairs the newest state, and compares again.
func (v *contentVerifier) verify(ctx context.Context, s *session) error {
	err := v.compareAndRecord(ctx, s)
	if !errors.As(err, new(contentError)) {
		return err
	}
	uploading, cancel := context.WithTimeoutCause(ctx, requestTimeout+v.r.uploadTimeout(), errUploadStalled)
	defer cancel()
	if _, err := s.db.Snapshot(uploading); err != nil {
		v.r.logger.Error("failed to repair the replica with a snapshot, will retry", "replica", v.r.cfg.Target(), "error", err)
		return err
	}
	return v.compareAndRecord(ctx, s)
}

// compareAndRecord makes a comparison and records its result.
func (v *contentVerifier) compareAndRecord(ctx context.Context, s *session) error {
	began := time.Now()
	pos, size, err := v.compare(ctx, s)
	damaged := errors.As(err, new(contentError))
	if err != nil && !damaged {
		if ctx.Err() == nil {
			v.r.logger.Debug("failed to compare the replica with the database, will retry", "error", err)
		}
		return err
	}
	v.mu.Lock()
	before := v.last
	if damaged {
		v.last.Failed, v.last.Err, v.last.Failing = began, err.Error(), true
	} else {
		v.last.Time, v.last.TXID, v.last.Bytes = time.Now(), pos.String(), size
		v.last.Took, v.last.Failing = time.Since(began), false
	}
	now := v.last
	v.mu.Unlock()
	switch {
	case damaged && (!before.Failing || before.Err != now.Err):
		v.r.logger.Error("replica is damaged; uploading a snapshot of the whole database, older states may be lost",
			"replica", v.r.cfg.Target(), "error", err)
	case before.Failing && !damaged:
		v.r.logger.Info("replica has the same content as the database again", "replica", v.r.cfg.Target())
	}
	v.record(now)
	return err
}

// compare compares the pages of the database at the position of the last sync with the
// pages that a restore of this position would write. The error is a contentError if
// objects are damaged or pages differ.
//
// It reads the database at full speed, because no checkpoint can run before it is done,
// and keeps 8 bytes per page. It reads the objects slowly.
func (v *contentVerifier) compare(ctx context.Context, s *session) (ltx.TXID, int64, error) {
	for attempt := 1; ; attempt++ {
		if s.snapshot.Load() {
			return 0, 0, errNoSnapshot
		}
		pos, want, err := v.databasePages(ctx, s)
		if err != nil {
			return 0, 0, err
		}
		if err := v.awaitSent(ctx, pos); err != nil {
			return 0, 0, err
		}
		size, err := v.compareReplica(ctx, s, pos, want)
		if !errors.As(err, new(*missingError)) && !errors.Is(err, litestream.ErrTxNotAvailable) {
			return pos, size, err
		}
		// A compaction merged and deleted an object, or a snapshot of a later position
		// was uploaded instead of the changes.
		if attempt == contentAttempts {
			return pos, 0, contentError{fmt.Errorf("the state of the transaction %s cannot be restored: %w", pos, err)}
		}
	}
}

// pageSums contains the checksums of the pages of a database.
type pageSums struct {
	pageSize uint32
	sums     []ltx.Checksum // page n is at n-1; 0 for the page that SQLite never writes
}

// databasePages returns the position of the last sync and the checksums of the
// database's pages at that position.
func (v *contentVerifier) databasePages(ctx context.Context, s *session) (ltx.TXID, *pageSums, error) {
	pos, snapshot, err := s.db.SnapshotReader(ctx)
	if err != nil {
		return 0, nil, err
	}
	defer snapshot.Close()
	all := &pageSums{}
	hash := ltx.NewHasher()
	// The size of a snapshot is unknown until its end.
	info := &ltx.FileInfo{Level: litestream.SnapshotLevel, MinTXID: 1, MaxTXID: pos.TXID, Size: math.MaxInt64}
	err = decodeObject(info, snapshot, objectSink{
		func(h ltx.Header) error {
			all.pageSize, all.sums = h.PageSize, make([]ltx.Checksum, h.Commit)
			return nil
		},
		func(_ *ltx.FileInfo, pgno uint32, data []byte) error {
			switch {
			case int(pgno) > len(all.sums):
				return fmt.Errorf("a snapshot of %d pages has page %d", len(all.sums), pgno)
			case v.r.frames.Load() > v.r.limits.abandon/2:
				return errBusy
			}
			all.sums[pgno-1] = ltx.ChecksumPageWithHasher(hash, pgno, data)
			return ctx.Err()
		},
	})
	return pos.TXID, all, err
}

// awaitSent waits until a transaction is in the replica.
func (v *contentVerifier) awaitSent(ctx context.Context, tx ltx.TXID) error {
	for {
		if v.r.sentTX() >= tx {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// compareReplica compares the pages that a restore of a transaction would write with
// want, and returns the size of the database in bytes.
func (v *contentVerifier) compareReplica(ctx context.Context, s *session, tx ltx.TXID, want *pageSums) (int64, error) {
	plan, err := litestream.CalcRestorePlan(ctx, s.own.client, tx, noTime, quiet)
	if err != nil {
		return 0, err
	}
	hash := ltx.NewHasher()
	differing, first := 0, ""
	due := time.Now() // when the next page may be compared
	pageSize, pages, err := readPlan(ctx, s.own.client, plan, func(info *ltx.FileInfo, pgno uint32, data []byte) error {
		if int(pgno) > len(want.sums) || want.sums[pgno-1] != ltx.ChecksumPageWithHasher(hash, pgno, data) {
			if differing++; differing == 1 {
				first = fmt.Sprintf("page %d in the object %s", pgno, objectName(info))
			}
		}
		due = due.Add(time.Duration(len(data)) * time.Second / time.Duration(v.rate))
		if ahead := time.Until(due); ahead > 10*time.Millisecond {
			return sleep(ctx, ahead)
		}
		return nil
	})
	switch {
	case errors.As(err, new(*damagedError)) || errors.Is(err, errIncompletePlan):
		return 0, contentError{err}
	case err != nil:
		return 0, err
	case pageSize != want.pageSize || int(pages) != len(want.sums):
		return 0, contentError{fmt.Errorf("a restore would write %d pages of %d bytes, but the database has %d of %d",
			pages, pageSize, len(want.sums), want.pageSize)}
	case differing > 0:
		return 0, contentError{fmt.Errorf("%d of %d pages differ from the database, the first is %s", differing, pages, first)}
	}
	return int64(pages) * int64(pageSize), nil
}
