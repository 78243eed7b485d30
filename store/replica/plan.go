package replica

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/benbjohnson/litestream"
	"github.com/superfly/ltx"
)

// planReader reads the database that a restore of a plan writes. It reads the newest object
// first, for two reasons: it passes on only the newest version of each page, and objects
// that a compaction may soon delete are read early.
type planReader struct {
	page func(info *ltx.FileInfo, pgno uint32, data []byte) error

	pageSize, commit uint32   // page size in bytes and number of pages; zero before the first object
	limit            uint32   // higher pages were truncated by the current object or a newer one
	seen             []uint64 // one bit per page
	missing          uint32   // number of pages not seen yet
}

// errIncompletePlan means that pages of the database are in no object of a plan.
var errIncompletePlan = errors.New("the objects of the replica lack")

// readPlan passes each page of the database that a restore of plan writes to page, once and
// in no particular order. It returns the page size and the number of pages. It passes the
// pages of an object on before it has checked the object. The error is a *damagedError if
// an object is damaged, and a *missingError if an object does not exist.
func readPlan(
	ctx context.Context, client litestream.ReplicaClient, plan []*ltx.FileInfo,
	page func(info *ltx.FileInfo, pgno uint32, data []byte) error,
) (pageSize, commit uint32, err error) {
	r := &planReader{page: page}
	files := slices.Clone(plan)
	slices.Reverse(files)
	if err := readObjects(ctx, client, files, objectSink{r.readHeader, r.readPage}); err != nil {
		return 0, 0, err
	}
	if r.missing > 0 {
		return 0, 0, fmt.Errorf("%w %d of the %d pages of the database", errIncompletePlan, r.missing, r.commit)
	}
	return r.pageSize, r.commit, nil
}

func (r *planReader) readHeader(h ltx.Header) error {
	if r.pageSize == 0 {
		r.pageSize, r.commit, r.limit = h.PageSize, h.Commit, h.Commit
		r.seen = make([]uint64, h.Commit/64+1)
		r.missing = h.Commit
		if ltx.LockPgno(h.PageSize) <= h.Commit {
			r.missing-- // SQLite never writes this page
		}
	}
	r.limit = min(r.limit, h.Commit)
	if h.PageSize != r.pageSize {
		return errors.New("the objects of the replica have pages of different sizes")
	}
	return nil
}

func (r *planReader) readPage(info *ltx.FileInfo, pgno uint32, data []byte) error {
	word, bit := pgno/64, uint64(1)<<(pgno%64)
	if pgno > r.limit || pgno == ltx.LockPgno(r.pageSize) || r.seen[word]&bit != 0 {
		return nil
	}
	r.seen[word] |= bit
	r.missing--
	return r.page(info, pgno, data)
}

// writePlan restores plan to a new file. The errors are those of readPlan; after an error
// the file may exist.
func writePlan(ctx context.Context, client litestream.ReplicaClient, plan []*ltx.FileInfo, path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	pageSize, commit, err := readPlan(ctx, client, plan, func(_ *ltx.FileInfo, pgno uint32, data []byte) error {
		_, err := f.WriteAt(data, int64(pgno-1)*int64(len(data)))
		return err
	})
	if err != nil {
		return err
	}
	// The plan may shrink the database, or its last pages may be unused.
	if err := f.Truncate(int64(commit) * int64(pageSize)); err != nil {
		return err
	}
	return f.Sync()
}
