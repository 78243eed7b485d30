package people

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode"

	"service/store/sqlite"
	"service/webhook"
)

const (
	// auditChunk is the number of entries of the audit log that are read at a time.
	auditChunk = 1000

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

// Each calls fn with every entry of the audit log, oldest first, including entries that are
// added during the walk.
func (s Audit) Each(ctx context.Context, fn func(*webhook.AuditEntry) error) error {
	var w auditWalk
	for {
		var entries []webhook.AuditEntry
		err := s.lists.DB.View(ctx, func(v *sqlite.View) (err error) {
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
	// The first entry is read whatever its number is, so that a wrong number is found.
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
	err = s.lists.DB.Each(ctx, selectNewestAudit, nil, func(scan func(...any) error) (err error) {
		e, err = scanAudit(scan, true)
		ok = true
		return err
	})
	return e, ok, err
}

// ContinueAudit records from which entry the log continues after a restore. from describes what was
// restored, see [webhook.AuditGap].
func (w Writes) ContinueAudit(from string) error {
	var gap webhook.AuditGap
	var hash []byte
	if err := sqlite.NoRows(w.t.Scan(selectLastAudit, nil, &gap.Num, new(int64), &hash), nil); err != nil {
		return err
	}
	copy(gap.Hash[:], hash)
	gap.From = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, from)
	return w.Audit(webhook.AuditEntry{Admin: webhook.Service, Action: webhook.ActionAuditContinue, Detail: gap.String()})
}

// CheckNewestAudit checks the hashes of the newest entries of the audit log, and that an entry names
// the entries removed before the first one. It returns how many it has checked. The error is a
// *webhook.AuditFault if they do not match.
func CheckNewestAudit(each sqlite.EachRow) (entries int64, err error) {
	v := webhook.AuditVerifier{Suffix: true}
	err = each(selectAuditSuffix, nil, func(scan func(...any) error) error {
		e, err := scanAudit(scan, true)
		if err != nil {
			return err
		}
		return v.Add(&e)
	})
	s, faulty := v.End()
	if err == nil && faulty == nil {
		faulty = checkAuditBounds(each)
	}
	return s.Entries, errors.Join(err, faulty)
}

// checkAuditBounds checks that an entry of the audit log names the entries removed before the first
// one.
func checkAuditBounds(each sqlite.EachRow) error {
	var first, pruned *webhook.AuditEntry
	err := each(selectAuditBounds, nil, func(scan func(...any) error) error {
		e, err := scanAudit(scan, true)
		if first == nil {
			first = &e
		}
		if e.Action == webhook.ActionAuditPrune {
			pruned = &e
		}
		return err
	})
	if err != nil || first == nil {
		return err
	}
	if fault := webhook.PruneFault(first, pruned); fault != nil {
		return fault
	}
	return nil
}
