package web

import (
	"testing"

	"service/store"
	"service/webhook"
)

// eraseEvents erases events and their copies.
func (l *eventSource) eraseEvents(some ...webhook.Event) {
	l.t.Helper()
	for _, e := range some {
		must(l.t, l.w.store.Write(l.t.Context(), func(sw store.Write) error {
			_, err := sw.EraseEvent(e.ProgramID, e.ID, webhook.AuditEntry{})
			return err
		}))
	}
	must(l.t, l.w.store.Events().ClearErased(l.t.Context()))
}

// Pages of a delivery do not take an erased event for one that was delivered, or was too old, or can be
// resent.
func TestErasedEventsOfDelivery(t *testing.T) {
	v, w := startSignedIn(t, nil)
	l := newEventSource(t, w, "https://hooks.example.com")
	events := l.publish("content_updated", `"a"`, `"b"`, `"c"`)
	parent := l.form()
	l.end(parent, webhook.Attempt{ResponseStatus: 422})
	path := deliveryPath(parent.ID)
	shared := v.shareDelivery(parent.ID)
	l.eraseEvents(events[1])

	p := v.do("GET", path)
	p.has(t, "its events are sent one by one, 0 of 3 events delivered, 1 erased", "an event of it was erased")
	p.hasNot(t, "retention period")
	visit(t, w).do("GET", shared).has(t, "an event of it was erased")
	v.do("GET", path+"/body.json.txt").want(t, 410, "an event of it was erased")
	p = v.do("GET", path+"/redeliver")
	p.has(t, "The 2 events of")
	p.hasNot(t, "the receiver gets those a second time")

	last := l.publish("content_updated", `"d"`)
	alone := l.form()
	l.end(alone, webhook.Attempt{ResponseStatus: 503})
	l.eraseEvents(last[0])
	p = v.do("GET", deliveryPath(alone.ID))
	p.has(t, "Cancelled after 1 attempt", "will not be sent again. Its events were erased.")
	p.hasNot(t, "Resend it", `class="primary"`)
}

// A page that is open loses the payload.
func TestErasureUpdatesOpenDelivery(t *testing.T) {
	whole := deliveryRecord{DeliveryView: store.DeliveryView{Delivery: webhook.Delivery{Status: webhook.StatusSuccess}}}
	erased := whole
	erased.Erased = 1
	if whole.state() == erased.state() {
		t.Error("the state does not change")
	}
}
