-- The schema of a new database. Generated from the migrations: go generate ./store

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE programs (
    id         TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    created_at INTEGER NOT NULL
, name TEXT NOT NULL DEFAULT '' CHECK (length(name) <= 200), max_subscriptions INTEGER CHECK (max_subscriptions BETWEEN 0 AND 1000000), rate_limit INTEGER CHECK (rate_limit BETWEEN 0 AND 1000000), max_in_flight INTEGER CHECK (max_in_flight BETWEEN 1 AND 100000), updated_at INTEGER NOT NULL DEFAULT 0, portal_origins TEXT NOT NULL DEFAULT '') STRICT, WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    token_id   TEXT    NOT NULL REFERENCES tokens (id),
    key        TEXT    NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    request    BLOB    NOT NULL CHECK (length(request) = 32),  -- SHA-256 of what was asked for
    status     INTEGER NOT NULL CHECK (status BETWEEN 200 AND 299),
    location   TEXT    NOT NULL,                               -- or ''
    body       BLOB    NOT NULL,                               -- sealed: there may be a signing secret in it
    expires_at INTEGER NOT NULL, program_id TEXT,
    PRIMARY KEY (token_id, key)
) STRICT;

CREATE INDEX idempotency_keys_by_expiry ON idempotency_keys (expires_at);

CREATE TRIGGER idempotency_key_kept AFTER INSERT ON idempotency_keys BEGIN
    INSERT INTO idempotency_use (token_id, keys, bytes) VALUES (new.token_id, 1, length(new.body))
        ON CONFLICT DO UPDATE SET keys = keys + 1, bytes = bytes + length(new.body);
END;

CREATE TRIGGER idempotency_key_removed AFTER DELETE ON idempotency_keys BEGIN
    UPDATE idempotency_use SET keys = keys - 1, bytes = bytes - length(old.body) WHERE token_id = old.token_id;
END;

CREATE INDEX idempotency_keys_by_program ON idempotency_keys (program_id) WHERE program_id IS NOT NULL;

CREATE TABLE idempotency_use (
    token_id TEXT    PRIMARY KEY REFERENCES tokens (id),
    keys     INTEGER NOT NULL,
    bytes    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    program_id  TEXT    NOT NULL REFERENCES programs (id),
    seq         INTEGER NOT NULL CHECK (seq > 0),
    id          TEXT    NOT NULL CHECK (length(id) = 36),
    name        TEXT    NOT NULL,
    received_at INTEGER NOT NULL,
    json        BLOB    NOT NULL                               -- the bytes as delivered
, traceparent TEXT) STRICT;

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
, resend_from INTEGER, max_per_second REAL CHECK (max_per_second BETWEEN 0.1 AND 1000), num INTEGER) STRICT, WITHOUT ROWID;

CREATE INDEX subscriptions_by_program ON subscriptions (program_id, created_at, id) WHERE deleted_at IS NULL;

CREATE INDEX subscriptions_deleted ON subscriptions (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE INDEX subscriptions_by_health ON subscriptions (status, id) WHERE status <> 'healthy' AND deleted_at IS NULL;

CREATE INDEX subscriptions_of_program ON subscriptions (program_id, id);

CREATE UNIQUE INDEX subscriptions_by_num ON subscriptions (num);

CREATE TABLE old_signing_secrets (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    expires_at      INTEGER NOT NULL,
    secret          BLOB    NOT NULL,                           -- sealed
    PRIMARY KEY (subscription_id, expires_at)
) STRICT, WITHOUT ROWID;

CREATE TABLE interests (
    subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),
    name            TEXT    NOT NULL,
    after_seq       INTEGER NOT NULL,
    until_seq       INTEGER CHECK (until_seq > after_seq),
    PRIMARY KEY (subscription_id, name, after_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE cursors (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    seq             INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

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

CREATE INDEX replays_by_subscription ON replays (subscription_id, completed_at);

CREATE INDEX replays_by_completion ON replays (completed_at) WHERE completed_at IS NOT NULL;

CREATE TABLE "deliveries" (
    num             INTEGER PRIMARY KEY,                        -- in order of creation
    id              TEXT    NOT NULL UNIQUE,
    subscription_id TEXT    NOT NULL,
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
    subscription    INTEGER,                                    -- the num of that; NULL in rows of earlier schemas
    started_after   INTEGER,                                    -- of the first attempt, in milliseconds after created_at
    duration_ms     INTEGER,                                    -- NULL: the attempts have rows of their own
    response        INTEGER,                                    -- 0: it was empty, 1: it was not, 2: and it was truncated
    dns_us          INTEGER,
    connect_us      INTEGER,
    tls_us          INTEGER,
    first_byte_us   INTEGER,                                    -- while the first attempt is made, a large number: the row is to have its final size
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

CREATE INDEX deliveries_by_subscription ON deliveries (subscription_id, num) WHERE subscription IS NULL;

CREATE INDEX deliveries_due ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL;

CREATE INDEX deliveries_due_pings ON deliveries (subscription_id, next_attempt_at) WHERE next_attempt_at IS NOT NULL AND ping IS NOT NULL;

CREATE INDEX deliveries_by_status ON deliveries (status, subscription_id, num) WHERE status <> 'success';

CREATE INDEX deliveries_by_response ON deliveries (subscription_id, response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;

CREATE INDEX deliveries_by_error ON deliveries (subscription_id, error, num) WHERE error IS NOT NULL;

CREATE INDEX deliveries_pings ON deliveries (subscription_id, num) WHERE ping IS NOT NULL;

CREATE INDEX deliveries_by_completion ON deliveries (subscription_id, completed_at, num) WHERE completed_at IS NOT NULL AND subscription IS NULL;

CREATE INDEX deliveries_by_trouble ON deliveries (status, num) WHERE status IN ('failed', 'retryable');

CREATE INDEX deliveries_by_answer ON deliveries (response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;

CREATE INDEX deliveries_by_fault ON deliveries (error, num) WHERE error IS NOT NULL;

CREATE INDEX deliveries_retried ON deliveries (num) WHERE attempts_made > 1;

CREATE INDEX deliveries_by_original ON deliveries (redelivery_of, num) WHERE redelivery_of IS NOT NULL;

CREATE INDEX deliveries_by_replay ON deliveries (replay_id, num) WHERE replay_id IS NOT NULL;

CREATE INDEX deliveries_open_redeliveries ON deliveries (subscription_id, num) WHERE redelivery_of IS NOT NULL AND completed_at IS NULL;

CREATE INDEX deliveries_of_subscription ON deliveries (subscription, num) WHERE subscription IS NOT NULL;

CREATE INDEX deliveries_completed ON deliveries (subscription, completed_at, num) WHERE completed_at IS NOT NULL AND subscription IS NOT NULL;

CREATE TABLE "delivery_events" (
    program_id TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    delivery   INTEGER NOT NULL,
    PRIMARY KEY (program_id, seq, delivery)
) STRICT, WITHOUT ROWID;

CREATE TABLE losses (
    subscription_id TEXT PRIMARY KEY REFERENCES subscriptions (id),
    events          INTEGER NOT NULL CHECK (events > 0),
    first_at        INTEGER NOT NULL,                           -- when it was found out
    last_at         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX losses_by_time ON losses (last_at);

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
    created_at      INTEGER NOT NULL, incident INTEGER,
    CHECK ((next_attempt_at IS NOT NULL) = (status IN ('pending', 'retryable')))
) STRICT;

CREATE INDEX alerts_due ON alerts (next_attempt_at) WHERE next_attempt_at IS NOT NULL;

CREATE INDEX alerts_by_subscription ON alerts (subscription_id, num);

CREATE TABLE admins (
    id           TEXT PRIMARY KEY,
    email        TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    password     TEXT    NOT NULL,                              -- argon2id, as a PHC string
    created_at   INTEGER NOT NULL,
    signed_in_at INTEGER
, role TEXT NOT NULL DEFAULT 'owner' CHECK (role IN ('viewer', 'operator', 'owner')), oidc_issuer TEXT CHECK (length(oidc_issuer) > 0), oidc_subject TEXT
    CHECK (length(oidc_subject) > 0 AND oidc_issuer IS NOT NULL OR oidc_subject IS NULL AND oidc_issuer IS NULL)) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX admins_by_identity ON admins (oidc_issuer, oidc_subject) WHERE oidc_subject IS NOT NULL;

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
, actor TEXT NOT NULL DEFAULT '', request_id TEXT NOT NULL DEFAULT '', salt BLOB NOT NULL DEFAULT x'', digest BLOB NOT NULL DEFAULT x'' CHECK (length(digest) IN (0, 32)), hash BLOB NOT NULL DEFAULT x'' CHECK (length(hash) IN (0, 32))) STRICT;

CREATE INDEX audit_by_subject ON audit (subject_id, num);

CREATE INDEX audit_by_admin ON audit (admin, num);

CREATE INDEX audit_by_actor ON audit (actor, num);

CREATE INDEX audit_by_program ON audit (program_id, num);

CREATE INDEX audit_prunes ON audit (num) WHERE action = 'audit.prune';

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

CREATE TABLE certificate_files (
    path       TEXT    PRIMARY KEY CHECK (length(path) BETWEEN 1 AND 1024), -- parts with / between them
    value      BLOB    NOT NULL,                                            -- sealed
    size       INTEGER NOT NULL,                                            -- in bytes, as it was given
    changed_at INTEGER NOT NULL
) STRICT;

CREATE TABLE certificate_locks (
    name       TEXT    PRIMARY KEY,
    process    TEXT    NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE "attempts" (
    delivery           INTEGER NOT NULL,
    number             INTEGER NOT NULL CHECK (number BETWEEN 1 AND 5),
    started_at         INTEGER NOT NULL,
    duration_ms        INTEGER NOT NULL CHECK (duration_ms >= 0),
    result             TEXT    NOT NULL CHECK (result = 'success' OR result = 'failed' OR result = 'retryable'),
    response_status    INTEGER,
    error              TEXT CHECK (error = 'timeout' OR error = 'dns' OR error = 'connect' OR error = 'tls' OR error = 'blocked'
                              OR error = 'protocol' OR error = 'interrupted'),
    response_header    TEXT    NOT NULL,
    response_body      BLOB    NOT NULL,
    response_truncated INTEGER NOT NULL CHECK (response_truncated = 0 OR response_truncated = 1),
    dns_us             INTEGER CHECK (dns_us >= 0),             -- of the attempt's duration; NULL for none
    connect_us         INTEGER CHECK (connect_us >= 0),
    tls_us             INTEGER CHECK (tls_us >= 0),
    first_byte_us      INTEGER CHECK (first_byte_us >= 0), response_removed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (delivery, number),
    CHECK (response_status IS NOT NULL OR error IS NOT NULL)
) STRICT, WITHOUT ROWID;

CREATE TABLE stored_responses (
    program_id TEXT    NOT NULL,
    delivery   INTEGER NOT NULL,
    number     INTEGER NOT NULL,                                -- of the attempt
    bytes      INTEGER NOT NULL,
    PRIMARY KEY (program_id, delivery, number)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER response_stored AFTER INSERT ON stored_responses BEGIN
    INSERT INTO response_use (program_id, bytes) VALUES (new.program_id, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + new.bytes;
END;

CREATE TRIGGER response_removed AFTER DELETE ON stored_responses BEGIN
    UPDATE response_use SET bytes = bytes - old.bytes WHERE program_id = old.program_id;
END;

CREATE TABLE response_use (
    program_id TEXT    PRIMARY KEY,
    bytes      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE response_marks (
    subscription_id TEXT    PRIMARY KEY,
    completed_at    INTEGER NOT NULL                            -- of their deliveries
) STRICT, WITHOUT ROWID;

CREATE TABLE delivered (
    subscription_id TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL CHECK (last_seq >= first_seq),
    PRIMARY KEY (subscription_id, name, first_seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE dictionaries (
    num     INTEGER PRIMARY KEY CHECK (num BETWEEN 1 AND 100),
    content BLOB NOT NULL
) STRICT;

CREATE TABLE responses (
    delivery INTEGER PRIMARY KEY,
    header   TEXT NOT NULL,
    body     BLOB NOT NULL
) STRICT;

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

CREATE TABLE "failures" (
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

CREATE TABLE bulk_run_waits (
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    subscription_id TEXT    NOT NULL,
    after_num       INTEGER NOT NULL,
    PRIMARY KEY (run, subscription_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE bulk_run_deliveries (
    run      INTEGER NOT NULL REFERENCES bulk_runs (num),
    delivery INTEGER NOT NULL,
    PRIMARY KEY (run, delivery)
) STRICT, WITHOUT ROWID;

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

CREATE TABLE bulk_run_subscriptions (
    subscription_id TEXT    NOT NULL,
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    done            INTEGER NOT NULL CHECK (done > 0),
    PRIMARY KEY (subscription_id, run)
) STRICT, WITHOUT ROWID;

CREATE INDEX bulk_run_subscriptions_by_run ON bulk_run_subscriptions (run);

CREATE TABLE event_types (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,               -- never used again
    name       TEXT    NOT NULL UNIQUE,
    revision   INTEGER NOT NULL CHECK (revision > 0),           -- increases with each change
    bytes      INTEGER NOT NULL CHECK (bytes > 0),              -- of the schema
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    schema     TEXT    NOT NULL CHECK (json_valid(schema))
) STRICT;

CREATE TABLE invitations (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    email      TEXT    NOT NULL UNIQUE CHECK (email = lower(email) AND length(email) BETWEEN 3 AND 254),
    role       TEXT    NOT NULL CHECK (role IN ('viewer', 'operator', 'owner')),
    invited_by TEXT    NOT NULL REFERENCES admins (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX invitations_by_admin ON invitations (invited_by);

CREATE TABLE "tokens" (
    id         TEXT PRIMARY KEY,
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32), -- SHA-256 of the secret
    hint       TEXT NOT NULL,
    program_id TEXT REFERENCES programs (id),
    user_id    TEXT NOT NULL CHECK (length(user_id) BETWEEN 1 AND 64),
    name       TEXT NOT NULL,
    scopes     TEXT NOT NULL,                                  -- separated by blanks
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    used_at    INTEGER,
    CHECK ((program_id IS NULL) = (instr(' ' || scopes || ' ', ' platform ') > 0) AND (program_id IS NOT NULL OR scopes = 'platform'))
) STRICT, WITHOUT ROWID;

CREATE INDEX tokens_by_creation ON tokens (created_at, id);

CREATE INDEX tokens_by_program ON tokens (program_id, created_at, id);

CREATE TABLE imported_ranges (
    of_table TEXT    NOT NULL CHECK (of_table IN ('deliveries', 'events', 'incidents')),
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL CHECK (last >= first),
    from_at  INTEGER NOT NULL,                                  -- of the first row
    to_at    INTEGER NOT NULL,                                  -- of the last
    PRIMARY KEY (of_table, first)
) STRICT, WITHOUT ROWID;

CREATE TABLE portal_links (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the code in the link
    id         TEXT    NOT NULL UNIQUE,
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX portal_links_by_program ON portal_links (program_id, created_at);

CREATE INDEX portal_links_by_expiry ON portal_links (expires_at);

CREATE TABLE portal_sessions (
    hash       BLOB PRIMARY KEY CHECK (length(hash) = 32),      -- SHA-256 of the secret in the cookie
    id         TEXT    NOT NULL UNIQUE,
    link_id    TEXT    NOT NULL,                                -- the link that opened it
    program_id TEXT    NOT NULL,
    role       TEXT    NOT NULL CHECK (role IN ('read', 'write')),
    address    TEXT    NOT NULL,
    agent      TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX portal_sessions_by_program ON portal_sessions (program_id, created_at);

CREATE INDEX portal_sessions_by_expiry ON portal_sessions (expires_at);

CREATE TABLE "program_states" (
    program_id TEXT    PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('erasing', 'importing', 'moving', 'moved', 'arriving')),
    at         INTEGER NOT NULL                                 -- when it began
) STRICT, WITHOUT ROWID;

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

CREATE INDEX passkeys_by_admin ON passkeys (admin_id);

CREATE TABLE audit_anchor (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    num  INTEGER NOT NULL,
    hash BLOB    NOT NULL CHECK (length(hash) = 32)
) STRICT;

CREATE TABLE shares (
    hash        BLOB PRIMARY KEY CHECK (length(hash) = 32),     -- SHA-256 of the code in the link
    id          TEXT    NOT NULL UNIQUE,
    program_id  TEXT    NOT NULL,
    delivery_id TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX shares_by_delivery ON shares (delivery_id, created_at);

CREATE INDEX shares_by_program ON shares (program_id, created_at);

CREATE INDEX shares_by_expiry ON shares (expires_at);
