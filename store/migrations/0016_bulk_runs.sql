-- Bulk runs redeliver or cancel all deliveries that match a query, in the background.
CREATE TABLE bulk_runs (
    num          INTEGER PRIMARY KEY AUTOINCREMENT,             -- for the tables below
    id           TEXT    NOT NULL UNIQUE,
    program_id   TEXT    NOT NULL,                              -- '' for all programs
    action       TEXT    NOT NULL CHECK (action IN ('redeliver', 'cancel')),
    query        TEXT    NOT NULL CHECK (json_valid(query)),    -- its filters and ranges
    newest       INTEGER NOT NULL,                              -- no delivery behind this num is taken
    after_num    INTEGER NOT NULL,                              -- so far it has come
    status       TEXT    NOT NULL CHECK (status IN ('running', 'done', 'cancelled')),
    stopped      TEXT    NOT NULL,                              -- why the service ended it early
    total        INTEGER,                                       -- deliveries that match, NULL until they are counted
    done         INTEGER NOT NULL,
    skipped      TEXT    NOT NULL CHECK (json_valid(skipped)),  -- counts by reason
    admin        TEXT    NOT NULL,
    address      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    completed_at INTEGER,
    CHECK ((status = 'running') = (completed_at IS NULL))
) STRICT;
CREATE INDEX bulk_runs_running ON bulk_runs (created_at, id) WHERE status = 'running';
CREATE INDEX bulk_runs_by_age ON bulk_runs (created_at, id);

-- Subscriptions that a bulk run has left behind, since they have as many open
-- redeliveries as they may: so far the run has come with each.
CREATE TABLE bulk_run_waits (
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    subscription_id TEXT    NOT NULL,
    after_num       INTEGER NOT NULL,
    PRIMARY KEY (run, subscription_id)
) STRICT, WITHOUT ROWID;

-- The redeliveries that a bulk run has created, by their num. They are kept as long as
-- the run: a delivery may be gone.
CREATE TABLE bulk_run_deliveries (
    run      INTEGER NOT NULL REFERENCES bulk_runs (num),
    delivery INTEGER NOT NULL,
    PRIMARY KEY (run, delivery)
) STRICT, WITHOUT ROWID;
