package replica

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"service/webhook"
)

// A service without a lease leaves a sign of life in its term, to which only its data directory
// writes. It therefore needs no conditional writes, and works in a folder. See
// docs/decisions/0072-a-sign-of-life-without-a-lease.md.

const (
	// writerName is the name of the sign of life, next to the record of its term.
	writerName = "writer.json"
	// writerPeriod is how long the sign of life must be seen unchanged for its writer to count as
	// gone.
	writerPeriod = 30 * time.Second
	// writerInterval is the time between two renewals: two may fail.
	writerInterval = writerPeriod / 3
)

// ErrWriting means that another service writes to the replica without a lease.
var ErrWriting = errors.New("another service is writing to this replica")

// writerObject is the sign of life of a service without a lease. It has the format of a lease
// whose generation is the number of the term.
type writerObject struct {
	leaseObject
	Since time.Time `json:"since"` // when the process began, by its clock
	writerProcess
}

// writerState is the knowledge about the service that wrote the newest term.
type writerState struct {
	term   term
	object writerObject // zero without one, or if it cannot be parsed
	ours   bool         // this data directory began the term, in this boot of the machine
	mark   string       // changes with each renewal and with each term
}

// gone reports whether the writer is known to have stopped, or is this directory.
func (y writerState) gone() bool {
	return y.term.none() || y.ours || y.object.Released || y.object.ended()
}

// host returns the host of the writer. It is input from outside.
func (y writerState) host() string {
	host := LeaseState{Owner: y.object.Owner}.Host()
	if host == "" {
		return "an unknown host"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) {
			return -1
		}
		return r
	}, host)
}

// since returns since when the writer has been writing.
func (y writerState) since() string {
	at := y.object.Since
	if at.IsZero() {
		at = y.term.Began
	}
	return webhook.FormatTime(at)
}

// error returns an error that wraps err and names the writer.
func (y writerState) error(err error) error {
	return fmt.Errorf("%w: host %s, since %s, in term %d", err, y.host(), y.since(), y.term.Number)
}

// readWriter returns the state of the service that wrote the newest term of a replica. path is the
// path of this service's database. readWriter takes at most maxLeaseTimeout, even if the replica is
// in a folder of a network file system that hangs.
func readWriter(ctx context.Context, cfg *Config, path string) (writerState, error) {
	ctx, cancel := context.WithTimeout(ctx, maxLeaseTimeout)
	defer cancel()
	type result struct {
		state writerState
		err   error
	}
	read := make(chan result, 1)
	go func() {
		y, err := readNewestWriter(ctx, cfg, path)
		read <- result{y, err}
	}()
	select {
	case <-ctx.Done():
		return writerState{}, fmt.Errorf("read the replica %s: %w", cfg.Target(), ctx.Err())
	case r := <-read:
		return r.state, r.err
	}
}

// readNewestWriter is readWriter without the limit for a folder.
func readNewestWriter(ctx context.Context, cfg *Config, path string) (y writerState, err error) {
	at, err := cfg.location(ctx)
	if err != nil {
		return y, err
	}
	if y.term, err = newestTerm(ctx, at); err != nil || y.term.none() {
		return y, err
	}
	last, err := readRecord(path)
	if err != nil {
		return y, err
	}
	here, err := last.in(filepath.Dir(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return y, err
	}
	y.ours = last.wrote(y.term) && here
	text, err := at.read(ctx, y.term.Number, writerName)
	if err != nil {
		return y, fmt.Errorf("read %s/%s of the replica: %w", termPath("", y.term.Number), writerName, err)
	}
	if json.Unmarshal(text, &y.object) != nil {
		y.object = writerObject{} // the writer cannot be named, but changes are seen
	}
	hash := sha256.Sum256(text)
	y.mark = y.term.Nonce + " " + hex.EncodeToString(hash[:])
	return y, nil
}

// wrote reports whether the directory of the record, or one that it was copied from, began t.
func (r record) wrote(t term) bool { return r.Own && r.Term == t.Number && r.Nonce == t.Nonce }

// sawGone reports whether a writer was seen to be gone, and nothing has changed since.
func (c *Config) sawGone(mark string) bool {
	seen := c.gone.Load()
	return seen != nil && *seen == mark
}

// writerWatch watches the sign of life of another service by the rules of [LeaseWatch].
type writerWatch struct {
	cfg   *Config
	path  string // of the database of this service
	began time.Time
	watch LeaseWatch
}

func newWriterWatch(cfg *Config, path string) *writerWatch {
	return &writerWatch{
		cfg: cfg, path: path, began: time.Now(),
		watch: LeaseWatch{lease: &Lease{cfg: LeaseConfig{TTL: writerPeriod}}},
	}
}

// poll reads the sign of life and reports whether its writer is gone. One goroutine must call it,
// at least every third of writerPeriod.
func (w *writerWatch) poll(ctx context.Context) (y writerState, gone bool, err error) {
	asked := time.Since(w.began)
	if y, err = readWriter(ctx, w.cfg, w.path); err != nil {
		return y, false, err
	}
	if y.gone() || w.cfg.sawGone(y.mark) {
		return y, true, nil
	}
	state := LeaseState{Generation: y.term.Number, Owner: y.object.Owner, etag: y.mark}
	if !w.watch.observe(state, asked, time.Since(w.began)) {
		return y, false, nil
	}
	w.cfg.gone.Store(&y.mark)
	return y, true, nil
}

// awaitWriter returns nil when the service that wrote the newest term is gone, or is this one. As
// soon as another shows a sign of life, the error wraps [ErrWriting]. If the replica cannot be
// read, err is the reason if it is known, and awaitWriter waits only with data that another
// service may be serving.
func awaitWriter(ctx context.Context, cfg *Config, dir string, logger *slog.Logger, err error) error {
	w := newWriterWatch(cfg, filepath.Join(dir, "service.db"))
	var first, y writerState
	failing := false
	for ; ctx.Err() == nil; err = nil {
		gone := false
		if err == nil {
			y, gone, err = w.poll(ctx)
		}
		if err != nil && ctx.Err() == nil {
			if wait, recordErr := mustSeeWriter(w.path, cfg); recordErr != nil || !wait {
				return errors.Join(err, recordErr)
			}
		}
		if bad := err != nil; bad != failing && ctx.Err() == nil {
			failing = bad
			logReadable(logger, cfg, err)
		}
		switch {
		case err != nil:
		case gone:
			return nil
		case first.mark == "":
			first = y
			logger.Warn("another service has written to the replica and has not stopped in order; waiting to see whether it is alive",
				"host", y.host(), "since", y.since(), "term", y.term.Number, "period", writerPeriod)
		case y.mark != first.mark:
			return y.error(ErrWriting)
		}
		_ = sleep(ctx, time.Second)
	}
	return ctx.Err()
}

// logReadable logs that the replica cannot be read, or can be read again.
func logReadable(logger *slog.Logger, cfg *Config, err error) {
	if err == nil {
		logger.Info("the replica is readable again")
		return
	}
	logger.Error("cannot see whether another service writes to the replica, and this directory did not write its newest data: "+
		"waiting until the replica can be read; to serve without it, start with --litestream off", "replica", cfg.Target(), "error", err)
}

// mustSeeWriter reports whether a service must not start without reading the replica: its data
// was restored or copied from a directory that wrote to the replica. Its own directory may start,
// even after a reboot, and so may data that was never in the replica. A directory without data is
// restored from the replica, or does not start.
func mustSeeWriter(path string, cfg *Config) (bool, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	last, err := readRecord(path)
	if err != nil || last.Term == 0 || last.Replica != cfg.Target() {
		return false, err
	}
	here, err := identifyDir(filepath.Dir(path))
	if err != nil {
		return false, err
	}
	// Device numbers of another boot mean nothing.
	same := here.Inode != 0 && here.Inode == last.Inode && (here.Device == last.Device || here.Boot != last.Boot)
	return !last.Own || !same, nil
}

// CheckWriter checks once whether another service may be writing to a replica without a lease. The
// error wraps [ErrWriting] if that service has not shut down cleanly and was not seen to be gone.
// dir is the data directory of this service.
func CheckWriter(ctx context.Context, cfg *Config, dir string) error {
	y, err := readWriter(ctx, cfg, filepath.Join(dir, "service.db"))
	if err != nil || y.gone() || cfg.sawGone(y.mark) {
		return err
	}
	return y.error(ErrWriting)
}

// CheckGone checks that the writer that [AwaitUnleased] has seen to be gone has not come back. The
// error wraps [ErrWriting] if it has. After any other error this is unknown.
func CheckGone(ctx context.Context, cfg *Config, dir string) error {
	if cfg.gone.Load() == nil {
		return nil
	}
	return CheckWriter(ctx, cfg, dir)
}
