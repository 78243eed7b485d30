package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"service/webhook"
)

const (
	auditColumns = "a.num, a.id, a.at, a.admin, a.address, a.action, a.program_id, a.subject_id, a.detail"

	selectLastAudit = "SELECT at FROM audit ORDER BY num DESC LIMIT 1"
)

// Audit records what was done in this write, so that there is never one without
// the other. It sets the entry's ID and At.
func (w Write) Audit(e webhook.AuditEntry) error {
	if !slices.Contains(webhook.Actions(), e.Action) {
		return fmt.Errorf("store: the audit does not know the action %q", e.Action)
	}
	var last int64
	if err := w.t.Scan(selectLastAudit, nil, &last); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	detail := strings.ToValidUTF8(e.Detail, "�")
	if len(detail) > webhook.MaxAuditDetail {
		detail = strings.ToValidUTF8(detail[:webhook.MaxAuditDetail-len("…")], "") + "…"
	}
	return w.t.Exec("INSERT INTO audit (id, at, admin, address, action, program_id, subject_id, detail) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
		webhook.NewID(), max(last, w.s.clock.now().UnixMilli()), e.Admin, e.Address, string(e.Action), e.ProgramID, e.SubjectID, detail)
}

// Page returns a page of the audit, and the cursor of the next page, ""
// on the last. It looks at a bounded number of entries: a page may be short or
// empty, and there is more all the same when there is a cursor.
func (s Audit) Page(ctx context.Context, q *webhook.ListQuery) (entries []webhook.AuditEntry, next string, err error) {
	f, err := s.feed(ctx, q)
	if err != nil {
		return nil, "", err
	}
	err = s.view(ctx, func(v *view) error {
		var nums []int64
		if nums, next, err = f.page(v); err != nil {
			return err
		}
		return v.Each(selectListedAudit, []any{jsonOf(nums)}, func(scan func(...any) error) error {
			var e webhook.AuditEntry
			var num, at int64
			err := scan(&num, &e.ID, &at, &e.Admin, &e.Address, &e.Action, &e.ProgramID, &e.SubjectID, &e.Detail)
			e.At = time.UnixMilli(at).UTC()
			entries = append(entries, e)
			return err
		})
	})
	return entries, next, err
}

// Newer returns the cursor of the page before the one that a query
// asks for by its cursor, "" when that is the first.
func (s Audit) Newer(ctx context.Context, q *webhook.ListQuery) (string, error) {
	f, err := s.feed(ctx, q)
	if err != nil {
		return "", err
	}
	return f.newer(ctx)
}

// feed is where the entries of the audit are found.
func (s Audit) feed(ctx context.Context, q *webhook.ListQuery) (*feed, error) {
	low, high, err := s.between(ctx, q.Ranges["at"], s.before)
	if err != nil {
		return nil, err
	}
	f := &feed{s: s.core, q: q, low: low, high: high, scope: cursorScope{"audit", "", "", webhook.AuditList.Selection(q)}, budget: q.Size + 1}
	// The streams are of what has the fewest rows: a subject, or an admin.
	index, values := auditAll, []string{""}
	if subjects := q.Filters["subject_id"]; subjects != nil {
		index, values = auditBySubject, subjects
	} else if admins := q.Filters["admin"]; admins != nil {
		index, values = auditByAdmin, admins
	}
	args := []any{nil, jsonOf(q.Filters["admin"]), jsonOf(q.Filters["action"]), jsonOf(q.Filters["subject_id"]), jsonOf(q.Filters["program_id"])}
	for _, value := range values {
		args[0] = value
		f.streams = append(f.streams, stream{index + auditUp, index + auditDown, slices.Clone(args)})
	}
	if q.Filters != nil {
		f.budget = s.lists.scan
	}
	return f, nil
}

// The streams of the audit: ?4 is the value of their index, ?5 to ?8 are the
// filters by admin, action, subject and program.
const (
	auditAll       = "SELECT a.num, " + auditMatches + " FROM audit a WHERE ?4 = '' AND a.num > ?2 AND a.num < ?3"
	auditBySubject = "SELECT a.num, " + auditMatches + " FROM audit a INDEXED BY audit_by_subject WHERE a.subject_id = ?4 AND a.num > ?2 AND a.num < ?3"
	auditByAdmin   = "SELECT a.num, " + auditMatches + " FROM audit a INDEXED BY audit_by_admin WHERE a.admin = ?4 AND a.num > ?2 AND a.num < ?3"

	auditUp, auditDown = " ORDER BY a.num LIMIT ?1", " ORDER BY a.num DESC LIMIT ?1"

	auditMatches = "(?5 IS NULL OR a.admin IN (SELECT value FROM json_each(?5))) AND (?6 IS NULL OR a.action IN (SELECT value FROM json_each(?6)))" +
		" AND (?7 IS NULL OR a.subject_id IN (SELECT value FROM json_each(?7))) AND (?8 IS NULL OR a.program_id IN (SELECT value FROM json_each(?8)))"

	selectListedAudit = "SELECT " + auditColumns + " FROM json_each(?1) i CROSS JOIN audit a ON a.num = i.value ORDER BY i.key"
	selectAuditFrom   = "SELECT num, at FROM audit WHERE num >= ? ORDER BY num LIMIT 1"
)

// before returns the greatest num of an entry that was made before a time,
// 0 when there is none.
func (s Audit) before(ctx context.Context, at time.Time) (int64, error) {
	var low, high int64 // made before, and not
	err := s.db.Scan(ctx, "SELECT coalesce(max(num), 0) + 1 FROM audit", nil, &high)
	for err == nil && high-low > 1 {
		middle := low + (high-low)/2
		var num, made int64
		if err = s.db.Scan(ctx, selectAuditFrom, []any{middle}, &num, &made); err == nil && made < at.UnixMilli() {
			low = num
		} else {
			high = middle
		}
	}
	return low, err
}
