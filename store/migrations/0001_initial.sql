-- Times are Unix milliseconds in UTC. Statuses and results are checked here as
-- well as in package webhook, so that no bug can store a state that does not exist.

-- One row a setting of the data itself; key_check proves that secret.key is the
-- key that the secrets below are sealed with.
CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE programs (
    id         TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256 of the secret
    hint       TEXT NOT NULL,
    program_id TEXT NOT NULL REFERENCES programs (id),
    user_id    TEXT NOT NULL CHECK (length(user_id) BETWEEN 1 AND 64),
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,                                  -- separated by blanks
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT, WITHOUT ROWID;

-- Answers that are given again to a request that comes again. A row is written
-- in the transaction of what its request created.
CREATE TABLE idempotency_keys (
    token_id   TEXT    NOT NULL REFERENCES tokens (id),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request    BLOB    NOT NULL CHECK (length(request) = 32),  -- SHA-256 of what was asked for
    status     INTEGER NOT NULL CHECK (status BETWEEN 200 AND 299),
    location   TEXT    NOT NULL,                               -- or ''
    body       BLOB    NOT NULL,                               -- sealed: there may be a signing secret in it
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (token_id, key)
) STRICT;
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- What a token's rows above amount to. The triggers keep it.
CREATE TABLE idempotency_use (
    token_id TEXT    PRIMARY KEY REFERENCES tokens (id),
    keys     INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER idempotency_key_kept AFTER INSERT ON idempotency_keys BEGIN
    INSERT INTO idempotency_use (token_id, keys, bytes) VALUES (new.token_id, 1, length(new.body))
        ON CONFLICT DO UPDATE SET keys = keys + 1, bytes = bytes + length(new.body);
END;
CREATE TRIGGER idempotency_key_removed AFTER DELETE ON idempotency_keys BEGIN
    UPDATE idempotency_use SET keys = keys - 1, bytes = bytes - length(old.body) WHERE token_id = old.token_id;
END;

-- The event log: append-only, one dense seq per program in accept order. The
-- newest event of a program is never removed, since it holds the log's head.
-- received_at never falls from one seq to the next, whatever the clock does, so
-- that a span of time is a span of the log.
CREATE TABLE events (
    program_id  TEXT    NOT NULL REFERENCES programs (id),
    seq         INTEGER NOT NULL CHECK (seq > 0),
    id          TEXT    NOT NULL CHECK (length(id) = 36),
    name        TEXT    NOT NULL,
    received_at INTEGER NOT NULL,
    json        BLOB    NOT NULL                               -- the bytes as delivered
) STRICT;
CREATE UNIQUE INDEX events_by_seq ON events (program_id, seq);
CREATE UNIQUE INDEX events_by_id ON events (program_id, id);
CREATE UNIQUE INDEX events_by_name ON events (program_id, name, seq);

CREATE TABLE subscriptions (
    id                   TEXT PRIMARY KEY,
    program_id           TEXT    NOT NULL REFERENCES programs (id),
    url                  TEXT    NOT NULL,
    active               INTEGER NOT NULL CHECK (active IN (0, 1)),
    description          TEXT    NOT NULL,
    events               TEXT    NOT NULL CHECK (json_valid(events)), -- names, an array
    ordered              INTEGER NOT NULL CHECK (ordered IN (0, 1)),
    max_in_flight        INTEGER NOT NULL CHECK (max_in_flight >= 0), -- 0: the operator's default
    authorization_header BLOB,                                  -- sealed
    signing_secret       BLOB    NOT NULL,                      -- sealed
    status               TEXT    NOT NULL DEFAULT 'healthy' CHECK (status IN ('healthy', 'failing', 'disabled')),
    disabled_reason      TEXT CHECK ((disabled_reason IS NOT NULL) = (status = 'disabled')),
    created_by           TEXT    NOT NULL,                      -- user id
    revision             INTEGER NOT NULL,                      -- rises with every change
    created_at           INTEGER NOT NULL,
    updated_at           INTEGER NOT NULL,
    deleted_at           INTEGER
) STRICT, WITHOUT ROWID;

-- Secrets that were replaced, and sign beside the new one until they expire.
CREATE TABLE old_signing_secrets (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    expires_at      INTEGER NOT NULL,
    secret          BLOB    NOT NULL,                           -- sealed
    PRIMARY KEY (subscription_id, expires_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX subscriptions_by_program ON subscriptions (program_id, created_at, id) WHERE deleted_at IS NULL;

-- Which part of the log a subscription asked for: the events of this name with
-- after_seq < seq <= until_seq. A span is open while the subscription is active
-- and names the event; pausing it or dropping the name closes the span, so that
-- what was accepted before is still owed, and what comes meanwhile is not.
CREATE TABLE interests (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    name            TEXT    NOT NULL,
    after_seq       INTEGER NOT NULL,
    until_seq       INTEGER CHECK (until_seq > after_seq),
    PRIMARY KEY (subscription_id, name, after_seq)
) STRICT, WITHOUT ROWID;

-- The retryable attempts in a row of a subscription's deliveries, pings aside; no row: none.
CREATE TABLE failures (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    count           INTEGER NOT NULL CHECK (count > 0),
    first_at        INTEGER NOT NULL,
    failing_since   INTEGER
) STRICT, WITHOUT ROWID;

-- Every event up to seq has been put into a delivery, or was not for this subscription.
CREATE TABLE cursors (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    seq             INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- A delivery is queued (attempts_made 0, next_attempt_at set), in flight
-- (claimed_at set), waiting for its next attempt (retryable) or at its end.
CREATE TABLE deliveries (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    id              TEXT    NOT NULL UNIQUE,
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    program_id      TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    failure_reason  TEXT,
    attempts_made   INTEGER NOT NULL CHECK (attempts_made BETWEEN 0 AND 5),
    claimed_at      INTEGER,                                    -- when the attempt now in flight was counted
    next_attempt_at INTEGER,
    response_status INTEGER,                                    -- of the last attempt that has ended
    error           TEXT,                                       -- the same
    seqs            TEXT CHECK (json_valid(seqs)),              -- its events' places in the log, an array
    ping            BLOB,                                       -- or the one event of a ping
    redelivery_of   TEXT,                                       -- the id of the delivery whose events these are
    replay_id       TEXT,                                       -- the replay that formed it
    created_at      INTEGER NOT NULL,                           -- never falls from one num to the next
    completed_at    INTEGER,
    CHECK ((seqs IS NULL) <> (ping IS NULL)),
    CHECK (CASE status
        WHEN 'pending'   THEN completed_at IS NULL AND failure_reason IS NULL
                              AND (claimed_at IS NULL) <> (next_attempt_at IS NULL)
                              AND (claimed_at IS NULL) = (attempts_made = 0)
        WHEN 'retryable' THEN completed_at IS NULL AND failure_reason IS NULL AND claimed_at IS NULL
                              AND next_attempt_at IS NOT NULL AND attempts_made BETWEEN 1 AND 4
        WHEN 'success'   THEN completed_at IS NOT NULL AND failure_reason IS NULL AND claimed_at IS NULL
                              AND next_attempt_at IS NULL AND attempts_made > 0
        WHEN 'failed'    THEN completed_at IS NOT NULL AND claimed_at IS NULL AND next_attempt_at IS NULL
                              AND failure_reason IN ('attempts_exhausted', 'rejected', 'blocked', 'subscription_deleted')
        ELSE 0 END)
) STRICT;
CREATE INDEX deliveries_by_subscription ON deliveries (subscription_id, num);
CREATE INDEX deliveries_due ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX deliveries_due_pings ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL AND ping IS NOT NULL;
CREATE INDEX deliveries_by_status ON deliveries (status, subscription_id, num) WHERE status <> 'success';
-- An answer other than 2xx, or none, is the exception, and costs a success nothing.
CREATE INDEX deliveries_by_response ON deliveries (subscription_id, response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;
CREATE INDEX deliveries_by_error ON deliveries (subscription_id, error, num) WHERE error IS NOT NULL;
CREATE INDEX deliveries_pings ON deliveries (subscription_id, num) WHERE ping IS NOT NULL;
CREATE INDEX deliveries_by_completion ON deliveries (subscription_id, completed_at, num) WHERE completed_at IS NOT NULL;

-- Where an event went.
CREATE TABLE delivery_events (
    program_id TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    delivery   INTEGER NOT NULL REFERENCES deliveries (num),
    PRIMARY KEY (program_id, seq, delivery)
) STRICT, WITHOUT ROWID;

-- A replay is a second, bounded cursor over the log.
CREATE TABLE replays (
    id              TEXT PRIMARY KEY,
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    program_id      TEXT    NOT NULL,
    only_which      TEXT    NOT NULL CHECK (only_which IN ('missed', 'failed', 'all')),
    from_at         INTEGER NOT NULL,
    to_at           INTEGER NOT NULL,
    names           TEXT    NOT NULL CHECK (json_valid(names)),
    first_seq       INTEGER NOT NULL,                           -- after this one it began
    after_seq       INTEGER NOT NULL,                           -- so far it has come
    until_seq       INTEGER NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('running', 'done', 'cancelled')),
    events          INTEGER NOT NULL,                           -- sent so far
    deliveries      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    completed_at    INTEGER,
    CHECK (first_seq <= after_seq AND after_seq <= until_seq),
    CHECK ((status = 'running') = (completed_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX replays_running ON replays (subscription_id, created_at, id) WHERE status = 'running';

CREATE TABLE attempts (
    delivery           INTEGER NOT NULL REFERENCES deliveries (num),
    number             INTEGER NOT NULL CHECK (number BETWEEN 1 AND 5),
    started_at         INTEGER NOT NULL,
    duration_ms        INTEGER NOT NULL CHECK (duration_ms >= 0),
    result             TEXT    NOT NULL CHECK (result IN ('success', 'failed', 'retryable')),
    response_status    INTEGER,
    error              TEXT CHECK (error IN ('timeout', 'dns', 'connect', 'tls', 'blocked', 'protocol', 'interrupted')),
    response_header    TEXT    NOT NULL,
    response_body      BLOB    NOT NULL,
    response_truncated INTEGER NOT NULL CHECK (response_truncated IN (0, 1)),
    PRIMARY KEY (delivery, number),
    CHECK (response_status IS NOT NULL OR error IS NOT NULL)
) STRICT, WITHOUT ROWID;
