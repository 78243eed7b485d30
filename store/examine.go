package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"service/store/keyring"
	"service/store/replica"
	"service/store/sqlite"
	"service/webhook"
)

// Level says how well a check went.
type Level string

// The levels, from good to bad.
const (
	LevelOK   Level = "OK"
	LevelWarn Level = "WARN" // it works, and should be looked after
	LevelFail Level = "FAIL" // it does not work, or will not for long
)

// Finding is what one check of the service came to, in words for whoever runs
// it. It holds no secret.
type Finding struct {
	Check  string `json:"check"` // what was looked at
	Level  Level  `json:"level"`
	Detail string `json:"detail"`           // what was seen
	Advice string `json:"advice,omitempty"` // what to do; "" when all is well
}

// examination gathers findings.
type examination []Finding

func (x *examination) ok(check, format string, args ...any) {
	*x = append(*x, Finding{check, LevelOK, fmt.Sprintf(format, args...), ""})
}

func (x *examination) add(level Level, check, advice, format string, args ...any) {
	*x = append(*x, Finding{check, level, fmt.Sprintf(format, args...), advice})
}

// The names of the checks of the data.
const (
	checkDirectory  = "data directory"
	checkFileSystem = "file system"
	checkDisk       = "disk"
	checkForecast   = "forecast"
	checkSQLite     = "SQLite"
	checkSchema     = "schema"
	checkDatabase   = "database"
	checkKey        = "secret key"
	checkClockSaved = "clock of the data"
	checkAdmins     = "admins"
	checkReplicated = "replica"
)

const adviceRestore = "Stop the service and restore the data directory from a copy."

const adviceMissing = "Do as the error says: service serve does not start before."

// Examine looks at the data that this process has open. The database is read
// through for at most the given time, which must be a few seconds at the most,
// since the log cannot be moved into it meanwhile; 0 leaves that out.
func (s *Store) Examine(ctx context.Context, reading time.Duration) []Finding {
	var x examination
	x.files(s.dir, s.keys.File())
	x.disk(s.dir, s.disk.least, func(dest ...any) error { return s.db.Scan(ctx, selectUnused, nil, dest...) })
	if f, err := s.Forecast(ctx); err == nil && s.retention.All > 0 {
		x.forecast(f, s.clock.now())
	}
	x.library()
	x.key(s.keys.File(), nil)
	if err := s.Check(ctx); err != nil && s.db.Damaged() == nil {
		x.add(LevelFail, checkDatabase, "Make room on the disk, or see to what its error says; the service goes on by itself then.", "the store cannot be written: %v", err)
	}
	switch found := s.db.Damaged(); {
	case found != nil:
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", found)
	case reading > 0:
		x.quickCheck(ctx, s.db.Readers(), reading)
	}
	var version int
	if err := s.db.Scan(ctx, "SELECT user_version FROM pragma_user_version", nil, &version); err != nil {
		x.add(LevelFail, checkSchema, "See the log of the service.", "its version cannot be read: %v", err)
	} else {
		x.schema(version)
	}
	if any, err := s.Admins().Exist(ctx); err == nil {
		x.admins(any)
	}
	status := s.Replica()
	if status.State != ReplicaOff {
		x.content(status.Verified, status.VerifyInterval, time.Now())
	}
	x.replica(status)
	return x
}

// Examine looks at a data directory that no process has open, and changes
// nothing in it. The database is read through for at most the given time. The
// one error is that another process has it, which wraps [ErrLocked].
func Examine(ctx context.Context, cfg Config, reading time.Duration) ([]Finding, error) {
	var x, reached examination
	asking, cancel := context.WithTimeout(ctx, bucketWait)
	done := make(chan struct{})
	go func() {
		defer close(done)
		reached.reach(asking, cfg.Replica)
	}()
	err := x.directory(ctx, cfg, reading)
	if err != nil {
		cancel()
	}
	<-done
	cancel()
	if err != nil {
		return nil, err
	}
	return append(x, reached...), nil
}

// bucketWait is how long an examination waits for the bucket.
const bucketWait = 5 * time.Second

// directory looks at a data directory that no process has open.
func (x *examination) directory(ctx context.Context, cfg Config, reading time.Duration) error {
	path := filepath.Join(cfg.Dir, databaseFile)
	if info, err := os.Stat(cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		x.add(LevelWarn, checkDirectory, "service serve makes it when it starts for the first time; --data names another.", "%s is not there", cfg.Dir)
		x.library()
		return nil
	} else if err == nil && !info.IsDir() {
		x.add(LevelFail, checkDirectory, "Name another by --data.", "%s is not a directory", cfg.Dir)
		return nil
	}
	// The file of the lock is not made: it would be this user's, who may not be
	// the service's.
	lock, err := sqlite.LockDirReadOnly(cfg.Dir)
	if errors.Is(err, ErrLocked) {
		return err
	} else if err != nil {
		x.add(LevelFail, checkDirectory, "Call this as the user that the service runs as, or as root.", "%v", err)
		return nil
	}
	defer lock.Close()
	file, err := keyring.Locate(cfg.Dir, cfg.SecretKeyFile)
	if err != nil {
		x.add(LevelFail, checkKey, "Name another file by --secret-key-file, or none.", "%v", err)
		file = &keyring.File{Path: filepath.Join(cfg.Dir, keyring.FileName)}
	}
	x.files(cfg.Dir, file)
	x.library()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		x.disk(cfg.Dir, cfg.MinFreeDisk, nil)
		x.add(LevelWarn, checkDatabase, "service serve makes it when it starts for the first time.", "%s is not there", path)
		return nil
	}
	if err := checkFiles(cfg.Dir); err != nil {
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", err)
		return nil
	}
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		x.add(LevelFail, checkDatabase, "", "%v", err)
		return nil
	}
	defer db.Close()
	x.disk(cfg.Dir, cfg.MinFreeDisk, func(dest ...any) error { return db.QueryRowContext(ctx, selectUnused).Scan(dest...) })
	if !x.quickCheck(ctx, db, reading) {
		return nil
	}
	if err := checkCommits(ctx, path, db); err != nil {
		x.add(LevelFail, checkDatabase, adviceMissing, "%v", err)
	}
	x.database(ctx, db, path, file, cfg)
	return nil
}

// database looks at what is stored in the database, whose pages are in order.
func (x *examination) database(ctx context.Context, db *sql.DB, path string, file *keyring.File, cfg Config) {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		x.add(LevelFail, checkSchema, adviceRestore, "its version cannot be read: %v", err)
		return
	}
	if !x.schema(version) || version == 0 {
		return
	}
	scan := func(query string, args []any, dest ...any) error {
		return db.QueryRowContext(ctx, query, args...).Scan(dest...)
	}
	if u, err := measureUsage(scan, path, time.Now(), cfg.Retention); err == nil && cfg.Retention.All > 0 {
		x.forecast(forecast(u, diskOf(cfg.Dir, cfg.MinFreeDisk, scan), cfg.Retention), u.At)
	}
	setting := func(name string) (value []byte) {
		err := db.QueryRowContext(ctx, "SELECT value FROM settings WHERE name = ?", name).Scan(&value)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			x.add(LevelFail, checkDatabase, adviceRestore, "a setting of the service's own cannot be read: %v", err)
		}
		return value
	}
	x.key(file, setting(keyCheck))
	if saved, err := strconv.ParseInt(string(setting("clock")), 10, 64); err == nil {
		x.clock(time.UnixMilli(saved), time.Now())
	}
	if cfg.Replica != nil {
		if y := parseVerification(setting(verifiedSetting), cfg.Replica.Target()); !y.Time.IsZero() || y.Failing {
			x.content(y, cfg.VerifyReplica, time.Now())
		}
	}
	var admins bool
	if err := db.QueryRowContext(ctx, selectAnyAdmin).Scan(&admins); err == nil { // an older schema has none
		x.admins(admins)
	}
}

// files looks at the modes and the owners of the data directory and of what is
// in it, and at the file system that it is on.
func (x *examination) files(dir string, key *keyring.File) {
	info, err := os.Stat(dir)
	if err != nil {
		x.add(LevelFail, checkDirectory, "Name another by --data, or let the service's user read it.", "%v", err)
		return
	}
	if !info.IsDir() {
		x.add(LevelFail, checkDirectory, "Name another by --data.", "%s is not a directory", dir)
		return
	}
	wrong := false
	note := func(level Level, advice, format string, args ...any) {
		x.add(level, checkDirectory, advice, format, args...)
		wrong = true
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		note(LevelWarn, "chmod 700 "+dir, "%s can be entered by other users than its owner (mode %04o)", dir, mode)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if known && os.Geteuid() != 0 && int(owner.Uid) != os.Geteuid() {
		note(LevelWarn, "Run the service, and its commands, as the user who owns it.", "%s belongs to user %d, and this is user %d", dir, owner.Uid, os.Geteuid())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		note(LevelFail, "Let the service's user read it.", "%v", err)
	}
	for _, e := range entries {
		at, err := e.Info()
		if err != nil || !at.Mode().IsRegular() {
			continue // it has just gone, or holds nothing
		}
		path := filepath.Join(dir, e.Name())
		if mode := at.Mode().Perm(); mode&0o077 != 0 && path != key.Path && isPrivate(e.Name()) {
			note(LevelWarn, "chmod 600 "+path, "%s can be read or changed by other users than its owner (mode %04o)", path, mode)
		}
		if of, ok := at.Sys().(*syscall.Stat_t); ok && known && of.Uid != owner.Uid {
			note(LevelFail, fmt.Sprintf("chown %d %s", owner.Uid, path), "%s belongs to user %d, and the directory to user %d", path, of.Uid, owner.Uid)
		}
	}
	if !wrong {
		x.ok(checkDirectory, "%s is its owner's alone", dir)
	}
	switch name, kind := fileSystem(dir); kind {
	case fsNetwork:
		x.add(LevelWarn, checkFileSystem, "Put the data directory on a disk of this machine: over a network SQLite's locks and fsync are not to be relied on, and the database can be damaged.", "the data directory is on a network file system (%s)", name)
	case fsMemory:
		x.add(LevelWarn, checkFileSystem, "Put the data directory on a disk: what is in memory ends with the machine.", "the data directory is in memory (%s)", name)
	case fsLayer:
		x.add(LevelWarn, checkFileSystem, "Mount a volume for the data directory: what is in a layer of a container goes with the container.", "the data directory is in a layer of a container (%s)", name)
	default:
		x.ok(checkFileSystem, "%s", FileSystem(dir))
	}
}

// isPrivate says whether a file of the data directory holds what is nobody
// else's to read.
func isPrivate(name string) bool {
	for _, part := range []string{databaseFile, ".key", ".secret"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// FileSystem names the file system of a directory. Of ext4 it says whether it has a
// journal, where the system tells.
func FileSystem(dir string) string {
	name, _ := fileSystem(dir)
	if name == "ext4" {
		name += journal(dir)
	}
	return name
}

// The kinds of file systems, as far as they matter to a database.
type fsKind int

const (
	fsDisk fsKind = iota
	fsNetwork
	fsMemory
	fsLayer // of a container's image
)

// disk looks at the room that is left; unused reads how many bytes of the
// database's file are free, nil when there is none.
func (x *examination) disk(dir string, least int64, unused func(dest ...any) error) {
	room, size, err := free(dir)
	if err != nil {
		x.add(LevelWarn, checkDisk, "", "the disk does not say how much room there is: %v", err)
		return
	}
	d := disk{dir: dir, least: least}
	_, need, low := d.look(func(_ string, _ []any, dest ...any) error {
		if unused == nil {
			return sql.ErrNoRows
		}
		return unused(dest...)
	})
	said := fmt.Sprintf("%d MiB of %d MiB are free", room>>20, size>>20)
	switch {
	case low:
		x.add(LevelFail, checkDisk, "Make room, or shorten --retention: no event is accepted meanwhile.", "%s, and %d MiB must be", said, need>>20)
	case need > 0 && room < 4*need:
		x.add(LevelWarn, checkDisk, "Make room, or shorten --retention, before events are refused.", "%s, and below %d MiB no event is accepted", said, need>>20)
	default:
		x.ok(checkDisk, "%s", said)
	}
}

// leastSQLite is the first version in which one connection's checkpoint cannot
// damage what another commits.
var leastSQLite = [3]int{3, 51, 3}

// library looks at the version of SQLite.
func (x *examination) library() {
	v, err := SQLiteVersion()
	if err != nil {
		x.add(LevelFail, checkSQLite, "Install another build of the service.", "it does not say its version: %v", err)
		return
	}
	if !newEnough(v) {
		x.add(LevelFail, checkSQLite, "Install a newer build of the service: an older SQLite can damage the database.", "%s is older than %d.%d.%d", v, leastSQLite[0], leastSQLite[1], leastSQLite[2])
		return
	}
	x.ok(checkSQLite, "%s (%s)", v, DriverName)
}

func newEnough(version string) bool {
	var v [3]int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return false
	}
	for i, n := range v {
		if n != leastSQLite[i] {
			return n > leastSQLite[i]
		}
	}
	return true
}

// quickCheck reads the database through and says whether it is whole, as far as
// it came in the given time.
func (x *examination) quickCheck(ctx context.Context, db *sql.DB, reading time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, reading)
	defer cancel()
	var found string
	err := db.QueryRowContext(bounded, "PRAGMA quick_check(1)").Scan(&found)
	switch {
	case bounded.Err() != nil:
		x.ok(checkDatabase, "nothing is wrong with what could be read in %v, which was not all of it", reading)
	case err != nil && sqlite.IsCorrupt(err):
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", err)
		return false
	case err != nil:
		x.add(LevelFail, checkDatabase, "Call this as the user that the service runs as, or as root.", "it cannot be read: %v", err)
		return false
	case found != "ok":
		x.add(LevelFail, checkDatabase, adviceRestore, "%s", found)
		return false
	default:
		x.ok(checkDatabase, "it is whole")
	}
	return true
}

// schema looks at the version of the schema, and says whether this binary can
// use it.
func (x *examination) schema(version int) bool {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	switch known := len(files); {
	case err != nil:
		x.add(LevelFail, checkSchema, "", "%v", err)
		return false
	case version > known:
		x.add(LevelFail, checkSchema, "Use a newer binary.", "the database has schema %d, and this binary knows schemas up to %d", version, known)
		return false
	case version < known:
		x.add(LevelWarn, checkSchema, "service serve brings it up to date when it starts, after a copy of the database.", "the database has schema %d, and this binary has schema %d", version, known)
	default:
		x.ok(checkSchema, "%d, the newest", version)
	}
	return true
}

// key looks at the file of the key, and whether it is that of the database;
// check is what proves it, nil when that is known.
func (x *examination) key(file *keyring.File, check []byte) {
	keys, err := file.Read()
	if errors.Is(err, fs.ErrNotExist) {
		err = file.Missing(true)
	}
	if err != nil {
		x.add(LevelFail, checkKey, "Put the key of this data directory back, for its owner alone to read.", "%v", err)
		return
	}
	if check != nil {
		if ring, err := keyring.New(file, keys); err != nil || !ring.Fits(check) {
			x.add(LevelFail, checkKey, "Put the key of this data directory back.", "%s does not hold the key that the secrets in this database are encrypted with", file.Path)
			return
		}
	}
	switch {
	case file.Exposed():
		x.add(LevelWarn, checkKey, "chmod 600 "+file.Path, "%s can be read by every user of this machine", file.Path)
	case len(keys) > 1:
		x.add(LevelWarn, checkKey, "Call service key rotate, which finishes it, and remove all lines but the first from a file that the service cannot write.", "%s holds %d keys: a rotation is not finished", file.Path, len(keys))
	default:
		x.ok(checkKey, "%s", file.Path)
	}
}

// clock compares the clock with the time that was last written down.
func (x *examination) clock(saved, now time.Time) {
	if behind := saved.Sub(now); behind > time.Minute {
		x.add(LevelWarn, checkClockSaved, "Set the clock right before the service starts.", "the clock is %v behind what it was when the service last ran", behind.Round(time.Second))
		return
	}
	x.ok(checkClockSaved, "it has gone on since the service last ran")
}

func (x *examination) admins(any bool) {
	if !any {
		x.add(LevelWarn, checkAdmins, "service admin setup-link prints a link that makes the first; service admin create makes one here.", "nobody can sign in to the admin UI")
		return
	}
	x.ok(checkAdmins, "there is one at least")
}

// replicaBehind is how far behind a replica that follows may be, at rest or
// under load.
const replicaBehind = time.Minute

const adviceNoReplica = "Name a place for a copy by --litestream, so that a lost disk does not lose everything; or make backups: service backup create."

// replica looks at how the copy elsewhere does, as the running service knows.
func (x *examination) replica(y ReplicaStatus) {
	switch {
	case y.State == ReplicaOff:
		x.add(LevelWarn, checkReplicated, adviceNoReplica, "there is none")
	case y.State == ReplicaFailing:
		x.add(LevelFail, checkReplicated, "See to what its error says; it is tried again by itself.", "%s is %v behind: %s", y.Target, y.Lag.Round(time.Second), y.Err)
	case y.State == ReplicaOpening || y.Lag > replicaBehind:
		x.add(LevelWarn, checkReplicated, "See that the way to it is wide enough; it catches up by itself.", "%s is %v behind", y.Target, y.Lag.Round(time.Second))
	case y.TermComplete:
		x.ok(checkReplicated, "%s follows, last at %s, in term %d; Litestream's own command can restore it from %s there", y.Target, webhook.FormatTime(y.LastSuccess), y.Term, y.TermPath)
	default:
		x.ok(checkReplicated, "%s follows, last at %s, in term %d; only service restore can restore it until the term has a copy of what it continues", y.Target, webhook.FormatTime(y.LastSuccess), y.Term)
	}
}

// reach asks the copy elsewhere for its newest state, when no service does.
func (x *examination) reach(ctx context.Context, cfg *replica.Config) {
	if cfg == nil {
		x.add(LevelWarn, checkReplicated, adviceNoReplica, "there is none")
		return
	}
	newest, err := replica.Newest(ctx, cfg)
	switch {
	case errors.Is(err, replica.ErrEmpty):
		x.add(LevelWarn, checkReplicated, "service serve fills it.", "%s can be reached, and is empty", cfg.Target())
	case err != nil:
		x.add(LevelFail, checkReplicated, "See to what its error says: service serve starts without it, and tries again.", "%s cannot be reached: %v", cfg.Target(), err)
	default:
		x.ok(checkReplicated, "%s has the state of %s", cfg.Target(), webhook.FormatTime(newest))
	}
}
