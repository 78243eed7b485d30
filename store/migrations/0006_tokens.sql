-- When a token was last used, written now and then.
ALTER TABLE tokens ADD COLUMN used_at INTEGER;
CREATE INDEX tokens_by_creation ON tokens (created_at, id);
CREATE INDEX tokens_by_program ON tokens (program_id, created_at, id);
