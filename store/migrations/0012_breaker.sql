-- The circuit breaker has a reason, and its probes are remembered. The table is
-- made anew, since count may be 0 now.
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
    CHECK (count + rejected > 0),
    CHECK ((failing_since IS NULL) = (failing_reason IS NULL) AND (failing_since IS NULL) = (next_probe_at IS NULL))
) STRICT, WITHOUT ROWID;
INSERT INTO new_failures (subscription_id, count, rejected, first_at, failing_reason, failing_since, next_probe_at)
    SELECT subscription_id, count, 0, first_at, iif(failing_since IS NULL, NULL, 'unreachable'), failing_since, failing_since FROM failures;
DROP TABLE failures;
ALTER TABLE new_failures RENAME TO failures;

-- What was rejected before the circuit breaker opened can be sent again: events
-- accepted since resend_from. NULL: nothing is offered.
ALTER TABLE subscriptions ADD COLUMN resend_from INTEGER;
ALTER TABLE subscriptions ADD COLUMN max_per_second REAL CHECK (max_per_second BETWEEN 0.1 AND 1000);
