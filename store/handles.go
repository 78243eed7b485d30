package store

import (
	"service/store/certificate"
	"service/store/people"
	"service/store/record"
	"service/store/watch"
	"service/webhook"
)

// A handle groups the methods of one noun. It is a value that contains only the store, so
// creating one allocates nothing.
type (
	// Alerts are the notices to the operator, sent and unsent.
	Alerts struct {
		*core
		record.Alerts
	}
	// BulkRuns redeliver or cancel all deliveries that match a filter.
	BulkRuns struct{ *core }
	// Deliveries are the deliveries of all subscriptions, with their attempts.
	Deliveries struct {
		*core
		record.Deliveries
	}
	// EventTypes are the event types that were created over the API.
	EventTypes struct{ *core }
	// Events are the logs of the programs.
	Events struct {
		*core
		record.Events
	}
	// Figures are the figures of the whole database for the UI, the metrics and doctor.
	Figures struct {
		*core
		record.Figures
	}
	// Holds are the pause of deliveries after a restore.
	Holds struct{ *core }
	// Incidents are the subscriptions that fail or have failed.
	Incidents struct {
		*core
		record.Incidents
	}
	// Programs are the tenants.
	Programs struct{ *core }
	// Queues are the subscription queues that the dispatcher works on: waiting
	// events, due deliveries and the health of the endpoint.
	Queues struct{ *core }
	// Replica is the database copy in a bucket, and the lease on it.
	Replica struct{ *core }
	// Replays create new deliveries for a range of the log.
	Replays struct{ *core }
	// Search finds the records to which a part of an ID or a text belongs.
	Search struct {
		*core
		record.Search
	}
	// Subscriptions are the partners' subscriptions.
	Subscriptions struct {
		*core
		record.Subscriptions
	}
	// Tokens are the access tokens of the API.
	Tokens struct{ *core }
)

// Admins returns the handle of admins.
func (s *Store) Admins() people.Admins { return people.Admins(s.people) }

// Alerts returns the handle of alerts.
func (s *Store) Alerts() Alerts { return Alerts{s.core, record.Alerts{Reads: s.records}} }

// Audit returns the handle of the audit log.
func (s *Store) Audit() people.Audit { return people.Audit(s.people) }

// BulkRuns returns the handle of bulk runs.
func (s *Store) BulkRuns() BulkRuns { return BulkRuns{s.core} }

// Certificates returns the certificate storage. Create one per process: two would not share their
// locks.
func (s *Store) Certificates() *certificate.Storage {
	return certificate.New(s.db, s.keys, s.clock.Now)
}

// Deliveries returns the handle of deliveries.
func (s *Store) Deliveries() Deliveries {
	return Deliveries{s.core, record.Deliveries{Reads: s.records}}
}

// EventTypes returns the handle of event types.
func (s *Store) EventTypes() EventTypes { return EventTypes{s.core} }

// Events returns the handle of events.
func (s *Store) Events() Events { return Events{s.core, record.Events{Reads: s.records}} }

// Figures returns the handle of the figures of the whole database.
func (s *Store) Figures() Figures { return Figures{s.core, record.Figures{Reads: s.records}} }

// Holds returns the handle of the pause after a restore.
func (s *Store) Holds() Holds { return Holds{s.core} }

// Incidents returns the handle of incidents.
func (s *Store) Incidents() Incidents { return Incidents{s.core, record.Incidents{Reads: s.records}} }

// Portal returns the handle of the portal.
func (s *Store) Portal() people.Portal { return people.Portal(s.people) }

// Programs returns the handle of programs.
func (s *Store) Programs() Programs { return Programs{s.core} }

// Queues returns the handle of subscription queues.
func (s *Store) Queues() Queues { return Queues{s.core} }

// Replica returns the handle of the replica.
func (s *Store) Replica() Replica { return Replica{s.core} }

// Replays returns the handle of replays.
func (s *Store) Replays() Replays { return Replays{s.core} }

// Search returns the handle of the search.
func (s *Store) Search() Search { return Search{s.core, record.Search{Reads: s.records}} }

// Sessions returns the handle of sessions.
func (s *Store) Sessions() people.Sessions { return people.Sessions(s.people) }

// Subscriptions returns the handle of subscriptions.
func (s *Store) Subscriptions() Subscriptions {
	return Subscriptions{s.core, record.Subscriptions{Reads: s.records}}
}

// Tokens returns the handle of access tokens.
func (s *Store) Tokens() Tokens { return Tokens{s.core} }

// Watch returns a watcher of all changes from now on, except those of deliveries.
func (s *Store) Watch() *watch.Watcher { return s.watchers.Watch(false) }

// WatchDeliveries returns a watcher of only the deliveries that are stored or changed from now on.
func (s *Store) WatchDeliveries() *watch.Watcher { return s.watchers.Watch(true) }

// The handles of a [Write] group its writes by noun in the same way. They are valid as long as it.
type (
	// BulkRunWrites begin and cancel bulk runs.
	BulkRunWrites Write
	// ChannelWrites change the channels of notifications.
	ChannelWrites Write
	// DeliveryWrites redeliver and cancel single deliveries.
	DeliveryWrites Write
	// EventTypeWrites create event types.
	EventTypeWrites Write
	// MoveWrites are the steps of the move of a program to another installation.
	MoveWrites Write
	// ProgramWrites change and erase programs.
	ProgramWrites Write
	// ReplayWrites begin and cancel replays.
	ReplayWrites Write
	// SubscriptionWrites change subscriptions and their secrets.
	SubscriptionWrites Write
	// TokenWrites create and revoke access tokens.
	TokenWrites Write
)

// Admins returns the handle of writes to accounts and invitations.
func (w Write) Admins() people.AdminWrites { return people.AdminWrites(w.t.people) }

// BulkRuns returns the handle of writes to bulk runs.
func (w Write) BulkRuns() BulkRunWrites { return BulkRunWrites(w) }

// Channels returns the handle of writes to channels.
func (w Write) Channels() ChannelWrites { return ChannelWrites(w) }

// Deliveries returns the handle of writes to deliveries.
func (w Write) Deliveries() DeliveryWrites { return DeliveryWrites(w) }

// EventTypes returns the handle of writes to event types.
func (w Write) EventTypes() EventTypeWrites { return EventTypeWrites(w) }

// Moves returns the handle of writes to moves.
func (w Write) Moves() MoveWrites { return MoveWrites(w) }

// Passkeys returns the handle of writes to passkeys.
func (w Write) Passkeys() people.PasskeyWrites { return people.PasskeyWrites(w.t.people) }

// Portal returns the handle of writes to the portal.
func (w Write) Portal() people.PortalWrites { return people.PortalWrites(w.t.people) }

// Programs returns the handle of writes to programs.
func (w Write) Programs() ProgramWrites { return ProgramWrites(w) }

// Replays returns the handle of writes to replays.
func (w Write) Replays() ReplayWrites { return ReplayWrites(w) }

// Sessions returns the handle of writes to sessions.
func (w Write) Sessions() people.SessionWrites { return people.SessionWrites(w.t.people) }

// Shares returns the handle of writes to shared deliveries.
func (w Write) Shares() people.ShareWrites { return people.ShareWrites(w.t.people) }

// Subscriptions returns the handle of writes to subscriptions.
func (w Write) Subscriptions() SubscriptionWrites { return SubscriptionWrites(w) }

// Tokens returns the handle of writes to access tokens.
func (w Write) Tokens() TokenWrites { return TokenWrites(w) }

// Audit records an action in the write that performs it, see [people.Writes.Audit].
func (w Write) Audit(e webhook.AuditEntry) error { return w.t.people.Audit(e) }
