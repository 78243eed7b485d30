package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// maintain compacts the levels of the replica, uploads snapshots, completes the term and
// enforces retention, until ctx ends. It logs failures and retries at the next interval.
func (r *Replication) maintain(ctx context.Context, s *session) {
	var g sync.WaitGroup
	g.Go(func() {
		levels := slices.Clone(r.cfg.CompactionIntervals)
		r.every(ctx, func(now time.Time) time.Time {
			next := now.Add(maxRetry)
			for i, interval := range levels {
				l := &litestream.CompactionLevel{Level: i + 1, Interval: interval}
				r.compact(ctx, s, l)
				if at := l.NextCompactionAt(now); at.Before(next) {
					next = at
				}
			}
			return next
		})
	})
	g.Go(func() {
		r.every(ctx, func(now time.Time) time.Time {
			if err := r.completeTerm(ctx, s); err != nil && ctx.Err() == nil {
				s.store.Logger.Error("failed to copy files of earlier terms to the current term of the replica, will retry", "error", err)
				return now.Add(maxRetry)
			}
			l := s.store.SnapshotLevel()
			r.compact(ctx, s, l)
			if err := r.enforceSnapshotRetention(ctx, s, r.cfg.SnapshotRetention); err != nil && ctx.Err() == nil {
				s.store.Logger.Error("failed to delete old files of the replica", "error", err)
			}
			return l.NextCompactionAt(now)
		})
	})
	if r.cfg.L0Retention > 0 && r.cfg.L0RetentionInterval > 0 {
		g.Go(func() {
			r.every(ctx, func(now time.Time) time.Time {
				if err := r.enforceL0Retention(ctx, s); err != nil && ctx.Err() == nil {
					s.store.Logger.Error("failed to delete old files of the replica", "error", err)
				}
				return now.Add(r.cfg.L0RetentionInterval)
			})
		})
	}
	g.Wait()
}

// every calls work immediately, and then at each time that work returns, until ctx ends.
func (r *Replication) every(ctx context.Context, work func(now time.Time) time.Time) {
	for ctx.Err() == nil {
		next := work(time.Now())
		_ = sleep(ctx, max(time.Until(next), 10*time.Millisecond))
	}
}

// compact compacts the level below l into l.
func (r *Replication) compact(ctx context.Context, s *session, l *litestream.CompactionLevel) {
	if s.snapshot.Load() {
		return // the term must begin with a snapshot
	}
	if left, err := removeBaseline(s.db); err != nil || left {
		return // Litestream would read the baseline, since it prefers local files
	}
	_, err := s.store.CompactDB(ctx, s.db, l)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, litestream.ErrNoCompaction),
		errors.Is(err, litestream.ErrCompactionTooEarly), errors.Is(err, litestream.ErrDBNotReady):
	default:
		s.store.Logger.Error("failed to compact the replica", "level", l.Level, "error", err)
	}
}

// completeTerm copies the files of earlier terms that this term needs into the term, so
// that it can be restored alone.
func (r *Replication) completeTerm(ctx context.Context, s *session) error {
	t := s.own.term
	if t.Snapshot || s.own.complete.Load() {
		return nil
	}
	own := s.own.client.ReplicaClient
	sent := max(r.sentTX(), t.ParentTXID)
	if ok, err := reaches(ctx, own, sent); err != nil {
		return err
	} else if ok {
		return r.markComplete(ctx, s) // the term has a snapshot already
	}
	plan, err := litestream.CalcRestorePlan(ctx, s.own.client, t.ParentTXID, noTime, quiet)
	if err != nil {
		return err
	}
	for _, f := range plan {
		if err := r.copyInto(ctx, s, f); err != nil {
			return fmt.Errorf("copy %s of level %d into term %d: %w", ltx.FormatFilename(f.MinTXID, f.MaxTXID), f.Level, t.Number, err)
		}
	}
	if ok, err := reaches(ctx, own, sent); err != nil || !ok {
		return errors.Join(err, fmt.Errorf("term %d cannot be restored alone after copying files into it", t.Number))
	}
	return r.markComplete(ctx, s)
}

// copyInto copies a file of an earlier term into the session's term.
func (r *Replication) copyInto(ctx context.Context, s *session, f *ltx.FileInfo) error {
	t := s.own
	from, err := t.client.source(ctx, f)
	if err != nil || from == t.term.Number {
		return err
	}
	if r.fenced() {
		return ErrLeaseExpired
	}
	if err := t.at.copyFile(ctx, from, t.term.Number, f); err == nil {
		return nil
	}
	// The bucket may not support copies, or not of large files: download and upload it.
	content, err := t.client.OpenLTXFile(ctx, f.Level, f.MinTXID, f.MaxTXID, 0, 0)
	if err != nil {
		return err
	}
	_, err = s.replica.Client.WriteLTXFile(ctx, f.Level, f.MinTXID, f.MaxTXID, content)
	return errors.Join(err, content.Close())
}

// markComplete records in the replica that the term can be restored alone.
func (r *Replication) markComplete(ctx context.Context, s *session) error {
	if r.fenced() {
		return ErrLeaseExpired
	}
	t := s.own.term
	t.Complete = true
	if err := writeTerm(ctx, s.own.at, t); err != nil {
		return err
	}
	s.own.complete.Store(true)
	return nil
}

// uploadSnapshot uploads the snapshot with which the term begins, and marks the term as
// complete. If it is called again because the mark failed, it does not upload the snapshot
// again.
func (r *Replication) uploadSnapshot(ctx context.Context, s *session) error {
	uploading, cancel := context.WithTimeoutCause(ctx, requestTimeout+r.uploadTimeout(), errUploadStalled)
	defer cancel()
	if r.sentTX() == 0 {
		info, err := s.db.Snapshot(uploading)
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.sent = info.MaxTXID
		r.mu.Unlock()
		s.replica.SetPos(ltx.Pos{TXID: info.MaxTXID})
	}
	if err := r.markComplete(uploading, s); err != nil {
		return err
	}
	s.snapshot.Store(false)
	return nil
}

// enforceL0Retention deletes files of level 0 that are compacted into level 1 and older
// than l0-retention, locally and in the replica. It keeps the newest file.
func (r *Replication) enforceL0Retention(ctx context.Context, s *session) error {
	compacted, err := ownFiles(ctx, s, 1)
	if err != nil || len(compacted) == 0 {
		return err
	}
	files, err := ownFiles(ctx, s, 0)
	if err != nil || len(files) == 0 {
		return err
	}
	upTo := compacted[len(compacted)-1].MaxTXID
	oldest := newestTime(files).Add(-r.cfg.L0Retention)
	var old []*ltx.FileInfo
	for _, f := range files[:len(files)-1] {
		if f.MaxTXID > upTo || f.CreatedAt.After(oldest) {
			break
		}
		old = append(old, f)
	}
	if err := r.remove(ctx, s, old); err != nil {
		return err
	}
	return removeLocal(s.db, upTo, r.cfg.L0Retention)
}

// remove deletes files of the session's term, unless a later term has begun, which may
// need them. Without a lease, a service does not otherwise learn that it was replaced.
func (r *Replication) remove(ctx context.Context, s *session, files []*ltx.FileInfo) error {
	if len(files) == 0 {
		return nil
	}
	if current, err := newestTerm(ctx, s.own.at); err != nil {
		return err
	} else if current.Number > s.own.term.Number {
		return errTermEnded
	}
	return s.replica.Client.DeleteLTXFiles(ctx, files)
}

// removeLocal deletes local files of level 0 up to the transaction upTo that are older
// than retention. It keeps the newest file.
func removeLocal(db *litestream.DB, upTo ltx.TXID, retention time.Duration) error {
	entries, err := os.ReadDir(db.LTXLevelDir(0)) // in transaction order
	if err != nil || len(entries) == 0 {
		return err
	}
	for _, e := range entries[:len(entries)-1] {
		_, tx, err := ltx.ParseFilename(e.Name())
		if err != nil || tx > upTo {
			continue
		}
		info, err := e.Info()
		if err != nil || time.Since(info.ModTime()) < retention {
			continue
		}
		if err := ignoreNoFile(os.Remove(db.LTXPath(0, tx, tx))); err != nil {
			return err
		}
	}
	return nil
}

// enforceSnapshotRetention deletes snapshots older than retention, the compacted files before
// them, and terms that are no longer needed. It keeps the newest snapshot older than retention,
// because the first states within the retention are restored from it. It uses the times of the
// bucket, because this machine's clock may be wrong.
func (r *Replication) enforceSnapshotRetention(ctx context.Context, s *session, retention time.Duration) error {
	snapshots, err := ownFiles(ctx, s, litestream.SnapshotLevel)
	if err != nil || len(snapshots) == 0 {
		return err
	}
	changes, err := ownFiles(ctx, s, 0)
	if err != nil {
		return err
	}
	now := newestTime(append(slices.Clone(changes), snapshots...))
	oldest := now.Add(-retention)
	var old []*ltx.FileInfo
	for _, f := range snapshots {
		if f.CreatedAt.Before(oldest) {
			old = append(old, f)
		}
	}
	if len(old) > 0 {
		old = old[:len(old)-1]
	}
	if len(old) > 0 {
		// A restore in progress may have begun with the last of them, so files after it stay.
		if err := r.removeBefore(ctx, s, old[len(old)-1].MaxTXID); err != nil {
			return err
		}
		if err := r.remove(ctx, s, old); err != nil {
			return err
		}
	}
	return r.removeTerms(ctx, s, oldest)
}

// removeBefore deletes the files of the compacted levels that end before a transaction. It
// keeps the newest file of each level.
func (r *Replication) removeBefore(ctx context.Context, s *session, tx ltx.TXID) error {
	for level := 1; level <= len(r.cfg.CompactionIntervals); level++ {
		files, err := ownFiles(ctx, s, level)
		if err != nil {
			return err
		}
		var old []*ltx.FileInfo
		for _, f := range files[:max(len(files)-1, 0)] {
			if f.MaxTXID < tx {
				old = append(old, f)
			}
		}
		if err := r.remove(ctx, s, old); err != nil {
			return err
		}
	}
	return nil
}

// removeTerms deletes earlier terms that have no files newer than oldest, unless another
// term needs them or they were current at that time.
func (r *Replication) removeTerms(ctx context.Context, s *session, oldest time.Time) error {
	t := s.own
	if !t.complete.Load() {
		return nil
	}
	numbers, err := t.at.terms(ctx)
	if err != nil {
		return err
	}
	if len(numbers) > 0 && numbers[len(numbers)-1] > t.term.Number {
		return errTermEnded // the later term may need them
	}
	needed := map[int64]bool{}
	begun := t.term.Began // by the next later term
	for _, number := range slices.Backward(numbers) {
		if number >= t.term.Number {
			continue
		}
		found, err := readTerm(ctx, t.at, number)
		if errors.Is(err, errNoTerm) {
			continue
		} else if err != nil {
			return err
		}
		keep := needed[number] || !begun.Before(oldest)
		begun = found.Began
		if !keep {
			if keep, err = changedSince(ctx, t.at, number, oldest); err != nil {
				return err
			}
		}
		if keep {
			needed[found.Parent] = needed[found.Parent] || !found.Complete
			continue
		}
		if r.fenced() {
			return ErrLeaseExpired
		}
		if err := t.at.removeTerm(ctx, number); err != nil {
			return err
		}
	}
	return nil
}

// changedSince reports whether a term has files newer than since.
func changedSince(ctx context.Context, at location, number int64, since time.Time) (bool, error) {
	c, err := at.client(number)
	if err != nil {
		return false, err
	}
	for level := 0; level <= litestream.SnapshotLevel; level++ {
		files, err := listFiles(ctx, c, level)
		if err != nil || newestTime(files).After(since) {
			return err == nil, err
		}
	}
	return false, nil
}

// ownFiles lists a level of the session's term, without the files of its parent.
func ownFiles(ctx context.Context, s *session, level int) ([]*ltx.FileInfo, error) {
	return listFiles(ctx, s.own.client.ReplicaClient, level)
}

// listFiles lists a level.
func listFiles(ctx context.Context, c litestream.ReplicaClient, level int) ([]*ltx.FileInfo, error) {
	itr, err := c.LTXFiles(ctx, level, 0, false)
	if err != nil {
		return nil, err
	}
	return ltx.SliceFileIterator(itr)
}

// newestTime returns the time of the newest file, or a zero time.
func newestTime(files []*ltx.FileInfo) (newest time.Time) {
	for _, f := range files {
		if f.CreatedAt.After(newest) {
			newest = f.CreatedAt
		}
	}
	return newest
}
