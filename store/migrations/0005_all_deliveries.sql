-- The admins' list over all programs finds what is exceptional without looking
-- at what is well. None of these costs a delivery that succeeds at once.
CREATE INDEX deliveries_by_trouble ON deliveries (status, num) WHERE status IN ('failed', 'retryable');
CREATE INDEX deliveries_by_answer ON deliveries (response_status, num) WHERE response_status NOT BETWEEN 200 AND 299;
CREATE INDEX deliveries_by_fault ON deliveries (error, num) WHERE error IS NOT NULL;
CREATE INDEX deliveries_retried ON deliveries (num) WHERE attempts_made > 1;
CREATE INDEX deliveries_by_original ON deliveries (redelivery_of, num) WHERE redelivery_of IS NOT NULL;
CREATE INDEX deliveries_by_replay ON deliveries (replay_id, num) WHERE replay_id IS NOT NULL;
-- Deleted ones too: their deliveries stay.
CREATE INDEX subscriptions_of_program ON subscriptions (program_id, id);
