package doctor

import (
	"encoding/json"
	"time"

	"service/store/replica"
	"service/webhook"
)

// VerifiedSetting is the setting with the result of the last comparison.
const VerifiedSetting = "replica_verified"

// SavedVerification is the value of [VerifiedSetting].
type SavedVerification struct {
	Target string `json:"target"`
	replica.Verification
}

// ParseVerification returns the stored result for the replica at target, zero if none is stored.
func ParseVerification(text []byte, target string) replica.Verification {
	var y SavedVerification
	if err := json.Unmarshal(text, &y); err != nil || y.Target != target {
		return replica.Verification{}
	}
	return y.Verification
}

// verifiedRecently is how long damage is reported after a snapshot replaced it.
const verifiedRecently = 7 * 24 * time.Hour

const checkContent = "replica content"

// content checks the result of the last comparison. interval is the time between two
// comparisons, 0 for none.
func (x *examination) content(y replica.Verification, interval time.Duration, now time.Time) {
	const advice = "The service uploads a new snapshot, so the newest state becomes restorable again. " +
		"The log names the damaged objects. Check the bucket or disk of the replica."
	switch {
	case y.Failing:
		x.add(LevelFail, checkContent, advice, "damaged, found at %s: %s", webhook.FormatTime(y.Failed), y.Err)
	case now.Sub(y.Failed) < verifiedRecently:
		x.add(LevelWarn, checkContent, "The newest state can be restored, older states possibly not. Check the bucket or disk of the replica.",
			"equal to the database at %s; damaged at %s: %s", webhook.FormatTime(y.Time), webhook.FormatTime(y.Failed), y.Err)
	case interval == 0:
		x.add(LevelWarn, checkContent, "Start with --verify-replica 24h, so that damage is found before the replica is needed.",
			"not compared with the database")
	case y.Time.IsZero():
		x.ok(checkContent, "not compared with the database yet")
	case now.Sub(y.Time) > 3*interval+time.Hour:
		x.add(LevelWarn, checkContent, "See the log: the replica may not be reachable, or the database may be too busy.",
			"last equal to the database at %s, although compared every %s", webhook.FormatTime(y.Time), interval)
	default:
		x.ok(checkContent, "equal to the database at %s (%s of %d bytes)", webhook.FormatTime(y.Time), y.TXID, y.Bytes)
	}
}
