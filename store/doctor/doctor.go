// Package doctor checks the data of the service: the directory, the database and its replica, for an
// open store and for a directory that no process has open. It also forecasts the size of the database.
package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"service/internal/durable"
	"service/store/clock"
	"service/store/commits"
	"service/store/datadir"
	"service/store/keyring"
	"service/store/people"
	"service/store/record"
	"service/store/replica"
	"service/store/schema"
	"service/store/sqlite"
	"service/webhook"
)

// Level is the severity of a finding.
type Level string

// The levels, in ascending order of severity.
const (
	LevelOK   Level = "OK"
	LevelWarn Level = "WARN" // works, but needs attention
	LevelFail Level = "FAIL" // does not work, or will soon stop working
)

// Finding is the result of one check, in words for the operator. It contains no secret.
type Finding struct {
	Check  string `json:"check"` // what was checked
	Level  Level  `json:"level"`
	Detail string `json:"detail"`           // what was found
	Advice string `json:"advice,omitempty"` // what to do; "" if nothing
}

// examination collects findings.
type examination []Finding

// ok adds a finding without advice.
func (x *examination) ok(check, format string, args ...any) {
	*x = append(*x, Finding{check, LevelOK, fmt.Sprintf(format, args...), ""})
}

// add adds a finding with a level and advice.
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
	checkClockSaved = "clock since last run"
	checkCounted    = "age of records"
	checkAdmins     = "admins"
	checkAudit      = "audit log"
	checkReplicated = "replica"
	checkEventTypes = "event types over the API"
)

const adviceRestore = "Stop the service and restore the data directory from its replica or a backup."

const adviceMissing = "Follow the error message: service serve does not start until this is resolved."

// Running contains the parts of an open store that are examined.
type Running struct {
	Config
	DB       *sqlite.DB
	File     *keyring.File
	Clock    *clock.Clock
	NotReady error               // why the store cannot be written, nil if it can
	Unused   []record.UnusedType // event types of the database that are not in use
	Status   *replica.Status     // nil without a replica
}

// Examine checks the data that this process has open. It reads the database for at most the given
// time, which should be a few seconds, since no checkpoint can run during that; 0 skips that check.
func (o *Running) Examine(ctx context.Context, reading time.Duration) []Finding {
	var x examination
	scan, each := o.DB.Reads(ctx)
	x.files(o.Dir, o.File)
	x.library()
	x.disk(o.Dir, o.MinFreeDisk, scan)
	if o.NotReady != nil && o.DB.Damaged() == nil {
		x.add(LevelFail, checkDatabase, "Free disk space, or resolve the error; the service then resumes by itself.",
			"the service is not ready: %v", o.NotReady)
	}
	switch found := o.DB.Damaged(); {
	case found != nil:
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", found)
	case reading > 0:
		x.quickCheck(ctx, o.DB.Readers(), reading)
	}
	x.database(scan, each, o.File, &o.Config, o.Clock)
	x.eventTypes(o.Unused)
	if o.Status != nil {
		x.content(o.Status.Verified, o.Status.VerifyInterval, time.Now())
	}
	x.replica(o.Status)
	return x
}

// Config says where the data is, and contains settings that the database lacks.
type Config struct {
	Dir           string
	SecretKeyFile string // "" for secret.key in Dir
	MinFreeDisk   int64  // as in store.Config
	Retention     webhook.Retention
	Replica       *replica.Config  // nil for none
	VerifyReplica time.Duration    // between two comparisons, 0 for none
	Catalog       *webhook.Catalog // the event types of the binary and of files; nil if they do not matter
}

// Examine checks a data directory that no process has open, and changes nothing in it. It reads
// the database for at most the given time. Its only error wraps [sqlite.ErrLocked]: another
// process has the directory open.
func Examine(ctx context.Context, cfg Config, reading time.Duration) ([]Finding, error) {
	var x, bucket examination
	bucketCtx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	var asking sync.WaitGroup
	asking.Go(func() { bucket.bucket(bucketCtx, &cfg) })
	err := x.directory(ctx, cfg, reading)
	if err != nil {
		cancel()
	}
	asking.Wait()
	if err != nil {
		return nil, err
	}
	return append(x, bucket...), nil
}

// bucketTimeout is how long an examination waits for the bucket of the replica.
const bucketTimeout = 5 * time.Second

// directory checks a data directory that no process has open.
func (x *examination) directory(ctx context.Context, cfg Config, reading time.Duration) error {
	path := filepath.Join(cfg.Dir, datadir.Database)
	if info, err := os.Stat(cfg.Dir); errors.Is(err, fs.ErrNotExist) {
		x.add(LevelWarn, checkDirectory, "service serve creates it on its first start; use --data for another directory.",
			"%s does not exist", cfg.Dir)
		x.library()
		return nil
	} else if err == nil && !info.IsDir() {
		x.add(LevelFail, checkDirectory, "Choose another directory with --data.", "%s is not a directory", cfg.Dir)
		return nil
	}
	// This does not create the lock file, since this user may not be the service's.
	lock, err := sqlite.LockDirReadOnly(cfg.Dir)
	if errors.Is(err, sqlite.ErrLocked) {
		return err
	} else if err != nil {
		x.add(LevelFail, checkDirectory, Remedy(err, ""), "%v", err)
		return nil
	}
	defer lock.Close()
	file, err := keyring.Locate(cfg.Dir, cfg.SecretKeyFile)
	if err != nil {
		x.add(LevelFail, checkKey, "Choose another file with --secret-key-file, or omit the flag.", "%v", err)
		file = &keyring.File{Path: filepath.Join(cfg.Dir, keyring.FileName)}
	}
	x.files(cfg.Dir, file)
	x.library()
	if readOnly(cfg.Dir) {
		x.add(LevelFail, checkDirectory, Remedy(syscall.EROFS, ""), "%s is on a read-only file system; the database was not read", cfg.Dir)
		return nil
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		x.disk(cfg.Dir, cfg.MinFreeDisk, func(string, []any, ...any) error { return sql.ErrNoRows })
		if err := commits.CheckOrphaned(filepath.Join(cfg.Dir, datadir.Database)); err != nil {
			x.add(LevelFail, checkDatabase, adviceMissing, "%v", err)
			return nil
		}
		advice := "service serve creates it on its first start."
		if cfg.Replica != nil {
			advice = "service serve restores it from the replica, or creates it if the replica is empty."
		}
		if info, err := os.Stat(filepath.Join(cfg.Dir, datadir.StandbyFolder, datadir.Database)); err == nil {
			x.add(LevelWarn, checkDatabase, "Start it with --lease: it follows the primary, or takes over if there is none.",
				"this directory has a standby's copy, last changed at %s", webhook.FormatTime(info.ModTime()))
			return nil
		}
		x.add(LevelWarn, checkDatabase, advice, "%s does not exist", path)
		return nil
	}
	if err := datadir.CheckFiles(cfg.Dir); err != nil {
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", err)
		return nil
	}
	db, err := sqlite.OpenReadOnly(path)
	if err != nil {
		x.add(LevelFail, checkDatabase, "", "%v", err)
		return nil
	}
	defer db.Close()
	scan, each := sqlite.ReadsOf(ctx, db)
	x.disk(cfg.Dir, cfg.MinFreeDisk, scan)
	if !x.quickCheck(ctx, db, reading) {
		return nil
	}
	if err := commits.Check(ctx, path, db); err != nil {
		x.add(LevelFail, checkDatabase, adviceMissing, "%v", err)
	}
	x.database(scan, each, file, &cfg, nil)
	x.saved(ctx, scan, each, &cfg)
	return nil
}

// saved checks the records of the last run about the replica and the event types.
func (x *examination) saved(ctx context.Context, scan sqlite.ScanRow, each sqlite.EachRow, cfg *Config) {
	if cfg.Replica != nil {
		text, _ := schema.Get(scan, VerifiedSetting)
		if y := ParseVerification(text, cfg.Replica.Target()); !y.Time.IsZero() || y.Failing {
			x.content(y, cfg.VerifyReplica, time.Now())
		}
	}
	if cfg.Catalog != nil {
		if unused, err := record.ReadEventTypes(ctx, each, cfg.Catalog); err == nil { // otherwise quickCheck reports it
			x.eventTypes(unused)
		}
	}
}

// Remedy returns the advice about an error of a file: about the permission, the space or a
// read-only file system, else otherwise.
func Remedy(err error, otherwise string) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "Run this command as the service's user or as root."
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), strings.Contains(err.Error(), syscall.ENOSPC.Error()):
		// SQLite's error contains only its text.
		return "Free space on the data directory's disk, or enlarge it."
	case errors.Is(err, syscall.EROFS):
		return "Mount it writable. Linux makes a file system read-only after errors of the disk: check dmesg first."
	}
	return otherwise
}

// readOnly reports whether a directory is on a read-only file system.
func readOnly(dir string) bool {
	const writable = 2 // W_OK
	return errors.Is(syscall.Access(dir, writable), syscall.EROFS)
}

// database checks the content of a database, with scan and each to read it. running is the clock of
// the store that has the database open, nil if none has. cfg contains the settings that are not in
// the database.
func (x *examination) database(scan sqlite.ScanRow, each sqlite.EachRow, file *keyring.File, cfg *Config, running *clock.Clock) {
	var version int
	if err := scan("SELECT user_version FROM pragma_user_version", nil, &version); err != nil {
		advice := adviceRestore
		if running != nil {
			advice = "See the service's log."
		}
		x.add(LevelFail, checkSchema, advice, "cannot read its version: %v", err)
		return
	}
	if !x.schema(version) || version == 0 {
		return
	}
	now := time.Now()
	if running != nil {
		now = running.Now()
	}
	if u, err := MeasureUsage(scan, filepath.Join(cfg.Dir, datadir.Database), now, cfg.Retention); err == nil && cfg.Retention.All > 0 {
		disk, _ := DiskOf(cfg.Dir, cfg.MinFreeDisk, scan)
		x.forecast(Predict(u, disk, cfg.Retention), now)
	}
	check, err := schema.Get(scan, keyring.CheckPlace)
	if err != nil {
		x.add(LevelFail, checkDatabase, adviceRestore, "cannot read a setting: %v", err)
	}
	x.key(file, check)
	x.clocks(scan, cfg.Retention, running, now)
	var admins bool
	if err := scan("SELECT EXISTS (SELECT 1 FROM admins)", nil, &admins); err == nil { // otherwise quickCheck reports it
		x.admins(admins)
	}
	x.audit(each)
}

// clocks checks the times of a database: those of running or, if that is nil, the saved ones.
func (x *examination) clocks(scan sqlite.ScanRow, keep webhook.Retention, running *clock.Clock, now time.Time) {
	wall, counted := now, time.Duration(0)
	if running != nil {
		counted = running.Counted()
	} else {
		saved, err := clock.ReadNumber(scan, clock.SavedClock)
		ms, err2 := clock.ReadNumber(scan, clock.CountedTime)
		if err != nil || err2 != nil || saved == 0 {
			return // quickCheck reports errors
		}
		wall, counted = time.UnixMilli(saved), time.Duration(ms)*time.Millisecond
		x.clock(wall, now)
	}
	if more, since, err := clock.Difference(scan, wall, counted, keep.All); err == nil { // otherwise quickCheck reports it
		x.counted(more, since)
	}
}

// eventTypes reports the event types of the database that are not in use.
func (x *examination) eventTypes(unused []record.UnusedType) {
	for _, u := range unused {
		x.add(LevelWarn, checkEventTypes,
			"Move the file out of event_types and restart the service to use the event type of the API, or keep the file. "+
				"If the schema cannot be used, replace it with PUT /v2/event_types/"+u.Name+".",
			"%s was created over the API and is not used: %s", u.Name, u.Reason)
	}
}

// files checks the modes and owners of the data directory and its files, and its file system.
func (x *examination) files(dir string, key *keyring.File) {
	info, err := os.Stat(dir)
	if err != nil {
		x.add(LevelFail, checkDirectory, "Choose another directory with --data, or allow the service's user to read it.", "%v", err)
		return
	}
	wrong := false
	note := func(level Level, advice, format string, args ...any) {
		x.add(level, checkDirectory, advice, format, args...)
		wrong = true
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		note(LevelWarn, "chmod 700 "+dir, "%s is accessible to other users (mode %04o)", dir, mode)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if known && os.Geteuid() != 0 && int(owner.Uid) != os.Geteuid() {
		note(LevelWarn, "Run the service and its commands as the owner of the directory.", "%s belongs to user %d, but this is user %d", dir,
			owner.Uid, os.Geteuid())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		note(LevelFail, "Allow the service's user to read it.", "%v", err)
	}
	for _, e := range entries {
		at, err := e.Info()
		if err != nil || !at.Mode().IsRegular() {
			continue // just removed, or not a regular file
		}
		path := filepath.Join(dir, e.Name())
		if mode := at.Mode().Perm(); mode&0o077 != 0 && path != key.Path && isPrivate(e.Name()) {
			note(LevelWarn, "chmod 600 "+path, "%s is readable or writable by other users (mode %04o)", path, mode)
		}
		if of, ok := at.Sys().(*syscall.Stat_t); ok && known && of.Uid != owner.Uid {
			note(LevelFail, fmt.Sprintf("chown %d %s", owner.Uid, path), "%s belongs to user %d, but the directory to user %d", path, of.Uid,
				owner.Uid)
		}
	}
	if !wrong {
		x.ok(checkDirectory, "%s is accessible only to its owner", dir)
	}
	switch name, kind := durable.FileSystem(dir); kind {
	case durable.OnNetwork:
		x.add(LevelWarn, checkFileSystem,
			"Move the data directory to a local disk: SQLite's locks and fsync are not reliable over a network, and the database could be "+
				"damaged.", "the data directory is on a network file system (%s)", name)
	case durable.InMemory:
		x.add(LevelWarn, checkFileSystem, "Move the data directory to a disk: data in memory is lost when the machine stops.",
			"the data directory is in memory (%s)", name)
	case durable.InLayer:
		x.add(LevelWarn, checkFileSystem, "Mount a volume for the data directory: a container's layer is removed with the container.",
			"the data directory is in a container's layer (%s)", name)
	default:
		x.ok(checkFileSystem, "%s", name)
	}
}

// isPrivate reports whether a file of the data directory contains secrets or data of the
// service.
func isPrivate(name string) bool {
	for _, part := range []string{datadir.Database, ".key", ".secret"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// disk checks the free space, see DiskOf.
func (x *examination) disk(dir string, minFree int64, scan sqlite.ScanRow) {
	d, err := DiskOf(dir, minFree, scan)
	if err != nil {
		x.add(LevelWarn, checkDisk, "", "cannot determine the free space: %v", err)
		return
	}
	space := fmt.Sprintf("%d MiB of %d MiB free", d.Free>>20, d.Size>>20)
	switch {
	case d.Low:
		x.add(LevelFail, checkDisk, "Free disk space or shorten --retention: events are rejected until then.", "%s, %d MiB required", space,
			d.MinFree>>20)
	case d.Free < 1<<20:
		x.add(LevelFail, checkDisk, "Free disk space or shorten --retention: writes fail until then.", "%s", space)
	case d.MinFree > 0 && d.Free < 4*d.MinFree:
		x.add(LevelWarn, checkDisk, "Free disk space or shorten --retention.", "%s; below %d MiB, events are rejected", space, d.MinFree>>20)
	default:
		x.ok(checkDisk, "%s", space)
	}
}

// minSQLite is the first version in which a checkpoint by one connection cannot corrupt the
// commits of another.
var minSQLite = [3]int{3, 51, 3}

// library checks the version of SQLite.
func (x *examination) library() {
	v, err := sqlite.Version()
	if err != nil {
		x.add(LevelFail, checkSQLite, "Install another build of the service.", "cannot read its version: %v", err)
		return
	}
	if !newEnough(v) {
		x.add(LevelFail, checkSQLite, "Install a newer build of the service: an older SQLite can damage the database.",
			"%s is older than %d.%d.%d", v, minSQLite[0], minSQLite[1], minSQLite[2])
		return
	}
	x.ok(checkSQLite, "%s (driver %s)", v, sqlite.DriverName)
}

// newEnough reports whether a version of SQLite is at least minSQLite.
func newEnough(version string) bool {
	var v [3]int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &v[0], &v[1], &v[2]); err != nil {
		return false
	}
	for i, n := range v {
		if n != minSQLite[i] {
			return n > minSQLite[i]
		}
	}
	return true
}

// quickCheck checks the integrity of the database for at most the given time, and reports
// whether it found no error.
func (x *examination) quickCheck(ctx context.Context, db *sql.DB, reading time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, reading)
	defer cancel()
	var found string
	err := db.QueryRowContext(bounded, "PRAGMA quick_check(1)").Scan(&found)
	switch {
	case bounded.Err() != nil:
		x.ok(checkDatabase, "no errors found in %v; the check is incomplete", reading)
	case err != nil && sqlite.IsCorrupt(err):
		x.add(LevelFail, checkDatabase, adviceRestore, "%v", err)
		return false
	case err != nil:
		advice := Remedy(err, "Check the kernel's log (dmesg) for disk errors.")
		if slices.ContainsFunc(*x, func(f Finding) bool { return f.Check == checkDisk && f.Level == LevelFail }) {
			advice = Remedy(syscall.ENOSPC, "") // the driver in pure Go reports every error of a file alike
		}
		x.add(LevelFail, checkDatabase, advice, "cannot read it: %v", err)
		return false
	case found != "ok":
		x.add(LevelFail, checkDatabase, adviceRestore, "%s", found)
		return false
	default:
		x.ok(checkDatabase, "intact")
	}
	return true
}

// schema checks the schema version, and reports whether this binary supports it.
func (x *examination) schema(version int) bool {
	switch err := schema.Current.Check("the database", version); {
	case version == 0: // a crash prevented the first start from creating it
		x.add(LevelWarn, checkSchema, "service serve creates it on its next start.", "the database has no tables yet")
	case err != nil:
		x.add(LevelFail, checkSchema, "Follow the error message: service serve does not start with this database.", "%v", err)
		return false
	case version < schema.Version:
		x.add(LevelWarn, checkSchema, "service serve migrates it on its next start, after a copy of the database.",
			"the database has schema %d, this binary has schema %d", version, schema.Version)
	default:
		x.ok(checkSchema, "%d, up to date", version)
	}
	return true
}

// key checks the key file, and that its key belongs to the database. check is the value that
// proves it, nil if that is already known.
func (x *examination) key(file *keyring.File, check []byte) {
	keys, err := file.Read()
	if errors.Is(err, fs.ErrNotExist) {
		err = file.Missing(true)
	}
	if err != nil {
		x.add(LevelFail, checkKey, "Restore the key file of this data directory, readable only by its owner.", "%v", err)
		return
	}
	if check != nil {
		if ring, err := keyring.New(file, keys); err != nil || !ring.Fits(check) {
			x.add(LevelFail, checkKey, "Restore the key file of this data directory.",
				"%s does not contain the key that encrypts the secrets in this database", file.Path)
			return
		}
	}
	switch {
	case file.Exposed():
		x.add(LevelWarn, checkKey, "chmod 600 "+file.Path, "%s is readable by every user of this machine", file.Path)
	case len(keys) > 1:
		x.add(LevelWarn, checkKey,
			"Run service key rotate to finish it. If the service cannot write the file, then remove all lines but the first.",
			"%s contains %d keys: a rotation is incomplete", file.Path, len(keys))
	default:
		x.ok(checkKey, "%s", file.Path)
	}
}

// clock compares the clock with the last saved time.
func (x *examination) clock(saved, now time.Time) {
	if behind := saved.Sub(now); behind > time.Minute {
		x.add(LevelWarn, checkClockSaved, "Correct the clock before you start the service.",
			"the clock is %v behind the time at which the service last ran", behind.Round(time.Second))
		return
	}
	x.ok(checkClockSaved, "not behind the last run of the service")
}

// clockDiffers is the difference between the wall clock and the counted time from which it is
// reported.
const clockDiffers = time.Hour

// counted compares the wall clock with the time that retention counts. more is how much further
// the wall clock has advanced since a time, which is zero if retention has not run yet.
func (x *examination) counted(more time.Duration, since time.Time) {
	const advice = "Check this machine's clock and its synchronization. After a downtime, a restore or a correction of the clock " +
		"this is expected, and is over after one --retention."
	switch {
	case since.IsZero():
		x.ok(checkCounted, "retention has not run yet")
	case more > clockDiffers:
		x.add(LevelWarn, checkCounted, advice, "since %s the clock has advanced %v more than the service has counted: records are kept that "+
			"much longer", webhook.FormatTime(since), more.Round(time.Minute))
	case more < -clockDiffers:
		x.add(LevelWarn, checkCounted, advice, "since %s the clock has advanced %v less than the service has counted: records are removed "+
			"earlier than their times suggest", webhook.FormatTime(since), -more.Round(time.Minute))
	default:
		x.ok(checkCounted, "measured as by the clock since %s", webhook.FormatTime(since))
	}
}

func (x *examination) admins(any bool) {
	if !any {
		x.add(LevelWarn, checkAdmins, "Create one with service admin create, or open a link from service admin setup-link.",
			"no admin can sign in to the admin UI")
		return
	}
	x.ok(checkAdmins, "at least one")
}

// audit checks the hashes of the newest entries of the audit log, and which entries are missing
// before the first.
func (x *examination) audit(each sqlite.EachRow) {
	entries, err := people.CheckNewestAudit(each)
	var fault *webhook.AuditFault
	switch {
	case errors.As(err, &fault):
		x.add(LevelFail, checkAudit, adviceAudit, "%v", fault)
	case err != nil: // quickCheck reports a damaged database
	case entries == 0 && x.auditMissing(each):
		x.add(LevelFail, checkAudit, adviceAudit, "empty, although there are admins or tokens")
	case entries == 0:
		x.ok(checkAudit, "empty")
	default:
		x.ok(checkAudit, "the newest %s match; service audit verify checks all", webhook.Count(int(entries), "entry"))
	}
}

const adviceAudit = "Someone changed the database outside of the service. Compare with a backup or an export of the audit log."

// auditMissing reports whether there are records whose creation must be in the audit log.
func (x *examination) auditMissing(each sqlite.EachRow) (missing bool) {
	err := each("SELECT EXISTS (SELECT 1 FROM admins) OR EXISTS (SELECT 1 FROM tokens)", nil,
		func(scan func(...any) error) error { return scan(&missing) })
	return err == nil && missing
}

// replicaBehind is the maximum lag of a healthy replica, idle or under load.
const replicaBehind = time.Minute

const adviceNoReplica = "Configure a replica with --litestream, so that a lost disk does not lose everything, or make backups with " +
	"service backup create."

// replica checks the status of the replica of the running service.
func (x *examination) replica(y *replica.Status) {
	switch {
	case y == nil:
		x.add(LevelWarn, checkReplicated, adviceNoReplica, "not configured")
	case y.State == replica.StateFailing && y.Cause == "":
		x.add(LevelFail, checkReplicated, "Resolve the error; the service retries automatically.", "%s is %v behind: %s", y.Target,
			y.Lag.Round(time.Second), y.Err)
	case y.State == replica.StateFailing:
		x.add(LevelFail, checkReplicated, y.Cause.Remedy()+" The service retries automatically.", "%s is %v behind (%s): %s", y.Target,
			y.Lag.Round(time.Second), y.Cause, y.Err)
	case y.State == replica.StateOpening || y.Lag > replicaBehind:
		x.add(LevelWarn, checkReplicated, "Check the bandwidth to the replica; it catches up automatically.", "%s is %v behind", y.Target,
			y.Lag.Round(time.Second))
	case y.TermComplete:
		x.ok(checkReplicated, "%s is up to date as of %s, in term %d; Litestream's own command can restore it from %s", y.Target,
			webhook.FormatTime(y.LastSuccess), y.Term, y.TermPath)
	default:
		x.ok(checkReplicated,
			"%s is up to date as of %s, in term %d; only service restore can restore it until the term has its own snapshot", y.Target,
			webhook.FormatTime(y.LastSuccess), y.Term)
	}
}

// bucket checks that the replica can be reached, for a data directory that no process has open.
func (x *examination) bucket(ctx context.Context, c *Config) {
	cfg := c.Replica
	if cfg == nil {
		x.add(LevelWarn, checkReplicated, adviceNoReplica, "not configured")
		return
	}
	newest, err := replica.Newest(ctx, cfg)
	switch {
	case errors.Is(err, replica.ErrUnreleased):
		x.add(LevelFail, checkReplicated, "Follow the error message: service serve does not write to this replica.", "%s: %v", cfg.Target(), err)
	case errors.Is(err, replica.ErrEmpty):
		x.add(LevelWarn, checkReplicated, "service serve fills it.", "%s is reachable but empty", cfg.Target())
	case err != nil:
		advice := "Until then service serve starts without the replica and retries."
		if _, err := os.Stat(filepath.Join(c.Dir, datadir.Database)); errors.Is(err, fs.ErrNotExist) {
			advice = "Without a database, service serve does not start until it can read the replica."
		}
		cause := replica.CauseOf(err)
		x.add(LevelFail, checkReplicated, cause.Remedy()+" "+advice, "%s cannot be read (%s): %v", cfg.Target(), cause, err)
	default:
		x.ok(checkReplicated, "%s is reachable; its newest state is of %s", cfg.Target(), webhook.FormatTime(newest))
	}
}
