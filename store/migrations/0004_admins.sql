-- What the admin UI needs: who may sign in and who is, what they did, where an
-- attempt's time went, and how much came of what.

CREATE TABLE admins (
    id           TEXT PRIMARY KEY,
    email        TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    password     TEXT    NOT NULL,                              -- argon2id, as a PHC string
    created_at   INTEGER NOT NULL,
    signed_in_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of what the cookie holds
    id         TEXT    NOT NULL UNIQUE,                         -- what it is called where it is shown
    admin_id   TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    address    TEXT    NOT NULL,                                -- from where it was begun
    agent      TEXT    NOT NULL,                                -- with which browser, as it says
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX sessions_by_admin ON sessions (admin_id, created_at);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- Who did what, when, from where. It is only appended to.
CREATE TABLE audit (
    num        INTEGER PRIMARY KEY,                             -- in order of time
    id         TEXT    NOT NULL UNIQUE,
    at         INTEGER NOT NULL,                                -- never falls from one num to the next
    admin      TEXT    NOT NULL,                                -- the email, or terminal
    address    TEXT    NOT NULL,                                -- '' for the terminal
    action     TEXT    NOT NULL,                                -- such as subscription.pause
    program_id TEXT    NOT NULL,                                -- '' for none
    subject_id TEXT    NOT NULL,                                -- of the record it was done to, '' for none
    detail     TEXT    NOT NULL                                 -- in words, without secrets
) STRICT;
CREATE INDEX audit_by_subject ON audit (subject_id, num);
CREATE INDEX audit_by_admin ON audit (admin, num);

-- How long the parts of an attempt took, in microseconds; NULL: there was none,
-- such as for the first three on a connection that was open already.
ALTER TABLE attempts ADD COLUMN dns_us INTEGER CHECK (dns_us >= 0);
ALTER TABLE attempts ADD COLUMN connect_us INTEGER CHECK (connect_us >= 0);
ALTER TABLE attempts ADD COLUMN tls_us INTEGER CHECK (tls_us >= 0);
ALTER TABLE attempts ADD COLUMN first_byte_us INTEGER CHECK (first_byte_us >= 0);

-- What attempts came to, pings aside, by the minute (for two days) and by the
-- hour: of each subscription, of each program (subscription_id is ''), and of all
-- (program_id too).
CREATE TABLE stats (
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    span            INTEGER NOT NULL CHECK (span IN (60000, 3600000)), -- milliseconds
    at              INTEGER NOT NULL,                                  -- its beginning
    success         INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    retryable       INTEGER NOT NULL,
    answers         TEXT    NOT NULL CHECK (json_valid(answers)),      -- how many by status or error
    durations       TEXT    NOT NULL CHECK (json_valid(durations)),    -- how many by class of duration
    PRIMARY KEY (program_id, subscription_id, span, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX stats_by_age ON stats (span, at);
