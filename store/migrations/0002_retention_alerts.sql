-- Retention: what is removed for its age is removed in the order of its age, and
-- what that costs a subscription is counted. Alerts: what the operator must hear.

-- A delivery that was still waiting when it became older than the retention has
-- failed as expired. (SQLite changes a CHECK by a new table alone.)
CREATE TABLE new_deliveries (
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
                              AND failure_reason IN ('attempts_exhausted', 'rejected', 'blocked', 'subscription_deleted', 'expired', 'cancelled')
        ELSE 0 END)
) STRICT;
INSERT INTO new_deliveries (num, id, subscription_id, program_id, status, failure_reason, attempts_made, claimed_at, next_attempt_at, response_status, error, seqs, ping, redelivery_of, replay_id, created_at, completed_at)
    SELECT num, id, subscription_id, program_id, status, failure_reason, attempts_made, claimed_at, next_attempt_at, response_status, error, seqs, ping, redelivery_of, replay_id, created_at, completed_at FROM deliveries;
DROP TABLE deliveries;
ALTER TABLE new_deliveries RENAME TO deliveries;
CREATE INDEX deliveries_by_subscription ON deliveries (subscription_id, num);
CREATE INDEX deliveries_due ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX deliveries_due_pings ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL AND ping IS NOT NULL;
CREATE INDEX deliveries_by_status ON deliveries (status, subscription_id, num) WHERE status <> 'success';
-- An answer other than 2xx, or none, is the exception, and costs a success nothing.
CREATE INDEX deliveries_by_response ON deliveries (subscription_id, response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;
CREATE INDEX deliveries_by_error ON deliveries (subscription_id, error, num) WHERE error IS NOT NULL;
CREATE INDEX deliveries_pings ON deliveries (subscription_id, num) WHERE ping IS NOT NULL;
CREATE INDEX deliveries_by_completion ON deliveries (subscription_id, completed_at, num) WHERE completed_at IS NOT NULL;

-- Without a reference to deliveries: no index leads from there to here, and each
-- removal would look through all of this table. The rows go with the delivery.
CREATE TABLE new_delivery_events (
    program_id TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    delivery   INTEGER NOT NULL,
    PRIMARY KEY (program_id, seq, delivery)
) STRICT, WITHOUT ROWID;
INSERT INTO new_delivery_events (program_id, seq, delivery) SELECT program_id, seq, delivery FROM delivery_events;
DROP TABLE delivery_events;
ALTER TABLE new_delivery_events RENAME TO delivery_events;

-- Events that were removed for their age before they could be delivered.
CREATE TABLE losses (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    events          INTEGER NOT NULL CHECK (events > 0),
    first_at        INTEGER NOT NULL,                           -- when it was found out
    last_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What the operator must hear. A row is written in the transaction of what it
-- tells of; one that is to be sent has a time for its next attempt.
CREATE TABLE alerts (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    id              TEXT    NOT NULL UNIQUE,
    name            TEXT    NOT NULL,
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    json            BLOB    NOT NULL,                           -- the event as sent
    status          TEXT    NOT NULL CHECK (status IN ('unsent', 'pending', 'retryable', 'success', 'failed')),
    attempts_made   INTEGER NOT NULL CHECK (attempts_made BETWEEN 0 AND 5),
    next_attempt_at INTEGER,
    created_at      INTEGER NOT NULL,
    CHECK ((next_attempt_at IS NOT NULL) = (status IN ('pending', 'retryable')))
) STRICT;
CREATE INDEX alerts_due ON alerts (next_attempt_at) WHERE next_attempt_at IS NOT NULL;
CREATE INDEX alerts_by_subscription ON alerts (subscription_id, num);

CREATE INDEX replays_by_subscription ON replays (subscription_id, completed_at);
CREATE INDEX replays_by_completion ON replays (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX subscriptions_deleted ON subscriptions (deleted_at) WHERE deleted_at IS NOT NULL;
