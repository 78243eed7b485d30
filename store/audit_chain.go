package store

import (
	"context"
	"fmt"
	"math"
	"time"

	"service/webhook"
)

const (
	// auditChunk is the number of entries of the audit log that are read at a time, or hashed
	// in one transaction after an upgrade.
	auditChunk = 1000
	// auditLogInterval is the time between two log lines with the newest hash.
	auditLogInterval = time.Hour

	selectAuditAfter  = "SELECT " + auditColumns + " FROM audit a WHERE a.num > ? ORDER BY a.num LIMIT ?"
	selectAuditAnchor = "SELECT num, hash FROM audit_anchor"
	newestAudit       = "SELECT " + auditColumns + ", " + previousAudit + " FROM (SELECT num FROM audit ORDER BY num DESC LIMIT "
	newestAuditEnd    = ") i CROSS JOIN audit a ON a.num = i.num ORDER BY a.num"
	selectNewestAudit = newestAudit + "1" + newestAuditEnd
	selectAuditSuffix = newestAudit + "1000" + newestAuditEnd // for a quick check

	selectUnchained = "SELECT hash = x'' FROM audit ORDER BY num DESC LIMIT 1"
	selectChained   = "SELECT coalesce(max(num), 0) FROM audit WHERE hash <> x''"
	updateChained   = "UPDATE audit SET salt = ?2, digest = ?3, hash = ?4 WHERE num = ?1"

	// at never decreases from one num to the next. The newest entry stays, so that its num is
	// not reused.
	selectAgedAudit = "SELECT num, hash FROM (SELECT num, at, hash FROM audit WHERE num < (SELECT max(num) FROM audit) " +
		"ORDER BY num LIMIT ?2) WHERE at < ?1 ORDER BY num DESC LIMIT 1"
	anchorAudit     = "INSERT INTO audit_anchor (one, num, hash) VALUES (1, ?1, ?2) ON CONFLICT DO UPDATE SET num = ?1, hash = ?2"
	removeAgedAudit = "DELETE FROM audit WHERE num <= ?"
)

// openAudit hashes the entries of the audit log that an older version has written. It does so
// in steps; after a crash the next Open continues.
func (s *core) openAudit(ctx context.Context) error {
	var unchained bool
	if err := ignoreNoRows(s.db.Scan(ctx, selectUnchained, nil, &unchained)); err != nil || !unchained {
		return err
	}
	began, total := time.Now(), 0
	var after int64
	if err := s.db.Scan(ctx, selectChained, nil, &after); err != nil {
		return err
	}
	for {
		var n int
		next := after
		err := s.writer.do(func(t *tx) (err error) {
			n, next, err = t.chainOldAudit(after)
			return err
		})
		if err != nil {
			return err
		}
		after = next
		if total += n; n < auditChunk {
			s.logger.Info("hashed the entries of the audit log", "entries", total, "duration", time.Since(began).Round(time.Millisecond))
			return nil
		}
	}
}

// chainOldAudit hashes the first entries after a num. It returns how many, and the num of the
// last.
func (t *tx) chainOldAudit(after int64) (n int, last int64, err error) {
	var previous []byte
	if err := ignoreNoRows(t.Scan("SELECT hash FROM audit WHERE num = ?", []any{after}, &previous)); err != nil {
		return 0, after, err
	}
	var entries []webhook.AuditEntry
	err = t.Each(selectAuditAfter, []any{after, auditChunk}, func(scan func(...any) error) error {
		e, err := scanAudit(scan, false)
		entries = append(entries, e)
		return err
	})
	last = after
	for i := range entries {
		if err != nil {
			return 0, after, err
		}
		e := &entries[i]
		copy(e.Previous[:], previous)
		chainAudit(e)
		last, previous = e.Num, e.Hash[:]
		err = t.Exec(updateChained, e.Num, e.Salt, e.Digest[:], e.Hash[:])
	}
	return len(entries), last, err
}

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
	if err := ignoreNoRows(v.Scan(selectAuditAnchor, nil, &removed, &anchor)); err != nil {
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
	if err == nil && after == math.MinInt64 && len(entries) > 0 && entries[0].Num != removed+1 {
		err = entries[0].Fault(fmt.Sprintf("the last entry that was removed is entry %d", removed))
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

// audit removes entries of the audit log, oldest first, and keeps the hash of the last.
func (w *sweep) audit(edge time.Time) error {
	for {
		var removed int64
		err := w.write(func(t *tx) error {
			var num int64
			var hash []byte
			removed = 0
			if err := t.Scan(selectAgedAudit, []any{edge.UnixMilli(), w.step}, &num, &hash); err != nil {
				return ignoreNoRows(err)
			}
			if err := t.Exec(anchorAudit, num, hash); err != nil {
				return err
			}
			var err error
			removed, err = t.Affected(removeAgedAudit, num)
			return err
		})
		if err != nil || removed == 0 {
			return err
		}
		w.swept.Audit += removed
	}
}
