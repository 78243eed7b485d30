package record

import (
	"database/sql"
	"encoding/json"
	"time"

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
	var from, to, created int64
	var completed sql.NullInt64
	err = scan(&r.ID, &r.SubscriptionID, &r.ProgramID, &r.Only, &from, &to, &r.Names, &r.Filters, &r.First, &r.After, &r.Until, &r.Status,
		&r.EventsSent, &r.Deliveries, &created, &completed)
	if err != nil {
		return r, err
	}
	r.From, r.To = time.UnixMilli(from).UTC(), time.UnixMilli(to).UTC()
	r.CreatedAt, r.CompletedAt = time.UnixMilli(created).UTC(), sqlite.FromMillis(completed)
	r.Scanned, r.Total = r.After-r.First, r.Until-r.First
	return r, json.Unmarshal([]byte(r.Names), &r.Events)
}

// Args returns the first four parameters of replayedEvents. The next two are the range of seqs.
func (r *ReplayCursor) Args() []any { return []any{r.ProgramID, r.SubscriptionID, r.Names, r.Filters} }
