package datadir

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"service/internal/durable"
	"service/store/certificate"
	"service/store/keyring"
	"service/store/record"
	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

const (
	// StandbyFolder is the directory in the data directory that contains the copy.
	StandbyFolder = "standby"
	// primaryFile is in StandbyFolder. It contains the host of the primary as last seen.
	primaryFile = "primary"
	// containedFile is in a directory with replaced files whose database is contained in the
	// replica. It contains the position of that database.
	containedFile = "contained.json"
	// leftFile is in a directory with replaced files whose database has changes that the
	// replica lacks.
	leftFile = "left.json"
)

// ErrRestored means that a database was restored, and that no primary has written to it since.
// Such a database is never set aside.
var ErrRestored = errors.New("the data was restored, and no primary has used it yet")

// Standby is a locked data directory that another node serves instead, or may serve. Without a
// database of its own it contains a copy of a replica, which is kept up to date until it becomes
// the database.
type Standby struct {
	dir      string
	cfg      *replica.Config
	keyFile  string // "" for secret.key in dir
	path     string // of the copy
	follower *replica.Follower
	r        *Restoration
	logger   *slog.Logger

	reader metricsReader
}

// metricsReader is the token that last read the metrics of a standby. The copy is opened for an
// unknown token, at most once per second.
type metricsReader struct {
	mu    sync.Mutex
	hash  [sha256.Size]byte
	until time.Time // hash is known to be valid
	next  time.Time // of the next look into the copy
}

const (
	metricsReaderKnown = time.Minute
	metricsReaderPause = time.Second
)

// MayReadMetrics reports whether the copy contains a valid token with this secret that may read the
// metrics of the installation. A revocation takes effect within a minute of its arrival in the copy.
func (s *Standby) MayReadMetrics(ctx context.Context, secret string) bool {
	hash, ok := webhook.HashTokenSecret(secret)
	if !ok {
		return false
	}
	s.reader.mu.Lock()
	defer s.reader.mu.Unlock()
	now := time.Now()
	if hash == s.reader.hash && now.Before(s.reader.until) {
		return true
	}
	if now.Before(s.reader.next) {
		return false
	}
	s.reader.next = now.Add(metricsReaderPause)
	err := s.read(func(db *sqlite.Offline) error {
		token, err := record.ScanToken(db.QueryRowContext(ctx, "SELECT "+record.TokenColumns+" FROM tokens WHERE hash = ?", hash[:]).Scan)
		if err == nil && (!token.Valid(now) || token.ProgramID != "" || !token.Allows(webhook.ScopeMetricsRead)) {
			err = sql.ErrNoRows
		}
		return err
	})
	if err == nil {
		s.reader.hash, s.reader.until = hash, now.Add(metricsReaderKnown)
	}
	return err == nil
}

// read calls use with the copy. It returns the error of use, or [replica.ErrNoCopy].
func (s *Standby) read(use func(*sqlite.Offline) error) error {
	return s.follower.Read(func(path string) error {
		db, err := sqlite.OpenOffline(path)
		if err != nil {
			return err
		}
		return errors.Join(use(db), db.Close())
	})
}

// intactLimit limits CheckIntact. A copy that takes longer counts as intact.
const intactLimit = 2 * time.Minute

// CheckIntact reads all pages of the copy, and replaces a damaged one: until the new copy is complete
// there is none. It holds the copy for that time, at most two minutes. The error wraps
// [replica.ErrNoCopy] if there is none.
func (s *Standby) CheckIntact(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, intactLimit)
	defer cancel()
	return s.read(func(db *sqlite.Offline) error {
		err := sqlite.QuickCheck(bounded, s.path, db.DB)
		switch {
		case bounded.Err() != nil:
			return ctx.Err()
		case errors.Is(err, sqlite.ErrDamaged):
			s.follower.Discard(err)
			return replica.ErrNoCopy
		}
		return err
	})
}

// LoadCertificate is [certificate.Storage.Load] for the copy.
func (s *Standby) LoadCertificate(ctx context.Context, path string) (value []byte, err error) {
	content, err := ReadKeys(s.dir, s.keyFile)
	if err != nil {
		return nil, err
	}
	keys, err := keyring.OfContent(content)
	if err != nil {
		return nil, err
	}
	err = s.read(func(db *sqlite.Offline) (err error) {
		value, err = certificate.Load(path, keys, db.QueryRowContext(ctx, certificate.Select, path).Scan)
		return err
	})
	return value, err
}

// OpenStandby locks a data directory for a copy of the replica. keyFile contains the secret
// keys, "" for secret.key in dir; it may be missing until the standby is promoted. An existing
// database stays as it is until SetAside. The caller must call Close.
func OpenStandby(dir string, cfg *replica.Config, keyFile string, logger *slog.Logger) (*Standby, error) {
	r, err := Restore(dir, true)
	if err != nil {
		return nil, err
	}
	s := &Standby{
		dir: dir, cfg: cfg, keyFile: keyFile, path: filepath.Join(dir, StandbyFolder, Database), r: r, logger: logger,
	}
	s.follower = replica.NewFollower(replica.FollowerConfig{Replica: cfg, Path: s.path, Logger: logger})
	err = cfg.CheckDatabase(filepath.Join(dir, Database))
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, StandbyFolder), 0o700)
	}
	if err == nil {
		err = s.adoptContained(context.Background())
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return s, nil
}

// NotePrimary stores the host of the primary, for [CheckData] after the standby has ended.
func (s *Standby) NotePrimary(host string) error {
	return durable.WriteFile(filepath.Join(filepath.Dir(s.path), primaryFile), []byte(host+"\n"), 0o600)
}

// Close unlocks the data directory. The copy stays for the next standby.
func (s *Standby) Close() error { return s.r.Close() }

// HasDatabase reports whether the directory contains a database of its own.
func (s *Standby) HasDatabase() bool {
	_, err := os.Lstat(filepath.Join(s.dir, Database))
	return err == nil
}

// HasCopy reports whether there is a complete copy of the replica.
func (s *Standby) HasCopy() bool {
	return s.follower.Read(func(string) error { return nil }) == nil
}

// Generation is [KnownLease] for the directory's own database.
func (s *Standby) Generation(ctx context.Context) (int64, error) {
	return knownLease(ctx, filepath.Join(s.dir, Database))
}

// State returns the state of the copy.
func (s *Standby) State() replica.FollowerState { return s.follower.State() }

// Follow keeps the copy up to date until ctx ends. It retries while the replica is empty or not
// reachable, and makes a new copy if the current one cannot be continued. It always returns nil.
func (s *Standby) Follow(ctx context.Context) error { return s.follower.Follow(ctx) }

// HasNewestTerm is [replica.Follower.HasNewestTerm].
func (s *Standby) HasNewestTerm(ctx context.Context) (bool, error) {
	return s.follower.HasNewestTerm(ctx)
}

// CheckServable returns nil if this binary could serve the directory's own database or, without one,
// the copy: the database has the schema of this binary, and the key file decrypts its secrets. The
// error wraps [keyring.ErrKey] if the key file is missing or wrong, and [replica.ErrNoCopy] if there
// is no complete copy.
func (s *Standby) CheckServable(ctx context.Context) error {
	keys, keyErr := ReadKeys(s.dir, s.keyFile)
	if keyErr != nil && !errors.Is(keyErr, fs.ErrNotExist) {
		return keyErr
	}
	if path := filepath.Join(s.dir, Database); s.HasDatabase() {
		db, err := sqlite.OpenReadOnly(path)
		if err != nil {
			return err
		}
		return errors.Join(checkServable(ctx, path, db, keys, keyErr), db.Close())
	}
	return s.read(func(db *sqlite.Offline) error { return checkServable(ctx, s.path, db.DB, keys, keyErr) })
}

// checkServable is CheckServable for the database at path. keyErr is the reason why there are no
// keys, or nil.
func checkServable(ctx context.Context, path string, db *sql.DB, keys []byte, keyErr error) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := schema.Current.Check(path, version); err != nil {
		return err
	}
	scan, _ := sqlite.ReadsOf(ctx, db)
	check, err := schema.Get(scan, keyring.CheckPlace)
	if err != nil || check == nil { // nothing has been encrypted yet
		return err
	}
	if keyErr != nil {
		return keyErr
	}
	ring, err := keyring.OfContent(keys)
	if err != nil {
		return err
	}
	if !ring.Fits(check) {
		return fmt.Errorf("%w: the secret key does not decrypt the secrets of the database", keyring.ErrKey)
	}
	return nil
}

// SetAside moves the directory's own database out of the way, because another node holds the
// lease or has newer data; displaced says that the other node has acquired the lease since
// this database was written. A database that the replica contains becomes the copy. Any other
// database is kept, and the first result describes it.
//
// Nothing changes if the error wraps [ErrRestored], [replica.ErrForeign] or
// [replica.ErrUndecided]; patient makes the last one impossible.
func (s *Standby) SetAside(ctx context.Context, displaced, patient bool) (*Replaced, error) {
	path := filepath.Join(s.dir, Database)
	position, changes, err := replica.Compare(ctx, s.cfg, path, displaced)
	if errors.Is(err, replica.ErrUndecided) && !patient {
		changes, err = replica.UnknownChanges, nil
	}
	if err != nil {
		return nil, err
	}
	known, err := s.Generation(ctx)
	switch {
	case err != nil:
		return nil, err
	case known == NewestData:
		return nil, ErrRestored
	case known == 0 && changes == replica.UnknownChanges:
		return nil, fmt.Errorf("%w: %s was never written under a lease", replica.ErrForeign, path)
	}
	name, mark := leftFile, any(Replaced{Changes: changes, At: time.Now().UTC()})
	if changes == 0 {
		name, mark = containedFile, position
	}
	text, err := json.Marshal(mark)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(filepath.Join(s.r.folder, oldFiles, name), append(text, '\n'), 0o600); err != nil {
		return nil, err
	}
	aside, err := s.r.Commit()
	if err != nil {
		return nil, err
	}
	if err := s.r.begin(); err != nil {
		return nil, err
	}
	if changes == 0 {
		return nil, s.adoptContained(ctx)
	}
	return &Replaced{Dir: aside, Changes: changes}, nil
}

// adoptContained makes a replaced database that the replica contains the copy. It continues
// after a crash.
func (s *Standby) adoptContained(ctx context.Context) error {
	marks, err := fs.Glob(os.DirFS(s.dir), replaced+"*/"+containedFile)
	if err != nil {
		return err
	}
	for _, name := range marks {
		mark := filepath.Join(s.dir, name)
		text, err := os.ReadFile(mark)
		if err != nil {
			return err
		}
		var p replica.Position
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("%s: %w", mark, err)
		}
		aside := filepath.Dir(mark)
		if err := s.adopt(ctx, filepath.Join(aside, Database), p); err != nil {
			return fmt.Errorf("make the replaced database in %s the copy: %w", aside, err)
		}
		if err := os.RemoveAll(aside); err != nil {
			return err
		}
		s.logger.Info("the replica contains all data of this node; following from there", "transaction", p.TXID.String())
	}
	return nil
}

// adopt makes the database at old, which has exactly the position p, the copy.
func (s *Standby) adopt(ctx context.Context, old string, p replica.Position) error {
	if _, err := os.Stat(old); err == nil {
		if err := sqlite.Checkpoint(ctx, old); err != nil {
			return err
		}
		folder := filepath.Dir(s.path)
		if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700)); err != nil {
			return err
		}
		if err := durable.Rename(old, s.path); err != nil {
			return err
		}
	}
	if _, err := os.Stat(s.path); errors.Is(err, fs.ErrNotExist) || s.HasCopy() {
		return nil
	}
	return p.Adopt(s.path)
}

// Replaced is a directory with data of an earlier primary that the replica lacks, at least in
// part.
type Replaced struct {
	Dir     string    `json:"-"`
	Changes int64     `json:"changes"` // transactions that only this directory has, or [replica.UnknownChanges]
	At      time.Time `json:"at"`      // when it was set aside
}

// String says what the directory contains, and what to do.
func (l *Replaced) String() string {
	n := fmt.Sprintf("%d changes exist", l.Changes)
	switch l.Changes {
	case 1:
		n = "1 change exists"
	case replica.UnknownChanges:
		n = "changes may exist"
	}
	return fmt.Sprintf("%s only in %s: publish them with service salvage --from %[2]s, then remove it", n, l.Dir)
}

// ListReplaced returns the directories below a data directory that contain data of an earlier
// primary, see [Standby.SetAside], oldest first.
func ListReplaced(dir string) ([]Replaced, error) {
	marks, err := fs.Glob(os.DirFS(dir), replaced+"*/"+leftFile)
	if err != nil {
		return nil, err
	}
	var all []Replaced
	for _, name := range marks {
		mark := filepath.Join(dir, name)
		l := Replaced{Dir: filepath.Dir(mark), Changes: replica.UnknownChanges}
		text, err := os.ReadFile(mark)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		_ = json.Unmarshal(text, &l) // the directory matters, whatever the file says
		all = append(all, l)
	}
	return all, nil
}

// Promote brings the copy up to date with the replica, makes it the database of the data
// directory, and unlocks the directory. Follow must have returned, and no other process may
// still write to the replica. The error wraps [replica.ErrEmpty] if there is neither a copy nor
// anything in the replica; nothing changes in that case. The directory must not contain a
// database.
func (s *Standby) Promote(ctx context.Context) (y Restored, err error) {
	y.From = s.cfg.Target()
	origin, state, err := s.follower.CatchUp(ctx)
	if err != nil {
		return y, err
	}
	y.State = state
	path := filepath.Join(s.r.Dir(), Database)
	if err := os.Rename(s.path, path); err != nil {
		return y, err
	}
	if err := markRestored(ctx, path, origin, newMark(y.From, y.State), markOptions{takeover: true}); err != nil {
		return y, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return y, err
	}
	y.Bytes = info.Size()
	if _, err := s.r.Commit(); err != nil {
		return y, err
	}
	return y, errors.Join(os.RemoveAll(filepath.Join(s.dir, StandbyFolder)), s.r.Close())
}
