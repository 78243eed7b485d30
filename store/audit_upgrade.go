package store

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"math"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

const (
	updateChained = "UPDATE audit SET salt = ?2, digest = ?3, hash = ?4 WHERE num = ?1"
	// The audit log before removals were recorded in it.
	selectOldAnchor = "SELECT num, hash FROM audit_anchor WHERE NOT EXISTS (SELECT 1 FROM audit WHERE action = 'audit.prune')"
)

// auditSteps returns the parts of migrations that hash entries of the audit log. Only a
// migration does that: the schema says that the log is hashed, and an entry whose hash is
// missing later is a fault, which no later Open repairs.
func auditSteps(logger *slog.Logger) map[string]func(context.Context, *sql.Conn) error {
	return map[string]func(context.Context, *sql.Conn) error{
		"0027_audit_chain.sql": func(ctx context.Context, conn *sql.Conn) error { return chainOldAudit(ctx, conn, logger) },
		"0030_audit_prune.sql": recordOldAnchor,
	}
}

// chainOldAudit hashes all entries of the audit log.
func chainOldAudit(ctx context.Context, conn *sql.Conn, logger *slog.Logger) error {
	update, err := conn.PrepareContext(ctx, updateChained)
	if err != nil {
		return err
	}
	defer update.Close()
	began, total := time.Now(), 0
	var previous webhook.AuditHash
	for after := int64(math.MinInt64); ; {
		rows, err := conn.QueryContext(ctx, selectAuditAfter, after, auditChunk)
		if err != nil {
			return err
		}
		var entries []webhook.AuditEntry
		err = sqlite.Drain(rows, func(scan func(...any) error) error {
			e, err := scanAudit(scan, false)
			entries = append(entries, e)
			return err
		})
		if err != nil {
			return err
		}
		for i := range entries {
			e := &entries[i]
			e.Previous = previous
			chainAudit(e)
			after, previous = e.Num, e.Hash
			if _, err := update.ExecContext(ctx, e.Num, e.Salt, e.Digest[:], e.Hash[:]); err != nil {
				return err
			}
		}
		if total += len(entries); len(entries) < auditChunk {
			break
		}
	}
	if total > 0 {
		logger.Info("hashed the entries of the audit log", "entries", total, "duration", time.Since(began).Round(time.Millisecond))
	}
	return nil
}

// recordOldAnchor adds an entry about what an older version removed from the audit log without
// such an entry.
func recordOldAnchor(ctx context.Context, conn *sql.Conn) error {
	var num int64
	var hash []byte
	if err := conn.QueryRowContext(ctx, selectOldAnchor).Scan(&num, &hash); err != nil {
		return ignoreNoRows(err)
	}
	e := webhook.AuditEntry{ID: webhook.NewID(), Actor: webhook.Service, Admin: webhook.Service, Action: webhook.ActionAuditPrune}
	p := webhook.AuditPrune{Num: num, Upgrade: true}
	copy(p.Hash[:], hash)
	e.Detail = p.String()
	var last int64
	var previous []byte
	if err := conn.QueryRowContext(ctx, selectLastAudit).Scan(&e.Num, &last, &previous); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	e.Num++
	e.At = time.UnixMilli(max(last, time.Now().UnixMilli()))
	copy(e.Previous[:], previous)
	chainAudit(&e)
	_, err := conn.ExecContext(ctx, insertAudit, auditValues(&e)...)
	return err
}
