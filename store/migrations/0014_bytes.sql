-- Fewer bytes for each event. What is stored already stays as it is.

-- What the events of a catalog have in common. The JSON of an event begins with the
-- number of the dictionary that it is compressed with; what begins with { is not
-- compressed. A dictionary is never changed, nor removed.
CREATE TABLE dictionaries (
    num     INTEGER PRIMARY KEY CHECK (num BETWEEN 1 AND 100),
    content BLOB NOT NULL
) STRICT;
