-- What an admin may do. Before roles, every admin could do everything.
ALTER TABLE admins ADD COLUMN role TEXT NOT NULL DEFAULT 'owner' CHECK (role IN ('viewer', 'operator', 'owner'));

-- Links with which a person becomes an admin. An invitation ends with the admin who
-- created it.
CREATE TABLE invitations (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    email      TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    role       TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
    invited_by TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX invitations_by_admin ON invitations (invited_by);
