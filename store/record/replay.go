package record

import (
	"encoding/json"

	"service/store/sqlite"
	"service/webhook"
)

// ReplayColumns are the columns of a replay, see [ScanReplay].
const ReplayColumns = "id, subscription_id, program_id, only_which, from_at, to_at, names, filters, first_seq, after_seq, until_seq, " +
	"status, events, deliveries, created_at, completed_at"

// ReplayCursor is a replay with its position in the log.
type ReplayCursor struct {
	webhook.Replay
	First, After, Until int64
	Names               string
	Filters             any // of the subscription when it was created, as stored
	MaxEvents           int // of the subscription
}

// ScanReplay reads a row of ReplayColumns.
func ScanReplay(scan func(...any) error) (r ReplayCursor, err error) {
	err = scan(&r.ID, &r.SubscriptionID, &r.ProgramID, &r.Only, (*sqlite.Time)(&r.From), (*sqlite.Time)(&r.To), &r.Names, &r.Filters,
		&r.First, &r.After, &r.Until, &r.Status, &r.EventsSent, &r.Deliveries, (*sqlite.Time)(&r.CreatedAt), (*sqlite.Time)(&r.CompletedAt))
	if err != nil {
		return r, err
	}
	r.Scanned, r.Total = r.After-r.First, r.Until-r.First
	return r, json.Unmarshal([]byte(r.Names), &r.Events)
}

// Args returns the first four parameters of replayedEvents. The next two are the range of seqs.
func (r *ReplayCursor) Args() []any { return []any{r.ProgramID, r.SubscriptionID, r.Names, r.Filters} }
