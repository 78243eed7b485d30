-- The schema of the database. A change of it also raises Version (schema.go), see
-- docs/decisions/0056-one-schema.md.
--
-- Times are Unix milliseconds in UTC. Those that a subscription waits for (next_attempt_at, quiet_at,
-- learned_at, and expires_at of idempotency_keys and old_signing_secrets) are of a clock that does not
-- jump with the wall clock, see clock.go. counted_at is in whole seconds of the time that retention
-- counts, rounded up, see docs/decisions/0062-counted-time.md. Statuses and results are checked here
-- as well as in package webhook, so that no bug can store a state that does not exist.
--
-- A partial index has only the rows of its WHERE clause, mostly the exceptions, and costs the
-- others nothing.

-- Settings -------------------------------------------------------------------------------------

-- One row per setting of the data itself, such as key_check, which proves that secret.key is the
-- key that the secrets below are encrypted with.
CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- What was the newest when retention looked, by the time that it counts: a row that is no newer is
-- at least as old as the mark.
CREATE TABLE retention_marks (
    counted  INTEGER PRIMARY KEY,                               -- in milliseconds
    at       INTEGER NOT NULL,                                  -- by the wall clock
    delivery INTEGER NOT NULL,                                  -- the num of the newest delivery; 0 for none
    event    INTEGER NOT NULL,                                  -- the rowid of the newest event; 0 for none
    audit    INTEGER NOT NULL                                   -- the num of the newest entry of the audit log; 0 for none
) STRICT;

-- Programs -------------------------------------------------------------------------------------

-- A program is a tenant. A limit that is NULL is the installation's default.
CREATE TABLE programs (
    id                TEXT    PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    name              TEXT    NOT NULL DEFAULT '' CHECK (length(name) <= 200),
    max_subscriptions INTEGER CHECK (max_subscriptions BETWEEN 0 AND 1000000),
    rate_limit        INTEGER CHECK (rate_limit BETWEEN 0 AND 1000000),
    max_in_flight     INTEGER CHECK (max_in_flight BETWEEN 1 AND 100000),
    portal_origins    TEXT    NOT NULL DEFAULT '',              -- where its portal may be embedded in an iframe: origins, separated by blanks
    log_key           BLOB    NOT NULL DEFAULT (randomblob(32)) CHECK (length(log_key) = 32), -- authenticates the cursors of its log
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Programs that are being erased or imported, or are on their way to or from another
-- installation. Nothing of such a program can be used, and lists leave it out.
CREATE TABLE program_states (
    program_id TEXT    PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('erasing', 'importing', 'moving', 'moved', 'arriving')),
    at         INTEGER NOT NULL                                 -- when it began
) STRICT, WITHOUT ROWID;

-- The last move of a program from this installation (out) and to it (in).
CREATE TABLE program_moves (
    program_id   TEXT    NOT NULL,
    direction    TEXT    NOT NULL CHECK (direction IN ('out', 'in')),
    id           TEXT    NOT NULL,                              -- the same in both installations
    url          TEXT    NOT NULL,                              -- of the other one, '' for 'in'
    ca           TEXT    NOT NULL,                              -- certificates in PEM that verify it, or ''
    token        BLOB,                                          -- platform token of the other one, encrypted
    began_at     INTEGER NOT NULL,
    activated_at INTEGER,                                       -- when the target began to send
    emptied_at   INTEGER,                                       -- when the source had erased the records
    PRIMARY KEY (program_id, direction)
) STRICT, WITHOUT ROWID;

-- Numbers that an import has given to its rows: nums of deliveries and incidents, rowids of
-- events. In the rest of a table, time never decreases along them.
CREATE TABLE imported_ranges (
    of_table TEXT    NOT NULL CHECK (of_table IN ('deliveries', 'events', 'incidents')),
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL CHECK (last >= first),
    from_at  INTEGER NOT NULL,                                  -- of the first row
    to_at    INTEGER NOT NULL,                                  -- of the last
    ahead    INTEGER NOT NULL,                                  -- its times minus the time that retention counts, in milliseconds
    PRIMARY KEY (of_table, first)
) STRICT, WITHOUT ROWID;

-- Tokens ---------------------------------------------------------------------------------------

CREATE TABLE tokens (
    id         TEXT    PRIMARY KEY,
    hash       BLOB    NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256 of the secret
    hint       TEXT    NOT NULL,
    program_id TEXT    REFERENCES programs (id),                -- NULL for a token of the installation
    user_id    TEXT    NOT NULL CHECK (length(user_id) BETWEEN 1 AND 64),
    name       TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,                                -- separated by blanks
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,                                         -- the last use, written now and then
    CHECK (CASE WHEN program_id IS NULL THEN scopes IN ('platform', 'metrics.read') ELSE instr(' ' || scopes || ' ', ' platform ') = 0 END)
) STRICT, WITHOUT ROWID;

-- Lists of all tokens.
CREATE INDEX tokens_by_creation ON tokens (created_at, id);

-- Lists and counts of a program's tokens, and its erasure.
CREATE INDEX tokens_by_program ON tokens (program_id, created_at, id);

-- Responses that are sent again if their request is. A row is written in the transaction of what
-- its request created.
CREATE TABLE idempotency_keys (
    token_id   TEXT    NOT NULL REFERENCES tokens (id),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request    BLOB    NOT NULL CHECK (length(request) = 32),   -- SHA-256 of what was asked for
    status     INTEGER NOT NULL CHECK (status BETWEEN 200 AND 299),
    location   TEXT    NOT NULL,                                -- or ''
    body       BLOB    NOT NULL,                                -- encrypted: it may contain a signing secret
    expires_at INTEGER NOT NULL,
    program_id TEXT,                                            -- that a platform token acted in; NULL for the token of a program
    PRIMARY KEY (token_id, key)
) STRICT;

-- Housekeeping, which removes what has expired.
CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

-- The erasure of a program, which removes its data from the responses to platform tokens.
CREATE INDEX idempotency_keys_by_program ON idempotency_keys (program_id) WHERE program_id IS NOT NULL;

-- How many idempotency_keys a token has, and their bytes. The triggers maintain it.
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

-- Event types ----------------------------------------------------------------------------------

-- The event types that were created over the API.
CREATE TABLE event_types (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,               -- never reused
    name       TEXT    NOT NULL UNIQUE,
    revision   INTEGER NOT NULL CHECK (revision > 0),           -- increases with each change
    bytes      INTEGER NOT NULL CHECK (bytes > 0),              -- of the schema
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    schema     TEXT    NOT NULL CHECK (json_valid(schema))
) STRICT;

-- What the events of a catalog have in common. A dictionary is never changed or removed.
CREATE TABLE dictionaries (
    num     INTEGER PRIMARY KEY CHECK (num BETWEEN 1 AND 100),
    content BLOB    NOT NULL
) STRICT;

-- Events ---------------------------------------------------------------------------------------

-- The event log: append-only, one dense seq per program in the order of acceptance. The newest
-- event of a program is never removed, since it holds the log's head. received_at never
-- decreases from one seq to the next, whatever the clock does, so that a range of time is a
-- range of the log.
CREATE TABLE events (
    program_id  TEXT    NOT NULL REFERENCES programs (id),
    seq         INTEGER NOT NULL CHECK (seq > 0),
    id          TEXT    NOT NULL CHECK (length(id) = 36),
    name        TEXT    NOT NULL,
    received_at INTEGER NOT NULL,
    json        BLOB    NOT NULL,                               -- the bytes as delivered; compressed if it begins with the number of a dictionary
    traceparent TEXT,                                           -- the trace that it was published from, to be sent on
    erased_at   INTEGER                                         -- since then json has no payload
) STRICT;

-- The log's head, pages of the log, lists of a program's events, and retention.
CREATE UNIQUE INDEX events_by_seq ON events (program_id, seq);

-- Events by their id: requests, duplicates of a publication, search.
CREATE UNIQUE INDEX events_by_id ON events (program_id, id);

-- The dispatcher, which reads what a subscription wants from the log; replays, and lists by event type.
CREATE UNIQUE INDEX events_by_name ON events (program_id, name, seq);

-- What does not wait for a subscription any more, and the export of a program that moves.
CREATE INDEX events_erased ON events (program_id, name, seq) WHERE erased_at IS NOT NULL;

-- Erased events of which copies may be left outside of the log, see docs/decisions/0082-erasure.md.
CREATE TABLE erasures (
    program_id TEXT    NOT NULL, -- '' with the seq 1: programs that were removed
    seq        INTEGER NOT NULL,
    at         INTEGER NOT NULL,
    cleared    INTEGER NOT NULL DEFAULT 0 CHECK (cleared IN (0, 1)), -- 1: no row has a copy; free pages and the WAL may
    PRIMARY KEY (program_id, seq)
) STRICT, WITHOUT ROWID;

-- Zeros that are stored in the free pages of the database to overwrite what those contain.
CREATE TABLE blanks (
    num   INTEGER PRIMARY KEY,
    zeros BLOB    NOT NULL
) STRICT;

-- The epochs of each log, see docs/decisions/0083-cursors-with-epochs.md. A takeover or a restore may
-- have lost the newest events, whose seqs are given out again: it begins an epoch. A log without a row
-- is in its first epoch, which has the id 0. The newest 100 stay.
CREATE TABLE log_epochs (
    program_id TEXT    NOT NULL,
    num        INTEGER NOT NULL CHECK (num > 0),                -- rises from one epoch to the next
    id         INTEGER NOT NULL,                                -- random
    head       INTEGER NOT NULL CHECK (head >= 0),              -- the newest seq when it began
    PRIMARY KEY (program_id, num)
) STRICT, WITHOUT ROWID;

-- Subscriptions --------------------------------------------------------------------------------

CREATE TABLE subscriptions (
    id                   TEXT    PRIMARY KEY,
    num                  INTEGER NOT NULL CHECK (num > 0),      -- a short name for the indexes of its deliveries
    program_id           TEXT    NOT NULL REFERENCES programs (id),
    url                  TEXT    NOT NULL,
    url_number           INTEGER NOT NULL DEFAULT 1 CHECK (url_number > 0), -- of its URL, which each change increases
    active               INTEGER NOT NULL CHECK (active IN (0, 1)),
    description          TEXT    NOT NULL,
    events               TEXT    NOT NULL CHECK (json_valid(events)), -- names, an array
    filters              TEXT    CHECK (filters IS NULL OR json_valid(filters)),   -- of some of them, an object by name
    ordered              INTEGER NOT NULL CHECK (ordered IN (0, 1)),
    max_in_flight        INTEGER NOT NULL CHECK (max_in_flight >= 0), -- 0: the operator's default
    max_per_second       REAL    CHECK (max_per_second BETWEEN 0.1 AND 1000),
    max_events           INTEGER CHECK (max_events BETWEEN 1 AND 1000), -- in one delivery; NULL: the operator's batch size
    authorization_header BLOB,                                  -- encrypted
    header_names         TEXT    NOT NULL DEFAULT '[]' CHECK (json_valid(header_names)), -- an array, sorted
    headers              BLOB    CHECK ((headers IS NULL) = (header_names = '[]')), -- encrypted: names and values, an array
    signing_secret       BLOB    NOT NULL,                      -- encrypted
    status               TEXT    NOT NULL DEFAULT 'healthy' CHECK (status IN ('healthy', 'failing', 'disabled')),
    disabled_reason      TEXT    CHECK ((disabled_reason IS NOT NULL) = (status = 'disabled')),
    created_by           TEXT    NOT NULL,                      -- user id
    revision             INTEGER NOT NULL,                      -- increases with each change
    created_at           INTEGER NOT NULL,
    updated_at           INTEGER NOT NULL,
    deleted_at           INTEGER,
    counted_at           INTEGER,                               -- when it was deleted
    CHECK ((deleted_at IS NULL) = (counted_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Lists and counts of a program's subscriptions, and what waits for them.
CREATE INDEX subscriptions_by_program ON subscriptions (program_id, created_at, id) WHERE deleted_at IS NULL;

-- Housekeeping, which fails the deliveries of deleted subscriptions, and retention.
CREATE INDEX subscriptions_deleted ON subscriptions (counted_at) WHERE counted_at IS NOT NULL;

-- Lists of what needs attention.
CREATE INDEX subscriptions_by_health ON subscriptions (status, id) WHERE status <> 'healthy' AND deleted_at IS NULL;

-- Deleted ones too, whose deliveries stay: lists of deliveries and subscriptions over all
-- programs, erasure.
CREATE INDEX subscriptions_of_program ON subscriptions (program_id, id);

-- The next num.
CREATE UNIQUE INDEX subscriptions_by_num ON subscriptions (num);

-- Secrets that were replaced, and sign beside the new one until they expire.
CREATE TABLE old_signing_secrets (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    expires_at      INTEGER NOT NULL,
    secret          BLOB    NOT NULL,                           -- encrypted
    PRIMARY KEY (subscription_id, expires_at)
) STRICT, WITHOUT ROWID;

-- The URLs that a subscription had before, for its attempts: the newest 100, and of those the ones
-- that a stored delivery can name. An older one may be there without its URL.
CREATE TABLE old_urls (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    number          INTEGER NOT NULL CHECK (number > 0),
    url             TEXT    NOT NULL,
    in_flight       TEXT    NOT NULL CHECK (json_valid(in_flight)), -- attempts when it was replaced: an array of ids of deliveries and numbers
    last_delivery   INTEGER NOT NULL,                           -- the num of the newest delivery by then; later ones have another URL
    PRIMARY KEY (subscription_id, number)
) STRICT, WITHOUT ROWID;

-- Which part of the log a subscription asked for: the events of this name with
-- after_seq < seq <= until_seq. A row has no until_seq while the subscription is active and names
-- the event. Pausing it or dropping the name sets until_seq, so that what was accepted before is
-- still delivered, and what is accepted later is not. Of these events, the filter selects some; another
-- filter is another row.
CREATE TABLE interests (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    name            TEXT    NOT NULL,
    after_seq       INTEGER NOT NULL,
    until_seq       INTEGER CHECK (until_seq > after_seq),
    filter          TEXT    CHECK (filter IS NULL OR json_valid(filter)),         -- NULL: all of them
    PRIMARY KEY (subscription_id, name, after_seq)
) STRICT, WITHOUT ROWID;

-- Every event up to seq has been put into a delivery, or was not for this subscription.
CREATE TABLE cursors (
    subscription_id TEXT    PRIMARY KEY REFERENCES subscriptions (id),
    seq             INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What a subscription has accepted, of deliveries that were removed before their events: all
-- events of a name with first_seq <= seq <= last_seq. The ranges of a name do not overlap, and
-- one ends where an event of the name follows that is not known to be accepted.
CREATE TABLE delivered (
    subscription_id TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL CHECK (last_seq >= first_seq),
    PRIMARY KEY (subscription_id, name, first_seq)
) STRICT, WITHOUT ROWID;

-- Events that were removed for their age before they could be delivered.
CREATE TABLE losses (
    subscription_id TEXT    PRIMARY KEY REFERENCES subscriptions (id),
    events          INTEGER NOT NULL CHECK (events > 0),
    first_at        INTEGER NOT NULL,                           -- when it was found out
    last_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Lists of what needs attention.
CREATE INDEX losses_by_time ON losses (last_at);

-- The size of deliveries that a receiver refused with 413: later ones have fewer bytes of events.
CREATE TABLE size_bounds (
    subscription_id TEXT    PRIMARY KEY REFERENCES subscriptions (id),
    bytes           INTEGER NOT NULL CHECK (bytes > 0),         -- half of what was refused
    learned_at      INTEGER NOT NULL                            -- the bound doubles each day after it
) STRICT, WITHOUT ROWID;

-- The circuit breaker of a subscription: its failed attempts in a row, pings aside, and what each
-- changes of its open incident. There is no row without either.
CREATE TABLE failures (
    subscription_id TEXT    PRIMARY KEY REFERENCES subscriptions (id),
    count           INTEGER NOT NULL CHECK (count >= 0),        -- retryable attempts since the last success
    rejected        INTEGER NOT NULL CHECK (rejected >= 0),     -- final responses other than 2xx since then
    first_at        INTEGER NOT NULL,
    rejected_name   TEXT,                                       -- the event type that was rejected last
    failing_reason  TEXT    CHECK (failing_reason IN ('unreachable', 'rejecting')),
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
    quiet_at        INTEGER,                                    -- when it is closed if no other fails
    probe_log       TEXT    CHECK (probe_log IS NULL OR json_valid(probe_log)),
    CHECK (count + rejected > 0 OR incident IS NOT NULL),
    CHECK ((failing_since IS NULL) = (failing_reason IS NULL) AND (failing_since IS NULL) = (next_probe_at IS NULL))
) STRICT, WITHOUT ROWID;

-- Replays --------------------------------------------------------------------------------------

-- A replay is a second, bounded cursor over the log.
CREATE TABLE replays (
    id              TEXT    PRIMARY KEY,
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    program_id      TEXT    NOT NULL,
    only_which      TEXT    NOT NULL CHECK (only_which IN ('missed', 'failed', 'all')),
    from_at         INTEGER NOT NULL,
    to_at           INTEGER NOT NULL,
    names           TEXT    NOT NULL CHECK (json_valid(names)),
    filters         TEXT    CHECK (filters IS NULL OR json_valid(filters)),        -- of the subscription when it was created
    first_seq       INTEGER NOT NULL,                           -- it began after this one
    after_seq       INTEGER NOT NULL,                           -- it has come this far
    until_seq       INTEGER NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('running', 'done', 'cancelled')),
    events          INTEGER NOT NULL,                           -- sent so far
    deliveries      INTEGER NOT NULL,
    created_at      INTEGER NOT NULL,
    completed_at    INTEGER,
    counted_at      INTEGER,                                    -- when it completed
    CHECK (first_seq <= after_seq AND after_seq <= until_seq),
    CHECK ((status = 'running') = (completed_at IS NULL) AND (completed_at IS NULL) = (counted_at IS NULL))
) STRICT, WITHOUT ROWID;

-- The dispatcher, and the subscription page.
CREATE INDEX replays_running ON replays (subscription_id, created_at, id) WHERE status = 'running';

-- Lists of a subscription's replays, and the timelines of its incidents.
CREATE INDEX replays_by_subscription ON replays (subscription_id, completed_at);

-- Retention.
CREATE INDEX replays_by_completion ON replays (counted_at) WHERE counted_at IS NOT NULL;

-- Deliveries -----------------------------------------------------------------------------------

-- A delivery is queued (attempts_made 0, next_attempt_at set), in flight (claimed_at set),
-- waiting for its next attempt (retryable) or completed. The attempt of a delivery that succeeded
-- at the first, to the URL that was current when it was created, is in the row itself; all others are
-- in attempts.
--
-- The newest delivery of an erased program stays as a row without content, so that its num is not
-- reused: its ids are '' and its subscription is 0.
--
-- There is no reference to subscriptions, which would read the index of all deliveries when one
-- is removed.
CREATE TABLE deliveries (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    id              TEXT    NOT NULL UNIQUE,                    -- in its short form
    subscription_id TEXT    NOT NULL,
    program_id      TEXT    NOT NULL,
    status          TEXT    NOT NULL,
    failure_reason  TEXT,
    attempts_made   INTEGER NOT NULL CHECK (attempts_made BETWEEN 0 AND 5),
    claimed_at      INTEGER,                                    -- when the attempt now in flight was counted
    next_attempt_at INTEGER,
    response_status INTEGER,                                    -- of the last attempt that has ended
    error           TEXT,                                       -- the same
    seqs            TEXT    CHECK (seqs IS NULL OR json_valid(seqs)),           -- its events' seqs in the log, an array
    ping            BLOB,                                       -- or the one event of a ping
    redelivery_of   TEXT,                                       -- the id of the delivery whose events these are
    split_of        TEXT,                                       -- the id of the failed delivery that these events were sent with
    replay_id       TEXT,                                       -- the replay that formed it
    created_at      INTEGER NOT NULL,                           -- never decreases from one num to the next
    completed_at    INTEGER,
    counted_at      INTEGER NOT NULL,                           -- when it completed; until then, when it was created
    subscription    INTEGER NOT NULL,                           -- the subscription's num
    started_after   INTEGER,                                    -- of the first attempt, in milliseconds after created_at
    duration_ms     INTEGER,                                    -- NULL: the attempts have rows of their own
    response        INTEGER,                                    -- 0: it was empty, 1: it was not, 2: and it was truncated
    dns_us          INTEGER,
    connect_us      INTEGER,
    tls_us          INTEGER,
    first_byte_us   INTEGER,                                    -- a large number while the first attempt is made, so that the row has its final size
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
                              AND failure_reason IN ('attempts_exhausted', 'rejected', 'blocked', 'subscription_deleted', 'unsubscribed', 'expired', 'cancelled')
        ELSE 0 END)
) STRICT;

-- The dispatcher, which claims what is due; what waits, in lists and on pages.
CREATE INDEX deliveries_due ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

-- The dispatcher, which sends pings while other deliveries wait.
CREATE INDEX deliveries_due_pings ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL AND ping IS NOT NULL;

-- A subscription's deliveries by status; what was in flight at a crash; the failures on its page.
CREATE INDEX deliveries_by_status ON deliveries (status, subscription_id, num) WHERE status <> 'success';

-- A subscription's deliveries by response status.
CREATE INDEX deliveries_by_response ON deliveries (subscription_id, response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;

-- A subscription's deliveries by error.
CREATE INDEX deliveries_by_error ON deliveries (subscription_id, error, num) WHERE error IS NOT NULL;

-- Lists of pings.
CREATE INDEX deliveries_pings ON deliveries (subscription_id, num) WHERE ping IS NOT NULL;

-- Deliveries of all programs by status, by response status and by error, and those that were
-- retried.
CREATE INDEX deliveries_by_trouble ON deliveries (status, num) WHERE status IN ('failed', 'retryable');
CREATE INDEX deliveries_by_answer ON deliveries (response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;
CREATE INDEX deliveries_by_fault ON deliveries (error, num) WHERE error IS NOT NULL;
CREATE INDEX deliveries_retried ON deliveries (num) WHERE attempts_made > 1;

-- The redeliveries of a delivery.
CREATE INDEX deliveries_by_original ON deliveries (redelivery_of, num) WHERE redelivery_of IS NOT NULL;

-- The deliveries of a split, and whether one of them is open. A delivery that completes changes
-- nothing in it.
CREATE INDEX deliveries_by_split ON deliveries (split_of) WHERE split_of IS NOT NULL;

-- The deliveries of a replay, and their results.
CREATE INDEX deliveries_by_replay ON deliveries (replay_id, num) WHERE replay_id IS NOT NULL;

-- How many redeliveries of a subscription are open, which is limited.
CREATE INDEX deliveries_open_redeliveries ON deliveries (subscription_id, num) WHERE redelivery_of IS NOT NULL AND completed_at IS NULL;

-- A subscription's deliveries in the order of their creation: lists, its page, erasure.
CREATE INDEX deliveries_of_subscription ON deliveries (subscription, num);

-- A subscription's deliveries in the order of their completion: lists, the last success, and
-- which responses of successes are removed.
CREATE INDEX deliveries_completed ON deliveries (subscription, completed_at, num) WHERE completed_at IS NOT NULL;

-- The deliveries of an event. There is no reference to deliveries, which would search all of this
-- table when one is removed. The rows are removed with the delivery.
CREATE TABLE delivery_events (
    program_id TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    delivery   INTEGER NOT NULL,
    PRIMARY KEY (program_id, seq, delivery)
) STRICT, WITHOUT ROWID;

-- The open splits. A split sends the events of a delivery of several events that failed for good
-- again, in deliveries of their own. It ends when these have completed.
CREATE TABLE splits (
    delivery        INTEGER PRIMARY KEY,                        -- the num of the failed delivery
    subscription_id TEXT    NOT NULL,
    whole           INTEGER NOT NULL CHECK (whole IN (0, 1)),   -- 1: the events are sent as one delivery, 0: each by itself
    after_seq       INTEGER NOT NULL                            -- it has come this far; the largest number: nothing is left to send
) STRICT;

-- The dispatcher, which sends the oldest first.
CREATE INDEX splits_by_subscription ON splits (subscription_id, delivery);

-- The events of failed deliveries that no delivery to their subscription has delivered, neither
-- before nor since. Rows are removed by a delivery that succeeds, and with the failed delivery.
CREATE TABLE undelivered (
    subscription INTEGER NOT NULL,                              -- the subscription's num
    seq          INTEGER NOT NULL,
    delivery     INTEGER NOT NULL,                              -- the num of the failed delivery
    incident     INTEGER,                                       -- the num of the incident that it belongs to
    PRIMARY KEY (subscription, seq, delivery)
) STRICT, WITHOUT ROWID;

-- What a split has yet to send, whether a delivery is recovered, and retention.
CREATE INDEX undelivered_by_delivery ON undelivered (delivery, seq);

-- How many events of an incident are undelivered.
CREATE INDEX undelivered_by_incident ON undelivered (incident, seq) WHERE incident IS NOT NULL;

-- The failed deliveries whose events have all been delivered since.
CREATE TABLE recovered (
    delivery INTEGER PRIMARY KEY,
    at       INTEGER NOT NULL                                   -- when the last of them was
) STRICT;

-- Attempts -------------------------------------------------------------------------------------

-- The words are compared one by one: for IN, SQLite builds a table for each row that is stored.
-- There is no reference to deliveries, which would look each up. The rows are removed with the
-- delivery. The parts of the duration are in microseconds, and NULL if there was none, such as a
-- DNS lookup on a reused connection. The table has rowids, so that an erasure finds all responses in the
-- leaves of its tree.
CREATE TABLE attempts (
    delivery           INTEGER NOT NULL,
    number             INTEGER NOT NULL CHECK (number BETWEEN 1 AND 5),
    started_at         INTEGER NOT NULL,
    duration_ms        INTEGER NOT NULL CHECK (duration_ms >= 0),
    result             TEXT    NOT NULL CHECK (result = 'success' OR result = 'failed' OR result = 'retryable'),
    response_status    INTEGER,
    error              TEXT    CHECK (error = 'timeout' OR error = 'dns' OR error = 'connect' OR error = 'tls' OR error = 'blocked'
                                  OR error = 'protocol' OR error = 'interrupted'),
    response_header    TEXT    NOT NULL,
    response_body      BLOB    NOT NULL,
    response_truncated INTEGER NOT NULL CHECK (response_truncated = 0 OR response_truncated = 1),
    dns_us             INTEGER CHECK (dns_us >= 0),
    connect_us         INTEGER CHECK (connect_us >= 0),
    tls_us             INTEGER CHECK (tls_us >= 0),
    first_byte_us      INTEGER CHECK (first_byte_us >= 0),
    response_removed   INTEGER NOT NULL DEFAULT 0,              -- 1: there was one, which is no longer stored
    url_number         INTEGER,                                 -- of the URL that it was sent to; NULL: the one current when the delivery was created
    PRIMARY KEY (delivery, number),
    CHECK (response_status IS NOT NULL OR error IS NOT NULL)
) STRICT;

-- The responses of the attempts that are in the rows of their deliveries, as long as they are
-- stored.
CREATE TABLE responses (
    delivery INTEGER PRIMARY KEY,
    header   TEXT    NOT NULL,
    body     BLOB    NOT NULL
) STRICT;

-- The sizes of the responses of attempts that did not succeed, of each program, the oldest first.
CREATE TABLE stored_responses (
    program_id TEXT    NOT NULL,
    delivery   INTEGER NOT NULL,
    number     INTEGER NOT NULL,                                -- of the attempt
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (program_id, delivery, number)
) STRICT, WITHOUT ROWID;

-- The sum of a program's stored_responses. The triggers maintain it.
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

-- The responses of a subscription's successful attempts are removed up to this time; no row: none
-- are.
CREATE TABLE response_marks (
    subscription_id TEXT    PRIMARY KEY,
    completed_at    INTEGER NOT NULL                            -- of their deliveries
) STRICT, WITHOUT ROWID;

-- Bulk runs ------------------------------------------------------------------------------------

-- A bulk run redelivers or cancels all deliveries that match a query, in the background.
CREATE TABLE bulk_runs (
    num          INTEGER PRIMARY KEY AUTOINCREMENT,             -- for the tables below
    id           TEXT    NOT NULL UNIQUE,
    program_id   TEXT    NOT NULL,                              -- '' for all programs
    action       TEXT    NOT NULL CHECK (action IN ('redeliver', 'cancel')),
    query        TEXT    NOT NULL CHECK (json_valid(query)),    -- its filters and ranges
    newest       INTEGER NOT NULL,                              -- the highest num of a delivery that it may take
    after_num    INTEGER NOT NULL,                              -- it has come this far
    status       TEXT    NOT NULL CHECK (status IN ('running', 'done', 'cancelled')),
    stopped      TEXT    NOT NULL,                              -- why the service ended it early
    total        INTEGER,                                       -- deliveries that match, NULL until they are counted
    done         INTEGER NOT NULL,
    skipped      TEXT    NOT NULL CHECK (json_valid(skipped)),  -- counts by reason
    admin        TEXT    NOT NULL,
    address      TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    completed_at INTEGER,
    counted_at   INTEGER,                                       -- when it completed
    CHECK ((status = 'running') = (completed_at IS NULL) AND (completed_at IS NULL) = (counted_at IS NULL))
) STRICT;

-- The goroutine that runs them.
CREATE INDEX bulk_runs_running ON bulk_runs (created_at, id) WHERE status = 'running';

-- Lists of bulk runs.
CREATE INDEX bulk_runs_by_age ON bulk_runs (created_at, id);

-- Subscriptions that a bulk run has left behind, since they have the maximum of open redeliveries,
-- and how far it has come with each.
CREATE TABLE bulk_run_waits (
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    subscription_id TEXT    NOT NULL,
    after_num       INTEGER NOT NULL,
    PRIMARY KEY (run, subscription_id)
) STRICT, WITHOUT ROWID;

-- The redeliveries that a bulk run has created, by their num. They are kept as long as the run: a
-- delivery may be gone.
CREATE TABLE bulk_run_deliveries (
    run      INTEGER NOT NULL REFERENCES bulk_runs (num),
    delivery INTEGER NOT NULL,
    PRIMARY KEY (run, delivery)
) STRICT, WITHOUT ROWID;

-- How many deliveries of a subscription a bulk run has redelivered, for the timelines of its
-- incidents.
CREATE TABLE bulk_run_subscriptions (
    subscription_id TEXT    NOT NULL,
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    done            INTEGER NOT NULL CHECK (done > 0),
    PRIMARY KEY (subscription_id, run)
) STRICT, WITHOUT ROWID;

-- Retention and erasure, which remove them with their run.
CREATE INDEX bulk_run_subscriptions_by_run ON bulk_run_subscriptions (run);

-- Incidents ------------------------------------------------------------------------------------

-- An incident is a subscription that fails, from its first failure to its recovery. What changes
-- while it is open is in failures, whose row is written for every failed attempt, and is copied
-- here when the incident is closed.
CREATE TABLE incidents (
    num             INTEGER PRIMARY KEY,                        -- in order of opening
    id              TEXT    NOT NULL UNIQUE,
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    opened_at       INTEGER NOT NULL,                           -- never decreases from one num to the next
    first_at        INTEGER NOT NULL,                           -- the first failure
    succeeded_at    INTEGER,                                    -- the last success before it, if known
    closed_at       INTEGER,
    closed_by       TEXT    CHECK (closed_by IN ('healthy', 'quiet', 'changed', 'deleted')),
    counted_at      INTEGER,                                    -- when it was closed
    -- Set when it is closed:
    failing_reason  TEXT    CHECK (failing_reason IN ('unreachable', 'rejecting')),
    failed          INTEGER NOT NULL DEFAULT 0,                 -- deliveries that failed for good
    failed_from     INTEGER,                                    -- when the oldest event of those was accepted
    last_at         INTEGER,                                    -- the last failed attempt
    last_status     INTEGER,
    last_error      TEXT,
    last_delivery   INTEGER,                                    -- its delivery's num
    probes          INTEGER NOT NULL DEFAULT 0,                 -- that failed
    probe_log       TEXT    CHECK (probe_log IS NULL OR json_valid(probe_log)),      -- the last of all probes
    CHECK ((closed_at IS NULL) = (closed_by IS NULL) AND (closed_at IS NULL) = (counted_at IS NULL))
) STRICT;

-- At most one is open per subscription.
CREATE UNIQUE INDEX incidents_open ON incidents (subscription_id) WHERE closed_at IS NULL;

-- Lists and counts of the open ones.
CREATE INDEX incidents_unresolved ON incidents (num) WHERE closed_at IS NULL;

-- Lists of a program's incidents.
CREATE INDEX incidents_by_program ON incidents (program_id, num);

-- Lists of a subscription's incidents, its newest one, and erasure.
CREATE INDEX incidents_by_subscription ON incidents (subscription_id, num);

-- Retention.
CREATE INDEX incidents_closed ON incidents (counted_at) WHERE counted_at IS NOT NULL;

-- Alerts ---------------------------------------------------------------------------------------

-- What the operator must know. A row is written in the transaction of what it reports. One that is
-- to be sent has a time for its next attempt.
CREATE TABLE alerts (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    id              TEXT    NOT NULL UNIQUE,
    name            TEXT    NOT NULL,
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    incident        INTEGER,                                    -- the num of the incident that it belongs to
    json            BLOB    NOT NULL,                           -- the event as sent
    status          TEXT    NOT NULL CHECK (status IN ('unsent', 'pending', 'retryable', 'success', 'failed')),
    attempts_made   INTEGER NOT NULL CHECK (attempts_made BETWEEN 0 AND 5),
    next_attempt_at INTEGER,
    created_at      INTEGER NOT NULL,
    counted_at      INTEGER NOT NULL,                           -- when it was created
    CHECK ((next_attempt_at IS NOT NULL) = (status IN ('pending', 'retryable')))
) STRICT;

-- The queue of --alert-url.
CREATE INDEX alerts_due ON alerts (subscription_id, num) WHERE next_attempt_at IS NOT NULL;

-- The timelines of a subscription's incidents, and erasure.
CREATE INDEX alerts_by_subscription ON alerts (subscription_id, num);

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
    program_id      TEXT    NOT NULL,                           -- of the alert; '': a test
    subscription_id TEXT    NOT NULL,                           -- the same
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
    counted_at      INTEGER NOT NULL,                           -- when it was created
    CHECK ((next_attempt_at IS NOT NULL) = (status IN ('pending', 'retryable'))),
    CHECK ((alert IS NULL) = (json IS NOT NULL))
) STRICT;

-- The queues of channels.
CREATE INDEX alert_sends_due ON alert_sends (channel_id, subscription_id, num) WHERE next_attempt_at IS NOT NULL;

-- The page of a channel.
CREATE INDEX alert_sends_by_channel ON alert_sends (channel_id, num);

-- How an alert was sent, and erasure.
CREATE INDEX alert_sends_by_alert ON alert_sends (alert) WHERE alert IS NOT NULL;

-- Statistics -----------------------------------------------------------------------------------

-- The results of attempts, pings aside, per minute (for two days) and per hour: of each
-- subscription, of each program (subscription_id is ''), and of all (program_id too).
CREATE TABLE stats (
    program_id      TEXT    NOT NULL,
    subscription_id TEXT    NOT NULL,
    span            INTEGER NOT NULL CHECK (span IN (60000, 3600000)), -- milliseconds
    at              INTEGER NOT NULL,                           -- its beginning
    success         INTEGER NOT NULL,
    failed          INTEGER NOT NULL,
    retryable       INTEGER NOT NULL,
    answers         TEXT    NOT NULL CHECK (json_valid(answers)), -- counts by status or error
    durations       TEXT    NOT NULL CHECK (json_valid(durations)), -- counts by class of duration
    counted_at      INTEGER NOT NULL,                           -- when the row was created
    PRIMARY KEY (program_id, subscription_id, span, at)
) STRICT, WITHOUT ROWID;

-- Retention.
CREATE INDEX stats_by_age ON stats (span, counted_at);

-- Admins ---------------------------------------------------------------------------------------

CREATE TABLE admins (
    id           TEXT    PRIMARY KEY,
    email        TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    password     TEXT    NOT NULL,                              -- argon2id, as a PHC string; '' for none
    role         TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
    oidc_issuer  TEXT    CHECK (length(oidc_issuer) > 0),       -- who the admin is at an OpenID Connect provider
    oidc_subject TEXT,
    created_at   INTEGER NOT NULL,
    signed_in_at INTEGER,
    CHECK (length(oidc_subject) > 0 AND oidc_issuer IS NOT NULL OR oidc_subject IS NULL AND oidc_issuer IS NULL)
) STRICT, WITHOUT ROWID;

-- Sign-in at a provider.
CREATE UNIQUE INDEX admins_by_identity ON admins (oidc_issuer, oidc_subject) WHERE oidc_subject IS NOT NULL;

CREATE TABLE sessions (
    hash       BLOB    PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the secret in the cookie
    id         TEXT    NOT NULL UNIQUE,                         -- its name in lists
    admin_id   TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    address    TEXT    NOT NULL,                                -- that it was begun from
    agent      TEXT    NOT NULL,                                -- the browser, as it says
    created_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Lists of an admin's sessions, and their end.
CREATE INDEX sessions_by_admin ON sessions (admin_id, created_at);

-- The removal of expired sessions, at sign-in.
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

-- WebAuthn credentials of admins.
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

-- Lists of an admin's passkeys, and sign-in.
CREATE INDEX passkeys_by_admin ON passkeys (admin_id);

-- Links with which a person becomes an admin. An invitation ends with the admin who created it.
CREATE TABLE invitations (
    hash       BLOB    PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    email      TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    role       TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
    invited_by TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- SQLite, which removes an admin's invitations with the admin.
CREATE INDEX invitations_by_admin ON invitations (invited_by);

-- Portal ---------------------------------------------------------------------------------------

-- Links that open the portal of a program once.
CREATE TABLE portal_links (
    hash       BLOB    PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How many links a program has, which is limited, and their removal.
CREATE INDEX portal_links_by_program ON portal_links (program_id, created_at);

-- The removal of expired links, when one is created.
CREATE INDEX portal_links_by_expiry ON portal_links (expires_at);

-- Sessions of partners in the portal.
CREATE TABLE portal_sessions (
    hash       BLOB    PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the secret in the cookie
    id         TEXT    NOT NULL UNIQUE,
    link_id    TEXT    NOT NULL,                                -- the link that opened it
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    address    TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Lists of a program's portal sessions, and their end.
CREATE INDEX portal_sessions_by_program ON portal_sessions (program_id, created_at);

-- The removal of expired sessions, when one begins.
CREATE INDEX portal_sessions_by_expiry ON portal_sessions (expires_at);

-- Links that show one delivery to anyone who has them.
CREATE TABLE shares (
    hash        BLOB    PRIMARY KEY CHECK (length(hash) = 32),  -- SHA-256 of the code in the link
    id          TEXT    NOT NULL UNIQUE,
    program_id  TEXT    NOT NULL,
    delivery_id TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The links to a delivery, on its page.
CREATE INDEX shares_by_delivery ON shares (delivery_id, created_at);

-- How many links a program has, which is limited, and erasure.
CREATE INDEX shares_by_program ON shares (program_id, created_at);

-- The removal of expired links, when one is created.
CREATE INDEX shares_by_expiry ON shares (expires_at);

-- Audit log ------------------------------------------------------------------------------------

-- Who did what, when and from where. It is only appended to, and every entry is hashed over the
-- one before, see docs/decisions/0051-audit-chain.md.
CREATE TABLE audit (
    num        INTEGER PRIMARY KEY,                             -- in order of time
    id         TEXT    NOT NULL UNIQUE,
    at         INTEGER NOT NULL,                                -- never decreases from one num to the next
    actor      TEXT    NOT NULL,                                -- terminal, service, or admin:, token: or portal: with an id
    admin      TEXT    NOT NULL,                                -- the email, or terminal
    address    TEXT    NOT NULL,                                -- '' for the terminal
    request_id TEXT    NOT NULL,                                -- '' for none
    action     TEXT    NOT NULL,                                -- such as subscription.pause
    program_id TEXT    NOT NULL,                                -- '' for none
    subject_id TEXT    NOT NULL,                                -- of the record that it was done to, '' for none
    detail     TEXT    NOT NULL,                                -- in words, without secrets
    salt       BLOB    NOT NULL,                                -- of digest; x'' once admin, address and detail are erased
    digest     BLOB    NOT NULL CHECK (length(digest) = 32),    -- of admin, address and detail
    hash       BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;

-- The filters of the audit log. audit_by_subject also shows who began a replay, and
-- audit_by_program what an erasure removes.
CREATE INDEX audit_by_subject ON audit (subject_id, num);
CREATE INDEX audit_by_admin ON audit (admin, num);
CREATE INDEX audit_by_actor ON audit (actor, num);
CREATE INDEX audit_by_program ON audit (program_id, num);

-- The last entry about what retention has removed, for the verification.
CREATE INDEX audit_prunes ON audit (num) WHERE action = 'audit.prune';

-- The newest entry that retention has removed; no row if it has removed none.
CREATE TABLE audit_anchor (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    num  INTEGER NOT NULL,
    hash BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;

-- Certificates ---------------------------------------------------------------------------------

-- What certmagic stores: certificates with their keys, accounts at their issuer, OCSP responses. A
-- restored service has them too.
CREATE TABLE certificate_files (
    path       TEXT    PRIMARY KEY CHECK (length(path) BETWEEN 1 AND 1024), -- parts with / between them
    value      BLOB    NOT NULL,                                -- encrypted
    size       INTEGER NOT NULL,                                -- in bytes, as it was given
    changed_at INTEGER NOT NULL
) STRICT;

-- Locks on certificates. A lock of another process counts for nothing, since only one process has
-- the database open.
CREATE TABLE certificate_locks (
    name       TEXT    PRIMARY KEY,
    process    TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
