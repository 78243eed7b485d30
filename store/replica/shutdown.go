package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// endCheckTimeout is the timeout of checkEnd.
const endCheckTimeout = 5 * time.Second

// checkEnd checks at the end of a session that the last position can be restored. It also
// checks the objects that were written during the session, newest first and as many as the
// timeout allows. It uploads a damaged object of level 0 again. For an object of another
// level it makes the next start upload the whole database.
func (r *Replication) checkEnd(s *session) error {
	ctx, cancel := context.WithTimeout(context.Background(), endCheckTimeout)
	defer cancel()
	if err := r.checkNewest(ctx, s); errors.Is(err, errReplicaIncomplete) {
		return err
	}
	ok, err := r.restorable(ctx, s)
	if err != nil {
		return nil // the upload succeeded, so assume that it is intact
	}
	if !ok {
		return errReplicaIncomplete
	}
	plan, err := litestream.CalcRestorePlan(ctx, s.own.client, s.replica.Pos().TXID, noTime, quiet)
	if err != nil {
		return nil // the same
	}
	slices.Reverse(plan)
	plan = slices.DeleteFunc(plan, func(f *ltx.FileInfo) bool { return f.MaxTXID <= s.own.sent })
	for range len(plan) + 1 {
		var damaged *damagedError
		if err := readObjects(ctx, s.own.client, plan, noSink); !errors.As(err, &damaged) {
			return nil
		}
		info, err := uploadAgain(ctx, s, damaged.info)
		if err != nil {
			err = errors.Join(damaged, err, os.Remove(filepath.Join(metaPath(r.path), recordName)))
			return fmt.Errorf("%w; the next start uploads the whole database", err)
		}
		plan[slices.Index(plan, damaged.info)] = info
		r.logger.Warn("found a damaged object in the replica; uploaded it again", "replica", r.cfg.Target(), "error", damaged)
	}
	return nil
}

// uploadAgain uploads an object of level 0 from the local file, and returns its new
// description.
func uploadAgain(ctx context.Context, s *session, info *ltx.FileInfo) (*ltx.FileInfo, error) {
	if info.Level != 0 {
		return nil, errors.New("it has no local file")
	}
	f, err := os.Open(s.db.LTXPath(0, info.MinTXID, info.MaxTXID))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return s.replica.Client.WriteLTXFile(ctx, 0, info.MinTXID, info.MaxTXID, f)
}
