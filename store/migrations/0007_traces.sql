-- The trace that an event was published from (W3C traceparent), to be sent on.
ALTER TABLE events ADD COLUMN traceparent TEXT;
