package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// syncWAL copies what is new in the write-ahead log to files on the disk every
// monitor-interval, and sends to changed when there is any. It returns nil when
// ctx ends, and an error when replication must be interrupted.
func (r *Replication) syncWAL(ctx context.Context, s *session, changed chan<- struct{}) error {
	tick := time.NewTicker(r.cfg.MonitorInterval)
	defer tick.Stop()
	before := s.began // everything committed before this has been noticed
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
		synced, err := r.syncUnlessCopied(ctx, s, requested)
		if ctx.Err() != nil {
			return nil
		}
		var pos ltx.Pos
		if err == nil {
			pos, err = s.db.Pos()
		}
		if err != nil {
			return fmt.Errorf("the write-ahead log cannot be copied: %w", err)
		}
		if pos.TXID != last && pos.TXID > r.sentTX() { // an upload may have copied it
			r.noticed(before, pos.TXID)
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		last = pos.TXID
		before = synced

		if frames, err = r.checkpointIdle(ctx, s, frames); err != nil {
			return fmt.Errorf("the write-ahead log cannot be read: %w", err)
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

// sentTX returns the newest transaction that is known to be in the replica; 0 for
// none.
func (r *Replication) sentTX() ltx.TXID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// syncUnlessCopied syncs, unless the writer or an upload has done so within the
// last monitor-interval and this sync was not requested. It returns when the last
// sync began.
func (r *Replication) syncUnlessCopied(ctx context.Context, s *session, requested bool) (time.Time, error) {
	now := time.Now()
	if copied := r.copied.Load(); !requested && copied != nil && now.Sub(*copied) < r.cfg.MonitorInterval {
		return *copied, nil
	}
	return now, s.db.Sync(ctx)
}

// backlogTooLarge reports whether the files that are not uploaded yet exceed the
// limit. Uploaded files stay on the disk for l0-retention, and do not count.
func (r *Replication) backlogTooLarge(s *session) bool {
	r.mu.Lock()
	sent := r.sent
	r.mu.Unlock()
	limit := r.limits.backlog
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
		if info, err := f.Info(); err == nil { // it may just have been removed
			size += info.Size()
		}
	}
	return size > limit
}

// upload uploads what changed reports, at most every sync-interval, and at once what
// is waited for, see [Replication.Acknowledge]. It returns nil when ctx ends, and
// errReplicaIncomplete when replication must start again.
func (r *Replication) upload(ctx context.Context, s *session, changed <-chan struct{}) error {
	wait := r.cfg.settings.syncInterval
	r.acks.forget() // the session before may have ended because the replica is not complete
	for awaited := false; ; {
		if !awaited {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-r.acks.awaited():
			case <-time.After(max(10*time.Second, wait)): // verify the replica also without changes
			}
		}
		began, err := r.sendOrRetry(ctx, s)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		most := wait
		if r.acks == nil {
			most -= time.Since(began) // so that no commit waits longer than that for the next upload
		}
		if awaited, err = r.rest(ctx, r.acks.least(most), most); err != nil {
			return nil
		}
		if awaited {
			r.acks.gather(ctx)
		}
	}
}

// sendOrRetry is send, repeated after a failure until it succeeds, until ctx ends, or
// until replication must start again. It returns when the last one began.
func (r *Replication) sendOrRetry(ctx context.Context, s *session) (began time.Time, err error) {
	wait := r.cfg.settings.syncInterval
	for {
		began = time.Now()
		err := r.send(ctx, s)
		if err == nil || ctx.Err() != nil || endsSession(err, s) {
			return began, err
		}
		r.failed(err)
		wait = min(max(2*wait, minRetry), maxRetry/2)
		if _, err := r.rest(ctx, minRetry, wait); err != nil {
			return began, err
		}
	}
}

// endsSession reports whether replication must start again after an upload.
func endsSession(err error, s *session) bool {
	return errors.Is(err, errReplicaIncomplete) && !s.verified.IsZero() || errors.Is(err, errTermEnded)
}

// rest sleeps between two uploads, and reports whether the next is waited for. It is
// at most the duration most, and from the duration least on it ends when somebody
// waits. The error is that of ctx.
func (r *Replication) rest(ctx context.Context, least, most time.Duration) (awaited bool, err error) {
	began := time.Now()
	if least > 0 {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(min(least, most)):
		}
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-r.acks.awaited():
		return true, nil
	default:
	}
	if left := most - time.Since(began); least < most && left > 0 {
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

// send copies what is new in the write-ahead log, and uploads everything that is
// copied.
func (r *Replication) send(ctx context.Context, s *session) error {
	if r.fenced() {
		return ErrLeaseExpired
	}
	if s.superseded.Load() {
		return errTermEnded
	}
	began := time.Now()
	if err := r.copyLog(ctx, s); err != nil {
		return err
	}
	if r.acks != nil {
		r.acks.begin()
		defer r.acks.end(false)
		defer r.acks.copyAhead(func() {
			if err := r.copyLog(ctx, s); err != nil {
				s.store.Logger.Debug("copy ahead of an upload", "error", err) // the upload meets the same error
			}
		})()
	}
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
		if err := r.acknowledge(); err != nil { // they need not wait for the verification
			return err
		}
	}
	if err := r.verify(ctx, s); err != nil {
		return err
	}
	if err := r.acknowledge(); err != nil {
		return err
	}
	r.succeeded(sent)
	return nil
}

// copyLog copies what is new in the write-ahead log for the next upload, unless that
// was done ahead.
func (r *Replication) copyLog(ctx context.Context, s *session) error {
	if r.acks != nil && !r.acks.stage() {
		return nil
	}
	began := time.Now()
	err := s.db.Sync(ctx)
	if r.acks != nil {
		r.acks.copied(time.Since(began), err == nil)
	}
	if err != nil {
		return fmt.Errorf("the write-ahead log cannot be copied: %w", err)
	}
	r.copied.Store(&began)
	return nil
}

// acknowledge wakes those who wait for the upload. The error wraps ErrLeaseExpired
// when the present holder of the lease may not see what was uploaded.
func (r *Replication) acknowledge() error {
	if r.acks == nil {
		return nil
	}
	if r.fenced() {
		return ErrLeaseExpired
	}
	r.acks.end(true)
	return nil
}

// sendFiles uploads every synced transaction, and returns the newest. The upload
// began at began.
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
		s.replica.SetPos(ltx.Pos{TXID: sent}) // after a failure, what is left is sent
	}
	if r.measure != nil && before > 0 && sent > before {
		r.measure(int(sent-before), time.Since(began))
	}
	return sent, nil
}

// sendFile uploads the file of a transaction. Its timeout is its own, so that a
// bucket that is slow gets a long backlog too.
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

// verify checks from time to time that the replica can be restored: a bucket may
// have been emptied, or have a lifecycle rule that deletes old objects. Uploads
// to such a replica succeed, and are useless alone. The first time in a session
// verify uploads a snapshot then. Later it returns errReplicaIncomplete: the open
// Litestream assumes that its earlier uploads exist.
func (r *Replication) verify(ctx context.Context, s *session) error {
	if !s.verified.IsZero() && time.Since(s.verified) < r.limits.verifyInterval {
		return nil
	}
	ok, err := r.restorable(ctx, s)
	if err == nil && !ok && s.verified.IsZero() {
		r.failed(errReplicaIncomplete)
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

// restorable reports whether every transaction that was sent can be restored. It
// checks twice before it reports false: a compaction may have moved files between
// the listings of two levels.
func (r *Replication) restorable(ctx context.Context, s *session) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	sent := s.replica.Pos().TXID
	for range 2 {
		_, err := litestream.CalcRestorePlan(ctx, s.replica.Client, sent, time.Time{}, slog.New(slog.DiscardHandler))
		if err == nil || !errors.Is(err, litestream.ErrTxNotAvailable) {
			return err == nil, err
		}
		// A plan up to sent cannot contain a newer snapshot.
		snapshot, err := s.replica.MaxLTXFileInfo(ctx, litestream.SnapshotLevel)
		if err != nil || snapshot.MaxTXID >= sent {
			return err == nil, err
		}
	}
	return false, nil
}
