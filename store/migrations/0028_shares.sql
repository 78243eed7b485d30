-- Links that show one delivery to anyone who has them.
CREATE TABLE shares (
    hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),     -- SHA-256 of the code in the link
    id          TEXT    NOT NULL UNIQUE,
    program_id  TEXT    NOT NULL,
    delivery_id TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX shares_by_delivery ON shares (delivery_id, created_at);
CREATE INDEX shares_by_program ON shares (program_id, created_at);
CREATE INDEX shares_by_expiry ON shares (expires_at);
