package record

import "service/webhook"

// ProbeEntry is a probe in the log of an incident.
type ProbeEntry struct {
	At       int64             `json:"at"`
	Status   int               `json:"status,omitzero"`
	Error    webhook.ErrorCode `json:"error,omitzero"`
	Delivery int64             `json:"delivery"`
}

// LastSuccess is the last success among the deliveries that completed most recently.
var LastSuccess = "(SELECT y.completed_at FROM (SELECT d.num, d.status, d.completed_at, d.ping IS NOT NULL AS ping " + CompletedOf("x.id") +
	" ORDER BY 3 DESC, 1 DESC LIMIT 500) y WHERE y.status = 'success' AND NOT y.ping LIMIT 1)"

// SelectSizeBound selects the learned bound of the size that a receiver accepts.
const SelectSizeBound = "SELECT bytes, learned_at FROM size_bounds WHERE subscription_id = ?"
