package store

import (
	"encoding/json"

	"service/store/doctor"
	"service/store/replica"
	"service/store/schema"
)

// ReplicaVerification is the result of comparing the replica's content with the database.
type ReplicaVerification = replica.Verification

// verifyReplica starts comparing the replica's content with the database.
func (s *core) verifyReplica(r *replica.Replication, cfg *Config) {
	var text []byte
	target := cfg.Replica.Target()
	// If the setting is missing or unreadable, the next comparison is soon.
	_ = s.db.Readers().QueryRow("SELECT value FROM settings WHERE name = '" + doctor.VerifiedSetting + "'").Scan(&text)
	r.VerifyContent(cfg.VerifyReplica, doctor.ParseVerification(text, target), func(y ReplicaVerification) {
		text, err := json.Marshal(doctor.SavedVerification{Target: target, Verification: y})
		if err == nil {
			err = s.writer.do(func(t *tx) error {
				return t.Exec(schema.Set, doctor.VerifiedSetting, text)
			})
		}
		if err != nil {
			s.logger.Warn("failed to store the result of the replica's verification", "error", err)
		}
	})
}
