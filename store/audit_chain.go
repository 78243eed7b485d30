package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"service/store/sqlite"
	"service/webhook"
)

const (
	// auditChunk is the number of entries of the audit log that are read at a time.
	auditChunk = 1000
	// auditLogInterval is the time between two log lines with the newest hash.
	auditLogInterval = time.Hour

	selectAuditAfter  = "SELECT " + auditColumns + " FROM audit a WHERE a.num > ? ORDER BY a.num LIMIT ?"
	selectAuditAnchor = "SELECT num, hash FROM audit_anchor"
	newestAudit       = "SELECT " + auditColumns + ", " + previousAudit + " FROM (SELECT num FROM audit ORDER BY num DESC LIMIT "
	newestAuditEnd    = ") i CROSS JOIN audit a ON a.num = i.num ORDER BY a.num"
	selectNewestAudit = newestAudit + "1" + newestAuditEnd
	selectAuditSuffix = newestAudit + "1000" + newestAuditEnd // for a quick check
)

// errAuditRemoved reports that retention has removed entries that were about to be read.
var errAuditRemoved = webhook.NewError(webhook.CodeConflict,
	"Retention removed entries of the audit log while they were read. Run this again.")

// auditWalk is a position in the audit log, between two entries that are read one after the
// other. The zero value is the beginning.
type auditWalk struct {
	begun    bool
	last     int64
	previous webhook.AuditHash
}

// Each calls fn with every entry of the audit log, oldest first, including those that are added
// in the meantime.
func (s Audit) Each(ctx context.Context, fn func(*webhook.AuditEntry) error) error {
	var w auditWalk
	for {
		var entries []webhook.AuditEntry
		err := s.view(ctx, func(v *view) (err error) {
			entries, err = w.read(v)
			return err
		})
		if err != nil || len(entries) == 0 {
			return err
		}
		for i := range entries {
			if err := fn(&entries[i]); err != nil {
				return err
			}
		}
	}
}

// read returns the next entries, none at the end.
func (w *auditWalk) read(v interface {
	Scan(query string, args []any, dest ...any) error
	Each(query string, args []any, row func(scan func(...any) error) error) error
}) (entries []webhook.AuditEntry, err error) {
	var removed int64
	var anchor []byte
	if err := sqlite.NoRows(v.Scan(selectAuditAnchor, nil, &removed, &anchor), nil); err != nil {
		return nil, err
	}
	switch {
	case !w.begun:
		w.begun, w.last = true, removed
		copy(w.previous[:], anchor)
	case removed > w.last:
		return nil, errAuditRemoved
	}
	// The first entry is read whatever its number is, so that a wrong one is found.
	after := w.last
	if after == removed {
		after = math.MinInt64
	}
	err = v.Each(selectAuditAfter, []any{after, auditChunk}, func(scan func(...any) error) error {
		e, err := scanAudit(scan, false)
		e.Previous = w.previous
		w.last, w.previous = e.Num, e.Hash
		entries = append(entries, e)
		return err
	})
	switch {
	case err != nil || after != math.MinInt64:
	case len(entries) > 0 && entries[0].Num != removed+1:
		err = entries[0].Fault(fmt.Sprintf("the last entry that was removed is entry %d", removed))
	case len(entries) == 0 && removed != 0:
		err = &webhook.AuditFault{Num: removed + 1, Missing: true, Reason: "retention never removes the newest entry"}
	}
	return entries, err
}

// Newest returns the newest entry of the audit log, and false if it is empty.
func (s Audit) Newest(ctx context.Context) (e webhook.AuditEntry, ok bool, err error) {
	err = s.db.Each(ctx, selectNewestAudit, nil, func(scan func(...any) error) (err error) {
		e, err = scanAudit(scan, true)
		ok = true
		return err
	})
	return e, ok, err
}

// continuedSetting is the setting of a database that was restored since it was last open: what it
// was restored from.
const continuedSetting = "audit_continued"

// MarkBackup marks the database of a restored backup like [Restoration.FromReplica]: deliveries are
// paused until they are released, and the next [Open] records that the audit log continues from
// the entry that it ends with, see [webhook.AuditGap]. from describes the backup, and state is its
// time. No process may have the database open.
func (r *Restoration) MarkBackup(ctx context.Context, from string, state time.Time) error {
	db, err := sqlite.OpenWritable(filepath.Join(r.Dir(), databaseFile))
	if err != nil {
		return err
	}
	return errors.Join(setMarks(ctx, newMark(from, state), true, r.pause(), db.ExecContext), db.Close())
}

// continueAudit records, once after a restore, from which entry the log continues.
func (s *core) continueAudit() error {
	return s.writer.do(func(t *tx) error {
		var gap webhook.AuditGap
		var from, hash []byte
		err := t.Scan("SELECT value FROM settings WHERE name = '"+continuedSetting+"'", nil, &from)
		if err != nil {
			return sqlite.NoRows(err, nil)
		}
		if err := sqlite.NoRows(t.Scan(selectLastAudit, nil, &gap.Num, new(int64), &hash), nil); err != nil {
			return err
		}
		copy(gap.Hash[:], hash)
		gap.From = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return -1
			}
			return r
		}, string(from))
		return errors.Join(t.Exec("DELETE FROM settings WHERE name = '"+continuedSetting+"'"),
			t.audit(webhook.AuditEntry{Admin: webhook.Service, Action: webhook.ActionAuditContinue, Detail: gap.String()}))
	})
}

// logAudit logs the newest hash of the audit log, for a later [webhook.AuditVerifier].Expect,
// and returns when to log it again.
func (s *core) logAudit(ctx context.Context) (next time.Time, err error) {
	e, ok, err := Audit{s}.Newest(ctx)
	if err != nil {
		return next, err
	}
	if ok {
		s.logger.Info("newest hash of the audit log", "entry", e.Num, "at", webhook.FormatTime(e.At), "hash", e.Hash.String())
	}
	return time.Now().Add(auditLogInterval), nil
}
