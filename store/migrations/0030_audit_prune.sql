-- Retention records in the audit log what it removes from it (audit.prune). A step in Go then
-- records what was removed before. See docs/decisions/0051-audit-chain.md.
CREATE INDEX audit_prunes ON audit (num) WHERE action = 'audit.prune';
