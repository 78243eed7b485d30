-- Every entry of the audit log is hashed over the one before. Open hashes the entries that
-- exist. See docs/decisions/0051-audit-chain.md for what is hashed.
ALTER TABLE audit ADD COLUMN actor TEXT NOT NULL DEFAULT '';        -- terminal, or admin:, token: or portal: with an id
ALTER TABLE audit ADD COLUMN request_id TEXT NOT NULL DEFAULT '';   -- '' for none
ALTER TABLE audit ADD COLUMN salt BLOB NOT NULL DEFAULT x'';        -- of digest; x'' once admin, address and detail are erased
ALTER TABLE audit ADD COLUMN digest BLOB NOT NULL DEFAULT x'' CHECK (length(digest) IN (0, 32)); -- of admin, address and detail
ALTER TABLE audit ADD COLUMN hash BLOB NOT NULL DEFAULT x'' CHECK (length(hash) IN (0, 32));

UPDATE audit SET actor = iif(instr(admin, '@') = 0, admin,
    'admin:' || coalesce((SELECT a.id FROM admins a WHERE a.email = audit.admin), ''));

CREATE INDEX audit_by_actor ON audit (actor, num);
CREATE INDEX audit_by_program ON audit (program_id, num);

-- The newest entry that retention has removed; no row if it has removed none.
CREATE TABLE audit_anchor (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    num  INTEGER NOT NULL,
    hash BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;
