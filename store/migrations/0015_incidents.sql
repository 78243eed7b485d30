-- An incident is a subscription that fails, from its first failure to its recovery.
-- What each failed attempt changes of an open incident is in failures, whose row is
-- written for every failed attempt, and is copied here when the incident is closed.
CREATE TABLE incidents (
    num             INTEGER PRIMARY KEY,                        -- in order of opening
    id              TEXT    NOT NULL UNIQUE,
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    opened_at       INTEGER NOT NULL,                           -- never falls from one num to the next
    first_at        INTEGER NOT NULL,                           -- the first failure
    succeeded_at    INTEGER,                                    -- the last success before it, if known
    closed_at       INTEGER,
    closed_by       TEXT CHECK (closed_by IN ('recovered', 'quiet', 'changed', 'deleted')),
    -- Set when it is closed:
    failing_reason  TEXT CHECK (failing_reason IN ('unreachable', 'rejecting')),
    failed          INTEGER NOT NULL DEFAULT 0,                 -- deliveries that failed for good
    failed_from     INTEGER,                                    -- when the oldest event of those was accepted
    last_at         INTEGER,                                    -- the last failed attempt
    last_status     INTEGER,
    last_error      TEXT,
    last_delivery   INTEGER,                                    -- its delivery's num
    probes          INTEGER NOT NULL DEFAULT 0,                 -- that failed
    probe_log       TEXT CHECK (json_valid(probe_log)),         -- the last of all probes
    CHECK ((closed_at IS NULL) = (closed_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX incidents_open ON incidents (subscription_id) WHERE closed_at IS NULL;
CREATE INDEX incidents_unresolved ON incidents (num) WHERE closed_at IS NULL;
CREATE INDEX incidents_by_program ON incidents (program_id, num);
CREATE INDEX incidents_by_subscription ON incidents (subscription_id, num);
CREATE INDEX incidents_closed ON incidents (closed_at) WHERE closed_at IS NOT NULL;

-- A row stays while an incident is open, though its counts are 0. (SQLite changes a
-- CHECK by a new table alone.)
CREATE TABLE new_failures (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    count           INTEGER NOT NULL CHECK (count >= 0),        -- retryable attempts since the last success
    rejected        INTEGER NOT NULL CHECK (rejected >= 0),     -- final responses other than 2xx since then
    first_at        INTEGER NOT NULL,
    rejected_name   TEXT,                                       -- the event type that was rejected last
    rejected_from   INTEGER,                                    -- when the oldest event of a rejected delivery was accepted
    failing_reason  TEXT CHECK (failing_reason IN ('unreachable', 'rejecting')),
    failing_since   INTEGER,
    next_probe_at   INTEGER,
    probes          INTEGER NOT NULL DEFAULT 0,                 -- that have failed
    pinged          INTEGER NOT NULL DEFAULT 0 CHECK (pinged IN (0, 1)), -- the next probe is a delivery
    last_at         INTEGER,                                    -- the last failed attempt
    last_status     INTEGER,
    last_error      TEXT,
    last_delivery   INTEGER,                                    -- its delivery's num
    -- Of the open incident:
    incident        INTEGER,                                    -- its num; NULL: none is open
    failed          INTEGER NOT NULL DEFAULT 0,                 -- deliveries that failed for good
    failed_from     INTEGER,                                    -- when the oldest event of those was accepted
    quiet_at        INTEGER,                                    -- when it is closed if no other fails, by the wait clock
    probe_log       TEXT CHECK (json_valid(probe_log)),
    CHECK (count + rejected > 0 OR incident IS NOT NULL),
    CHECK ((failing_since IS NULL) = (failing_reason IS NULL) AND (failing_since IS NULL) = (next_probe_at IS NULL))
) STRICT, WITHOUT ROWID;

-- What is failing now has an incident.
INSERT INTO incidents (id, program_id, subscription_id, opened_at, first_at)
    SELECT printf('%08x-%04x-7%s-8%s-%s', f.failing_since >> 16, f.failing_since & 65535, substr(lower(hex(randomblob(2))), 2), substr(lower(hex(randomblob(2))), 2), lower(hex(randomblob(6)))),
        s.program_id, s.id, f.failing_since, f.first_at
    FROM failures f JOIN subscriptions s ON s.id = f.subscription_id
    WHERE f.failing_since IS NOT NULL AND s.deleted_at IS NULL ORDER BY f.failing_since;
INSERT INTO new_failures (subscription_id, count, rejected, first_at, rejected_name, rejected_from, failing_reason, failing_since, next_probe_at, probes, pinged, incident)
    SELECT subscription_id, count, rejected, first_at, rejected_name, rejected_from, failing_reason, failing_since, next_probe_at, probes, pinged,
        (SELECT i.num FROM incidents i WHERE i.subscription_id = failures.subscription_id) FROM failures;
DROP TABLE failures;
ALTER TABLE new_failures RENAME TO failures;

-- The incident that an alert belongs to.
ALTER TABLE alerts ADD COLUMN incident INTEGER;
