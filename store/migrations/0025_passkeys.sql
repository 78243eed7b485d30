-- WebAuthn credentials of admins. A passkey ends with its admin.
CREATE TABLE passkeys (
    id         TEXT    PRIMARY KEY,
    admin_id   TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    name       TEXT    NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    rp_id      TEXT    NOT NULL,                                -- the domain that it works at
    credential BLOB    NOT NULL UNIQUE CHECK (length(credential) BETWEEN 1 AND 1023),
    public_key BLOB    NOT NULL CHECK (length(public_key) BETWEEN 1 AND 4096),
    sign_count INTEGER NOT NULL CHECK (sign_count BETWEEN 0 AND 4294967295),
    synced     INTEGER NOT NULL CHECK (synced IN (0, 1)),       -- may be copied to other devices of its owner
    created_at INTEGER NOT NULL,
    used_at    INTEGER                                          -- NULL for never
) STRICT, WITHOUT ROWID;
CREATE INDEX passkeys_by_admin ON passkeys (admin_id);
