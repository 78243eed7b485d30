-- Where alerts are sent beside --alert-url.
CREATE TABLE alert_channels (
    id         TEXT    PRIMARY KEY,
    kind       TEXT    NOT NULL CHECK (kind IN ('webhook', 'slack', 'email')),
    name       TEXT    NOT NULL,
    target     BLOB    NOT NULL,                                -- encrypted: URL, addresses, signing secret
    alerts     TEXT    NOT NULL CHECK (json_valid(alerts)),     -- names, an array
    active     INTEGER NOT NULL CHECK (active IN (0, 1)),
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- An alert on its way to a channel. A row is written in the transaction of the alert.
CREATE TABLE alert_sends (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    channel_id      TEXT    NOT NULL,
    alert           INTEGER,                                    -- its num; NULL: a test
    name            TEXT    NOT NULL,                           -- of the alert
    json            BLOB,                                       -- of a test
    status          TEXT    NOT NULL CHECK (status IN ('pending', 'retryable', 'success', 'failed')),
    attempts_made   INTEGER NOT NULL CHECK (attempts_made BETWEEN 0 AND 5),
    next_attempt_at INTEGER,
    response_status INTEGER,                                    -- of the last attempt that has ended
    error           TEXT,                                       -- the same
    attempted_at    INTEGER,                                    -- when that ended
    created_at      INTEGER NOT NULL,
    CHECK ((next_attempt_at IS NOT NULL) = (status IN ('pending', 'retryable'))),
    CHECK ((alert IS NULL) = (json IS NOT NULL))
) STRICT;
CREATE INDEX alert_sends_due ON alert_sends (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX alert_sends_by_channel ON alert_sends (channel_id, num);
CREATE INDEX alert_sends_by_alert ON alert_sends (alert) WHERE alert IS NOT NULL;
