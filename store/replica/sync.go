package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"

	"service/store/sqlite"
)

// syncWAL copies new changes from the WAL to local files every monitor-interval, and
// sends to changed if there are any. It returns nil when ctx ends, and an error when
// replication must be interrupted.
func (r *Replication) syncWAL(ctx context.Context, s *session, changed chan<- struct{}) error {
	tick := time.NewTicker(r.cfg.MonitorInterval)
	defer tick.Stop()
	before := s.began // everything committed before this is copied
	var frames int64
	var last ltx.TXID
	var long, checked time.Time
	for {
		requested := false
		select {
		case <-ctx.Done():
			return nil
		case <-r.syncNow:
			requested = true
			tick.Reset(r.cfg.MonitorInterval)
		case <-tick.C:
		}
		began := time.Now()
		pos, synced, err := r.syncIfUseful(ctx, s, requested, before, frames)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("copy the WAL: %w", err)
		}
		if pos.TXID != last && pos.TXID > r.sentTX() { // an upload may have copied it
			r.addPending(before, pos.TXID)
			wake(changed)
		}
		last = pos.TXID
		before = synced

		if frames, err = r.checkpointIdle(ctx, s, frames); err != nil {
			return fmt.Errorf("read the WAL: %w", err)
		}
		switch {
		case frames < r.limits.abandon:
			long = time.Time{}
		case long.IsZero():
			long = began
		case began.Sub(long) > r.limits.abandonAfter:
			return errWALTooLong
		}
		if began.Sub(checked) > r.limits.backlogInterval {
			checked = began
			if r.backlogTooLarge(s) {
				return errBacklog
			}
		}
	}
}

// sentTX returns the newest transaction that is known to be in the replica, or 0.
func (r *Replication) sentTX() ltx.TXID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// syncIfUseful syncs unless files wait for an upload. Another file would only wait behind them, and
// a slow bucket would fall behind by one file every monitor-interval; the next upload copies the
// commits before it. It syncs in any case if requested, and if the WAL, of the given number of
// frames, is long enough for a checkpoint, which needs the copy. It returns the position of the
// newest file, and when the last sync began: before if it did not sync.
func (r *Replication) syncIfUseful(
	ctx context.Context, s *session, requested bool, before time.Time, frames int64,
) (pos ltx.Pos, synced time.Time, err error) {
	pos, err = s.db.Pos()
	if err != nil || !requested && pos.TXID > r.sentTX() && frames < sqlite.AutoCheckpointFrames {
		return pos, before, err
	}
	if synced, err = r.syncUnlessCopied(ctx, s, requested); err == nil {
		pos, err = s.db.Pos()
	}
	return pos, synced, err
}

// syncUnlessCopied syncs, unless the writer or an upload did so within the last
// monitor-interval and this sync was not requested. It returns when the last sync
// began.
func (r *Replication) syncUnlessCopied(ctx context.Context, s *session, requested bool) (time.Time, error) {
	now := time.Now()
	if copied := r.copied.Load(); !requested && copied != nil && now.Sub(*copied) < r.cfg.MonitorInterval {
		return *copied, nil
	}
	return now, s.db.Sync(ctx)
}

// backlogTooLarge reports whether the local files that are not uploaded yet exceed
// the limit. Uploaded files, which are kept for l0-retention, do not count.
func (r *Replication) backlogTooLarge(s *session) bool {
	sent, limit := r.sentTX(), r.limits.backlog
	if info, err := os.Stat(r.path); err == nil {
		limit = max(limit, r.limits.backlogRatio*info.Size())
	}
	files, err := os.ReadDir(s.db.LTXLevelDir(0))
	if err != nil {
		return false // the next sync meets the same error
	}
	var size int64
	for _, f := range files {
		if _, tx, err := ltx.ParseFilename(f.Name()); err != nil || tx <= sent {
			continue
		}
		if info, err := f.Info(); err == nil { // the file may just have been deleted
			size += info.Size()
		}
	}
	return size > limit
}

// upload uploads changes at most every sync-interval, or immediately if a commit waits
// for its upload, see [Replication.Acknowledge]. It returns nil when ctx ends, and
// errReplicaIncomplete when replication must start again.
func (r *Replication) upload(ctx context.Context, s *session, changed <-chan struct{}) error {
	wait := r.cfg.settings.syncInterval
	r.acks.reset() // the last session may have ended because the replica is incomplete
	for awaited := false; ; {
		if !awaited {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-r.acks.awaited():
			case <-time.After(max(10*time.Second, wait)): // verify the replica even without changes
			}
		}
		began, err := r.sendOrRetry(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		maxPause := wait
		if r.acks.timeout == 0 {
			maxPause -= time.Since(began) // no commit waits longer than sync-interval for the next upload
		}
		if awaited, err = r.sleep(ctx, r.acks.pause, maxPause); err != nil {
			return nil
		}
		if awaited {
			r.acks.linger(ctx)
		}
	}
}

// maxSendRetry is the longest wait between two tries of an upload. It is short, because events
// acknowledged after the bucket became writable again are only on this disk until the next try.
const maxSendRetry = 5 * time.Second

// sendOrRetry calls send, and retries until it succeeds, ctx ends or replication must
// start again. It returns when the last upload began.
func (r *Replication) sendOrRetry(ctx context.Context, s *session) (began time.Time, err error) {
	wait := r.cfg.settings.syncInterval
	for {
		began = time.Now()
		err := r.send(ctx, s)
		if err == nil || ctx.Err() != nil || endsSession(err, s) {
			return began, err
		}
		r.recordFailure(err)
		wait = min(max(2*wait, minRetry), maxSendRetry)
		if _, err := r.sleep(ctx, minRetry, wait); err != nil {
			return began, err
		}
	}
}

// endsSession reports whether replication must start again after err.
func endsSession(err error, s *session) bool {
	return errors.Is(err, errReplicaIncomplete) && !s.verified.IsZero() || errors.Is(err, errTermEnded)
}

// sleep sleeps between two uploads for at most maxPause. After minPause, it returns as
// soon as a commit waits for the next upload, which awaited reports. The error is that
// of ctx.
func (r *Replication) sleep(ctx context.Context, minPause, maxPause time.Duration) (awaited bool, err error) {
	began := time.Now()
	if minPause > 0 {
		if err := sleep(ctx, min(minPause, maxPause)); err != nil {
			return false, err
		}
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.acks.awaited():
		return true, nil
	default:
	}
	if left := maxPause - time.Since(began); minPause < maxPause && left > 0 {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-r.acks.awaited():
			return true, nil
		case <-time.After(left):
		}
	}
	return false, nil
}

// send copies new changes from the WAL and uploads everything that is copied.
func (r *Replication) send(ctx context.Context, s *session) error {
	if r.fenced() {
		return ErrLeaseExpired
	}
	if s.superseded.Load() {
		return errTermEnded
	}
	if err := r.confirmTerm(ctx, s); err != nil {
		return err
	}
	began := time.Now()
	if err := r.copyWAL(ctx, s); err != nil {
		return err
	}
	r.acks.begin()
	defer r.acks.end(false)
	defer r.acks.copyAhead(func() {
		if err := r.copyWAL(ctx, s); err != nil {
			s.store.Logger.Debug("failed to copy the WAL ahead of an upload", "error", err) // the upload reports it
		}
	})()
	if s.snapshot.Load() {
		if err := r.uploadSnapshot(ctx, s); err != nil {
			return err
		}
	}
	sent, err := r.sendFiles(ctx, s, began)
	if err != nil {
		return err
	}
	if !s.verified.IsZero() {
		if err := r.acknowledge(); err != nil { // before the verification, to wake waiters early
			return err
		}
	}
	if err := r.verify(ctx, s); err != nil {
		return err
	}
	if err := r.acknowledge(); err != nil {
		return err
	}
	r.recordSuccess(sent)
	return nil
}

// copyWAL copies new changes from the WAL for the next upload, unless they were
// copied ahead.
func (r *Replication) copyWAL(ctx context.Context, s *session) error {
	if !r.acks.stage() {
		return nil
	}
	began := time.Now()
	err := s.db.Sync(ctx)
	r.acks.copied(time.Since(began), err == nil)
	if err != nil {
		return fmt.Errorf("copy the WAL: %w", err)
	}
	r.copied.Store(&began)
	return nil
}

// acknowledge wakes the waiters for the upload. The error wraps ErrLeaseExpired if the
// lease may have another holder, which may not see the upload.
func (r *Replication) acknowledge() error {
	if r.fenced() {
		if r.acks.timeout == 0 {
			return nil // the callers of AwaitUpload wait for an upload while the lease is valid
		}
		return ErrLeaseExpired
	}
	r.acks.end(true)
	return nil
}

// sendFiles uploads every synced transaction and returns the newest. began is when the
// upload began.
func (r *Replication) sendFiles(ctx context.Context, s *session, began time.Time) (sent ltx.TXID, err error) {
	if s.replica.Pos().IsZero() {
		s.replica.SetPos(ltx.Pos{TXID: r.sentTX()})
	}
	pos, err := s.db.Pos()
	if err != nil {
		return 0, err
	}
	before := s.replica.Pos().TXID
	for sent = before; sent < pos.TXID; {
		if err := r.sendFile(ctx, s, sent+1); err != nil {
			return 0, err
		}
		sent++
		s.replica.SetPos(ltx.Pos{TXID: sent}) // after a failure, the upload continues here
	}
	if r.measure != nil && before > 0 && sent > before {
		r.measure(int(sent-before), time.Since(began))
	}
	return sent, nil
}

// sendFile uploads the file of a transaction. Each file has its own timeout, so that a
// slow bucket can receive a long backlog.
func (r *Replication) sendFile(ctx context.Context, s *session, tx ltx.TXID) error {
	f, err := os.Open(s.db.LTXPath(0, tx, tx))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	timeout := r.acks.requestTimeout() + time.Duration(info.Size())*time.Second/minUploadRate
	sending, cancel := context.WithTimeoutCause(ctx, timeout, errUploadStalled)
	defer cancel()
	began := time.Now()
	_, err = s.replica.Client.WriteLTXFile(sending, 0, tx, tx, f)
	r.acks.adapt(time.Since(began), sending.Err() != nil)
	return err
}

// verify checks every verifyInterval that the replica can be restored. A bucket may
// have been emptied, or a lifecycle rule may delete old objects. Uploads to such a
// replica succeed but are useless alone.
//
// The first call in a session repairs an incomplete replica with a snapshot. Later
// calls return errReplicaIncomplete, because Litestream, which is open, assumes that
// its earlier uploads exist.
func (r *Replication) verify(ctx context.Context, s *session) error {
	if !s.verified.IsZero() && time.Since(s.verified) < r.limits.verifyInterval {
		return nil
	}
	ok, err := r.restorable(ctx, s)
	if err == nil && !ok && s.verified.IsZero() {
		r.recordFailure(errReplicaIncomplete)
		uploading, cancel := context.WithTimeoutCause(ctx, requestTimeout+r.uploadTimeout(), errUploadStalled)
		defer cancel()
		if _, err = s.db.Snapshot(uploading); err == nil {
			ok, err = r.restorable(ctx, s)
		}
	}
	switch {
	case err != nil:
		return err
	case !ok:
		return errReplicaIncomplete
	}
	s.verified = time.Now()
	return nil
}

// restorable reports whether every uploaded transaction can be restored. It checks
// twice before it returns false, because a compaction may have moved files while it
// listed the levels.
func (r *Replication) restorable(ctx context.Context, s *session) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := s.replica.Pos().TXID
	for range 2 {
		if ok, err := reaches(ctx, s.replica.Client, sent); ok || err != nil {
			return ok, err
		}
		// A plan up to sent cannot contain a newer snapshot.
		snapshot, err := s.replica.MaxLTXFileInfo(ctx, litestream.SnapshotLevel)
		if err != nil || snapshot.MaxTXID >= sent {
			return err == nil, err
		}
	}
	return false, nil
}
