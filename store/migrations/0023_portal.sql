-- Where the portal of a program may be embedded in an iframe: origins, separated by blanks.
ALTER TABLE programs ADD COLUMN portal_origins TEXT NOT NULL DEFAULT '';

-- Links that open the portal of a program once.
CREATE TABLE portal_links (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX portal_links_by_program ON portal_links (program_id, created_at);
CREATE INDEX portal_links_by_expiry ON portal_links (expires_at);

-- Sessions of partners in the portal.
CREATE TABLE portal_sessions (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the secret in the cookie
    id         TEXT    NOT NULL UNIQUE,
    link_id    TEXT    NOT NULL,                                -- the link that opened it
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    address    TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX portal_sessions_by_program ON portal_sessions (program_id, created_at);
CREATE INDEX portal_sessions_by_expiry ON portal_sessions (expires_at);
