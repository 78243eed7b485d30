-- How many deliveries of a subscription a bulk run has redelivered, for the timelines of
-- its incidents.
CREATE TABLE bulk_run_subscriptions (
    subscription_id TEXT    NOT NULL,
    run             INTEGER NOT NULL REFERENCES bulk_runs (num),
    done            INTEGER NOT NULL CHECK (done > 0),
    PRIMARY KEY (subscription_id, run)
) STRICT, WITHOUT ROWID;
CREATE INDEX bulk_run_subscriptions_by_run ON bulk_run_subscriptions (run);
INSERT INTO bulk_run_subscriptions (subscription_id, run, done)
    SELECT d.subscription_id, x.run, count(*) FROM bulk_run_deliveries x CROSS JOIN deliveries d ON d.num = x.delivery GROUP BY 1, 2;
