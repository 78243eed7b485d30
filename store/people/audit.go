package people

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"service/store/list"
	"service/store/sqlite"
	"service/webhook"
)

const (
	auditColumns = "a.num, a.id, a.at, a.actor, a.admin, a.address, a.request_id, a.action, a.program_id, a.subject_id, a.detail, " +
		"a.salt, a.digest, a.hash"

	// The newest existing entry, or else the newest that retention has removed.
	selectLastAudit = "SELECT num, at, hash FROM (SELECT num, at, hash FROM audit ORDER BY num DESC LIMIT 1) " +
		"UNION ALL SELECT num, 0, hash FROM audit_anchor ORDER BY num DESC LIMIT 1"
	insertAudit = "INSERT INTO audit (num, id, at, actor, admin, address, request_id, action, program_id, subject_id, detail, " +
		"salt, digest, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

// Audit records an action in the write that performs it, so neither is stored without the
// other. It sets the parts of the entry that follow from the others, and hashes it over the
// previous entry, which may be from the same commit.
func (w Writes) Audit(e webhook.AuditEntry) error {
	if !slices.Contains(webhook.Actions(), e.Action) {
		return fmt.Errorf("store: unknown audit action %q", e.Action)
	}
	var last int64
	var previous []byte
	err := w.t.Scan(selectLastAudit, nil, &e.Num, &last, &previous)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	// A hash that was removed outside of the service counts as zeros. The fault stays, but does
	// not prevent an owner from revoking a token.
	copy(e.Previous[:], previous)
	e.Num++
	e.ID, e.At = webhook.NewID(), time.UnixMilli(max(last, w.now().UnixMilli()))
	if e.Actor, err = w.auditActor(e.Admin); err != nil {
		return err
	}
	for _, text := range []*string{&e.Admin, &e.Address, &e.RequestID, &e.ProgramID, &e.SubjectID, &e.Detail} {
		*text = strings.ToValidUTF8(*text, "�")
	}
	if len(e.Detail) > webhook.MaxAuditDetail {
		e.Detail = strings.ToValidUTF8(e.Detail[:webhook.MaxAuditDetail-len("…")], "") + "…"
	}
	chainAudit(&e)
	return w.t.Exec(insertAudit, auditValues(&e)...)
}

// Record records a change by an actor, whose entry has no action yet. The zero entry stands for no
// actor, as in tests, and is not recorded.
func (w Writes) Record(by webhook.AuditEntry, action webhook.Action, programID, subjectID, detail string) error {
	if by.Admin == "" {
		return nil
	}
	by.Action, by.ProgramID, by.SubjectID, by.Detail = action, programID, subjectID, detail
	return w.Audit(by)
}

// auditValues returns the values of insertAudit.
func auditValues(e *webhook.AuditEntry) []any {
	return []any{e.Num, e.ID, e.At.UnixMilli(), e.Actor, e.Admin, e.Address, e.RequestID, string(e.Action), e.ProgramID, e.SubjectID,
		e.Detail, e.Salt, e.Digest[:], e.Hash[:]}
}

// chainAudit gives an entry a salt, and hashes it over the previous one.
func chainAudit(e *webhook.AuditEntry) {
	e.Salt = make([]byte, webhook.AuditSaltSize)
	rand.Read(e.Salt)
	e.Digest = e.PersonalDigest()
	e.Hash = e.ChainHash()
}

// auditActor returns the actor for entries of an admin, who may have been removed. Only
// emails contain an @.
func (w Writes) auditActor(admin string) (string, error) {
	if !strings.Contains(admin, "@") {
		return admin, nil
	}
	var id string
	err := w.t.Scan("SELECT id FROM admins WHERE email = ?", []any{admin}, &id)
	return webhook.ActorAdmin + id, sqlite.NoRows(err, nil)
}

// Page returns a page of the audit log, and the cursor of the next page, "" on the last. It
// reads a bounded number of entries, so a page may be short or empty although more follow.
func (s Audit) Page(ctx context.Context, q *webhook.ListQuery) (entries []webhook.AuditEntry, next string, err error) {
	f, err := s.feed(ctx, q)
	if err != nil {
		return nil, "", err
	}
	return list.Rows(ctx, f, selectListedAudit, nil, func(scan func(...any) error) (webhook.AuditEntry, error) {
		return scanAudit(scan, true)
	})
}

// Newer returns the cursor of the page before the one at the cursor of q, "" if that is the
// first.
func (s Audit) Newer(ctx context.Context, q *webhook.ListQuery) (string, error) {
	f, err := s.feed(ctx, q)
	if err != nil {
		return "", err
	}
	return f.Newer(ctx)
}

// feed returns the feed of audit entries that match q.
func (s Audit) feed(ctx context.Context, q *webhook.ListQuery) (*list.Feed, error) {
	low, high, err := s.lists.Between(ctx, "", q.Ranges["at"], s.before)
	if err != nil {
		return nil, err
	}
	f := &list.Feed{Reader: s.lists, Query: q, Low: low, High: high, Scope: list.Scope{List: "audit",
		Selection: webhook.AuditList.Selection(q)}, Budget: q.Size + 1}
	// Read the index with the fewest rows: by subject, else by actor, else by program.
	f.Binds = list.BindsOf(q)
	actors := make([]string, 0, len(q.Filters["token_id"]))
	for _, id := range q.Filters["token_id"] {
		actors = append(actors, webhook.ActorToken+id)
	}
	if len(actors) > 0 {
		f.Binds["token_id"] = sqlite.JSON(actors)
	}
	switch {
	case q.Filters["subject_id"] != nil:
		f.AddStreams(auditBySubject, q.Filters["subject_id"])
	case q.Filters["admin"] != nil:
		f.AddStreams(auditByAdmin, q.Filters["admin"])
	case len(actors) > 0:
		f.AddStreams(auditByActor, actors)
	case q.Filters["program_id"] != nil:
		f.AddStreams(auditByProgram, q.Filters["program_id"])
	default:
		f.Streams = []list.Stream{{Access: auditAll}}
	}
	if q.Filters != nil {
		f.Budget = s.lists.Limits.Scan
	}
	return f, nil
}

var (
	auditMatches   = list.AllOf(list.IsIn("a.admin"), ofTokens, list.IsIn("a.action"), list.IsIn("a.subject_id"), list.IsIn("a.program_id"))
	auditAll       = list.Along("a.num", "a.num", auditMatches, "FROM audit a WHERE TRUE")
	auditBySubject = list.Along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_subject WHERE a.subject_id = :value")
	auditByAdmin   = list.Along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_admin WHERE a.admin = :value")
	auditByActor   = list.Along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_actor WHERE a.actor = :value")
	auditByProgram = list.Along("a.num", "a.num", auditMatches, "FROM audit a INDEXED BY audit_by_program WHERE a.program_id = :value")
)

// ofTokens is the condition of the filter by token_id, which binds actors.
const ofTokens = ":token_id IS NULL OR a.actor IN (SELECT value FROM json_each(:token_id))"

const (
	// The hash of the entry before the first one of a list.
	previousAudit = "coalesce((SELECT p.hash FROM audit p WHERE p.num < a.num ORDER BY p.num DESC LIMIT 1), " +
		"(SELECT hash FROM audit_anchor), zeroblob(32))"
	selectListedAudit = "SELECT " + auditColumns + ", " + previousAudit +
		" FROM json_each(?1) i CROSS JOIN audit a ON a.num = i.value ORDER BY i.key"
	selectAuditFrom = "SELECT num, at FROM audit WHERE num >= ? ORDER BY num LIMIT 1"
)

// before returns the highest num of the entries that were made before a time, 0 if there are
// none.
func (s Audit) before(ctx context.Context, at time.Time) (int64, error) {
	return s.lists.LastBefore(ctx, "", "SELECT 0, coalesce(max(num), 0) + 1 FROM audit", selectAuditFrom, at)
}

// scanAudit scans auditColumns, and if previous is set, previousAudit.
func scanAudit(scan func(...any) error, previous bool) (e webhook.AuditEntry, err error) {
	var digest, hash, before []byte
	dest := []any{&e.Num, &e.ID, (*sqlite.Time)(&e.At), &e.Actor, &e.Admin, &e.Address, &e.RequestID, &e.Action, &e.ProgramID, &e.SubjectID,
		&e.Detail, &e.Salt, &digest, &hash}
	if previous {
		dest = append(dest, &before)
	}
	err = scan(dest...)
	copy(e.Digest[:], digest)
	copy(e.Hash[:], hash)
	copy(e.Previous[:], before)
	return e, err
}

// Arrived counts the entries that were stored after a mark.
func (s Audit) Arrived(ctx context.Context, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	query := *q
	query.Size = list.MaxArrived
	f, err := s.feed(ctx, &query)
	if err != nil {
		return list.Arrived{}, err
	}
	return f.Arrived(ctx, mark, "SELECT coalesce(max(num), 0) FROM audit", nil)
}
