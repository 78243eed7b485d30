-- What the management of certificates keeps: certificates with their keys,
-- accounts at their issuer, OCSP answers. A restored service has them again.
CREATE TABLE certificate_files (
    path       TEXT    PRIMARY KEY CHECK (length(path) BETWEEN 1 AND 1024), -- parts with / between them
    value      BLOB    NOT NULL,                                            -- sealed
    size       INTEGER NOT NULL,                                            -- in bytes, as it was given
    changed_at INTEGER NOT NULL
) STRICT;

-- Who is at work on a certificate. The process is one of this database, and all
-- others are no more: a lock of theirs counts for nothing.
CREATE TABLE certificate_locks (
    name       TEXT    PRIMARY KEY,
    process    TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
