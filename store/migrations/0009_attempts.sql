-- Storing an attempt costs a third of what it did. The words are compared one by
-- one: for a list of them, IN, SQLite builds a table for each row that is stored.
-- And there is no reference to deliveries, which would look each up: the rows go
-- with the delivery.
CREATE TABLE new_attempts (
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
    first_byte_us      INTEGER CHECK (first_byte_us >= 0),
    PRIMARY KEY (delivery, number),
    CHECK (response_status IS NOT NULL OR error IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO new_attempts (delivery, number, started_at, duration_ms, result, response_status, error, response_header, response_body, response_truncated,
        dns_us, connect_us, tls_us, first_byte_us)
    SELECT delivery, number, started_at, duration_ms, result, response_status, error, response_header, response_body, response_truncated,
        dns_us, connect_us, tls_us, first_byte_us FROM attempts;
DROP TABLE attempts;
ALTER TABLE new_attempts RENAME TO attempts;
