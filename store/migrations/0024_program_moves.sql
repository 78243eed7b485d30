-- A program may also be on its way to or from another installation. (SQLite changes a CHECK only
-- with a new table.)
CREATE TABLE new_program_states (
    program_id TEXT    PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('erasing', 'importing', 'moving', 'moved', 'arriving')),
    at         INTEGER NOT NULL                                 -- when it began
) STRICT, WITHOUT ROWID;
INSERT INTO new_program_states (program_id, state, at) SELECT program_id, state, at FROM program_states;
DROP TABLE program_states;
ALTER TABLE new_program_states RENAME TO program_states;

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
