-- The program that a platform token acted in, NULL if the token belongs to a program. The stored
-- response has data of that program and is erased with it.
ALTER TABLE idempotency_keys ADD COLUMN program_id TEXT;
CREATE INDEX idempotency_keys_by_program ON idempotency_keys (program_id) WHERE program_id IS NOT NULL;
