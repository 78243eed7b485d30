-- What needs an admin's attention is the exception: it is found without looking
-- at what is well.
CREATE INDEX subscriptions_by_health ON subscriptions (status, id) WHERE status <> 'healthy' AND deleted_at IS NULL;
CREATE INDEX losses_by_time ON losses (last_at);
