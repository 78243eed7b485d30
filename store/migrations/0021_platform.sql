-- A program has a name and limits of its own. NULL: the installation's default.
ALTER TABLE programs ADD COLUMN name TEXT NOT NULL DEFAULT '' CHECK (length(name) <= 200);
ALTER TABLE programs ADD COLUMN max_subscriptions INTEGER CHECK (max_subscriptions BETWEEN 0 AND 1000000);
ALTER TABLE programs ADD COLUMN rate_limit INTEGER CHECK (rate_limit BETWEEN 0 AND 1000000);
ALTER TABLE programs ADD COLUMN max_in_flight INTEGER CHECK (max_in_flight BETWEEN 1 AND 100000);
ALTER TABLE programs ADD COLUMN updated_at INTEGER NOT NULL DEFAULT 0;
UPDATE programs SET updated_at = created_at;

-- A platform token has no program. (SQLite drops a NOT NULL only with a new table.)
CREATE TABLE new_tokens (
    id         TEXT PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256 of the secret
    hint       TEXT NOT NULL,
    program_id TEXT REFERENCES programs (id),
    user_id    TEXT NOT NULL CHECK (length(user_id) BETWEEN 1 AND 64),
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,                                  -- separated by blanks
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,
    CHECK ((program_id IS NULL) = (instr(' ' || scopes || ' ', ' platform ') > 0) AND (program_id IS NOT NULL OR scopes = 'platform'))
) STRICT, WITHOUT ROWID;
INSERT INTO new_tokens (id, hash, hint, program_id, user_id, name, scopes, created_at, expires_at, revoked_at, used_at)
    SELECT id, hash, hint, program_id, user_id, name, scopes, created_at, expires_at, revoked_at, used_at FROM tokens;
DROP TABLE tokens;
ALTER TABLE new_tokens RENAME TO tokens;
CREATE INDEX tokens_by_creation ON tokens (created_at, id);
CREATE INDEX tokens_by_program ON tokens (program_id, created_at, id);
