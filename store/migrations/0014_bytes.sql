-- Fewer bytes for each event. What is stored already stays as it is.

-- What the events of a catalog have in common. The JSON of an event begins with the
-- number of the dictionary that it is compressed with; what begins with { is not
-- compressed. A dictionary is never changed, nor removed.
CREATE TABLE dictionaries (
    num     INTEGER PRIMARY KEY CHECK (num BETWEEN 1 AND 100),
    content BLOB NOT NULL
) STRICT;

-- A subscription has a short name for the indexes of its deliveries.
ALTER TABLE subscriptions ADD COLUMN num INTEGER;
UPDATE subscriptions SET num = x.num FROM (SELECT id, row_number() OVER (ORDER BY created_at, id) AS num FROM subscriptions) x WHERE x.id = subscriptions.id;
CREATE UNIQUE INDEX subscriptions_by_num ON subscriptions (num);

-- The attempt of a delivery that succeeded at the first is kept in the delivery's row.
-- The columns are added to the text of the table, and the reference to subscriptions is
-- taken out of it, which changes no row: ALTER TABLE would read them all, once for each
-- column. Without an index of all rows by subscription_id, that reference would read
-- them all when a subscription is removed. The two indexes keep the rows that they have,
-- and get no more.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(replace(sql, 'subscription_id TEXT    NOT NULL REFERENCES subscriptions (id),', 'subscription_id TEXT    NOT NULL,'),
    '    CHECK ((seqs IS NULL)', '    subscription    INTEGER,                                    -- the num of that; NULL in rows of earlier schemas
    started_after   INTEGER,                                    -- of the first attempt, in milliseconds after created_at
    duration_ms     INTEGER,                                    -- NULL: the attempts have rows of their own
    response        INTEGER,                                    -- 0: it was empty, 1: it was not, 2: and it was truncated
    dns_us          INTEGER,
    connect_us      INTEGER,
    tls_us          INTEGER,
    first_byte_us   INTEGER,                                    -- while the first attempt is made, a large number: the row is to have its final size
    CHECK ((seqs IS NULL)') WHERE type = 'table' AND name = 'deliveries';
UPDATE sqlite_schema SET sql = 'CREATE INDEX deliveries_by_subscription ON deliveries (subscription_id, num) WHERE subscription IS NULL'
    WHERE type = 'index' AND name = 'deliveries_by_subscription';
UPDATE sqlite_schema SET sql = 'CREATE INDEX deliveries_by_completion ON deliveries (subscription_id, completed_at, num) WHERE completed_at IS NOT NULL AND subscription IS NULL'
    WHERE type = 'index' AND name = 'deliveries_by_completion';
PRAGMA writable_schema = RESET;
CREATE INDEX deliveries_of_subscription ON deliveries (subscription, num) WHERE subscription IS NOT NULL;
CREATE INDEX deliveries_completed ON deliveries (subscription, completed_at, num) WHERE completed_at IS NOT NULL AND subscription IS NOT NULL;

-- The responses of these attempts, as far as they are kept.
CREATE TABLE responses (
    delivery INTEGER PRIMARY KEY,
    header   TEXT NOT NULL,
    body     BLOB NOT NULL
) STRICT;
