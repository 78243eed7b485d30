-- Fewer bytes for each event. What is stored already stays as it is.

-- What the events of a catalog have in common. The JSON of an event begins with the
-- number of the dictionary that it is compressed with; what begins with { is not
-- compressed. A dictionary is never changed, nor removed.
CREATE TABLE dictionaries (
    num     INTEGER PRIMARY KEY CHECK (num BETWEEN 1 AND 100),
    content BLOB NOT NULL
) STRICT;

-- The attempt of a delivery that succeeded at the first is kept in the delivery's row:
-- duration_ms tells such a one. All other attempts have rows of their own.
ALTER TABLE deliveries ADD COLUMN started_after INTEGER; -- milliseconds after created_at
ALTER TABLE deliveries ADD COLUMN duration_ms INTEGER;
ALTER TABLE deliveries ADD COLUMN response INTEGER;      -- 0: it was empty, 1: it was not, 2: and it was truncated
ALTER TABLE deliveries ADD COLUMN dns_us INTEGER;
ALTER TABLE deliveries ADD COLUMN connect_us INTEGER;
ALTER TABLE deliveries ADD COLUMN tls_us INTEGER;
ALTER TABLE deliveries ADD COLUMN first_byte_us INTEGER; -- while the first attempt is made, a large number: the row is to have its final size

-- The responses of these attempts, as far as they are kept.
CREATE TABLE responses (
    delivery INTEGER PRIMARY KEY,
    header   TEXT NOT NULL,
    body     BLOB NOT NULL
) STRICT;
