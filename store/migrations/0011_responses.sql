-- The responses that attempts keep are bounded. No step here looks at the
-- attempts: what was stored before is counted, and removed, in steps afterwards.
ALTER TABLE attempts ADD COLUMN response_removed INTEGER NOT NULL DEFAULT 0; -- 1: there was one, which is no longer stored

-- The responses of attempts that did not succeed, of each program, the oldest first.
CREATE TABLE stored_responses (
    program_id TEXT    NOT NULL,
    delivery   INTEGER NOT NULL,
    number     INTEGER NOT NULL,                                -- of the attempt
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (program_id, delivery, number)
) STRICT, WITHOUT ROWID;

-- What a program's rows above amount to. The triggers keep it.
CREATE TABLE response_use (
    program_id TEXT    PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER response_stored AFTER INSERT ON stored_responses BEGIN
    INSERT INTO response_use (program_id, bytes) VALUES (new.program_id, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + new.bytes;
END;
CREATE TRIGGER response_removed AFTER DELETE ON stored_responses BEGIN
    UPDATE response_use SET bytes = bytes - old.bytes WHERE program_id = old.program_id;
END;

-- The responses of successful attempts up to this time are removed; no row: none is.
CREATE TABLE response_marks (
    subscription_id TEXT    PRIMARY KEY,
    completed_at    INTEGER NOT NULL                            -- of their deliveries
) STRICT, WITHOUT ROWID;

-- The deliveries up to this one are yet to be counted, from the newest on.
INSERT INTO settings (name, value) SELECT 'responses_uncounted', CAST(CAST(max(num) AS TEXT) AS BLOB) FROM deliveries HAVING max(num) IS NOT NULL;

CREATE INDEX deliveries_open_redeliveries ON deliveries (subscription_id, num) WHERE redelivery_of IS NOT NULL AND completed_at IS NULL;
