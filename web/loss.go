package web

import (
	"service/store"
	"service/web/ui"
)

// lossSummary describes how many events were lost.
func lossSummary(t store.LossTotals) string {
	return eventsLost(t.Events) + " of " + countedOf(t.Subscriptions, "subscription")
}

func eventsLost(n int64) string {
	if n == 1 {
		return "1 event"
	}
	return ui.Number(n) + " events"
}
