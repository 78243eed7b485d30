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

// planReader reads the database that the objects of a plan make. It begins with
// the newest object: only the newest version of each page is passed on, and the
// objects that may soon be deleted, since they were merged into others, are read
// first.
type planReader struct {
	page func(info *ltx.FileInfo, pgno uint32, data []byte) error

	pageSize, commit uint32   // of the database; zero before the first object
	limit            uint32   // pages beyond it were cut off by the object that is being read, or later
	seen             []uint64 // a bit for each page
	missing          uint32   // pages that are not seen yet
}

// errIncompletePlan says that pages of the database are in no object of a plan.
var errIncompletePlan = errors.New("the objects of the replica lack")

// readPlan passes each page of the database that plan makes to page once, in no
// particular order, and returns the size of the database. The pages of an object
// are passed before its checksum is known. The error is a *damagedError when an
// object is damaged, and a *goneError when there is none.
func readPlan(ctx context.Context, client litestream.ReplicaClient, plan []*ltx.FileInfo, page func(info *ltx.FileInfo, pgno uint32, data []byte) error) (pageSize, commit uint32, err error) {
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
			r.missing-- // SQLite never writes it
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

// writePlan writes the database that plan makes to a new file. The errors are
// those of readPlan; the file may exist then.
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
	// A file that was cut off may have had more pages, and the last may be empty.
	if err := f.Truncate(int64(commit) * int64(pageSize)); err != nil {
		return err
	}
	return f.Sync()
}
