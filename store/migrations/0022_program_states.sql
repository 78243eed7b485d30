-- Programs that are being erased or imported, in steps. Nothing of such a program can be
-- used, and lists leave it out.
CREATE TABLE program_states (
    program_id TEXT    PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('erasing', 'importing')),
    at         INTEGER NOT NULL                                 -- when it began
) STRICT, WITHOUT ROWID;

-- Numbers that an import has given to its rows: nums of deliveries and incidents, rowids of
-- events. In the rest of a table, time never decreases along them.
CREATE TABLE imported_ranges (
    of_table TEXT    NOT NULL CHECK (of_table IN ('deliveries', 'events', 'incidents')),
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL CHECK (last >= first),
    from_at  INTEGER NOT NULL,                                  -- of the first row
    to_at    INTEGER NOT NULL,                                  -- of the last
    PRIMARY KEY (of_table, first)
) STRICT, WITHOUT ROWID;
