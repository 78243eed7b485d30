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

// Audit records an action in the write that performs it, so neither is stored without the
// other. It sets the entry's ID and At.
func (w Write) Audit(e webhook.AuditEntry) error {
	if !slices.Contains(webhook.Actions(), e.Action) {
		return fmt.Errorf("store: unknown audit action %q", e.Action)
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

// Page returns a page of the audit log, and the cursor of the next page, "" on the last. It
// reads a bounded number of entries, so a page may be short or empty although more follow.
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

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first.
func (s Audit) Newer(ctx context.Context, q *webhook.ListQuery) (string, error) {
	f, err := s.feed(ctx, q)
	if err != nil {
		return "", err
	}
	return f.newer(ctx)
}

// feed returns the feed of audit entries that match q.
func (s Audit) feed(ctx context.Context, q *webhook.ListQuery) (*feed, error) {
	low, high, err := s.between(ctx, "", q.Ranges["at"], s.before)
	if err != nil {
		return nil, err
	}
	f := &feed{s: s.core, q: q, low: low, high: high, scope: cursorScope{"audit", "", "", webhook.AuditList.Selection(q)}, budget: q.Size + 1}
	// Read the index with the fewest rows: by subject, else by admin.
	f.binds = bindsOf(q)
	if subjects := q.Filters["subject_id"]; subjects != nil {
		for _, subject := range subjects {
			f.streams = append(f.streams, stream{access: auditBySubject, binds: binds{"value": subject}})
		}
	} else if admins := q.Filters["admin"]; admins != nil {
		for _, admin := range admins {
			f.streams = append(f.streams, stream{access: auditByAdmin, binds: binds{"value": admin}})
		}
	} else {
		f.streams = []stream{{access: auditAll}}
	}
	if q.Filters != nil {
		f.budget = s.lists.scan
	}
	return f, nil
}

var (
	auditMatches   = allOf(isIn("a.admin"), isIn("a.action"), isIn("a.subject_id"), isIn("a.program_id"))
	auditAll       = along("a.num", "a.num", auditMatches, "FROM audit a WHERE TRUE")
	auditBySubject = along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_subject WHERE a.subject_id = :value")
	auditByAdmin   = along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_admin WHERE a.admin = :value")
)

const (
	selectListedAudit = "SELECT " + auditColumns + " FROM json_each(?1) i CROSS JOIN audit a ON a.num = i.value ORDER BY i.key"
	selectAuditFrom   = "SELECT num, at FROM audit WHERE num >= ? ORDER BY num LIMIT 1"
)

// before returns the highest num of the entries that were made before a time, 0 if there are
// none.
func (s Audit) before(ctx context.Context, at time.Time) (int64, error) {
	return s.lastBefore(ctx, "", "SELECT 0, coalesce(max(num), 0) + 1 FROM audit", selectAuditFrom, at)
}
