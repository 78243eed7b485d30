-- What a subscription has accepted, of deliveries that were removed before their
-- events: all events of a name with first_seq <= seq <= last_seq. The ranges of a
-- name do not overlap, and one ends where an event of the name follows that is not
-- known to be accepted.
CREATE TABLE delivered (
    subscription_id TEXT    NOT NULL,
    name            TEXT    NOT NULL,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL CHECK (last_seq >= first_seq),
    PRIMARY KEY (subscription_id, name, first_seq)
) STRICT, WITHOUT ROWID;
