package store

import (
	"encoding/json"
	"time"

	"service/store/replica"
	"service/webhook"
)

// ReplicaVerification is the result of comparisons of the replica with the
// database, by content.
type ReplicaVerification = replica.Verification

// verifiedSetting has the result of the last comparison, for the next process.
const verifiedSetting = "replica_verified"

// savedVerification is the value of that setting.
type savedVerification struct {
	Target string `json:"target"`
	ReplicaVerification
}

// parseVerification returns the last result of the replica at target; a zero one
// when text is of another, or none.
func parseVerification(text []byte, target string) ReplicaVerification {
	var y savedVerification
	if err := json.Unmarshal(text, &y); err != nil || y.Target != target {
		return ReplicaVerification{}
	}
	return y.ReplicaVerification
}

// verifyReplica has the content of the replica compared with the database.
func (s *core) verifyReplica(r *replica.Replication, cfg *Config) {
	var text []byte
	target := cfg.Replica.Target()
	// Without a setting, or when it cannot be read, the next comparison is soon.
	_ = s.db.Readers().QueryRow("SELECT value FROM settings WHERE name = '" + verifiedSetting + "'").Scan(&text)
	r.VerifyContent(cfg.VerifyReplica, parseVerification(text, target), func(y ReplicaVerification) {
		text, err := json.Marshal(savedVerification{target, y})
		if err == nil {
			err = s.writer.do(func(t *tx) error {
				return t.Exec("INSERT INTO settings (name, value) VALUES ('"+verifiedSetting+"', ?1) ON CONFLICT DO UPDATE SET value = ?1", text)
			})
		}
		if err != nil {
			s.logger.Warn("failed to store the result of the replica's verification", "error", err)
		}
	})
}

// verifiedRecently is for how long damage that a snapshot has replaced is reported.
const verifiedRecently = 7 * 24 * time.Hour

const checkContent = "replica content"

// content looks at the last comparison of the replica with the database. interval is
// the time between two, 0 for none.
func (x *examination) content(y ReplicaVerification, interval time.Duration, now time.Time) {
	const advice = "A snapshot of the whole database is uploaded by itself, which makes the newest state whole; the log names what is damaged. See to the bucket or the disk of the replica."
	switch {
	case y.Failing:
		x.add(LevelFail, checkContent, advice, "damaged, found at %s: %s", webhook.FormatTime(y.Failed), y.Err)
	case now.Sub(y.Failed) < verifiedRecently:
		x.add(LevelWarn, checkContent, "The newest state can be restored. States from before may not be: see to the bucket or the disk of the replica.",
			"equal to the database at %s; damaged at %s: %s", webhook.FormatTime(y.Time), webhook.FormatTime(y.Failed), y.Err)
	case interval == 0:
		x.add(LevelWarn, checkContent, "Start with --verify-replica 24h, so that damage is found before the replica is needed.", "it is not compared with the database")
	case y.Time.IsZero():
		x.ok(checkContent, "not compared with the database yet")
	case now.Sub(y.Time) > 3*interval+time.Hour:
		x.add(LevelWarn, checkContent, "See the log: the replica may not be reached, or the database be too busy.", "last equal to the database at %s, and compared every %s", webhook.FormatTime(y.Time), interval)
	default:
		x.ok(checkContent, "equal to the database at %s (%s of %d bytes)", webhook.FormatTime(y.Time), y.TXID, y.Bytes)
	}
}
