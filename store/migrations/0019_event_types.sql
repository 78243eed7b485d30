-- The event types that were created over the API.
CREATE TABLE event_types (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,               -- never used again
    name       TEXT    NOT NULL UNIQUE,
    revision   INTEGER NOT NULL CHECK (revision > 0),           -- increases with each change
    bytes      INTEGER NOT NULL CHECK (bytes > 0),              -- of the schema
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    schema     TEXT    NOT NULL CHECK (json_valid(schema))
) STRICT;
