package store

// A handle groups the methods of one noun. It is a value that holds the store and
// nothing else, so creating one allocates nothing.
type (
	// Admins are the accounts that may sign in to the admin UI.
	Admins struct{ *core }
	// Alerts are the notices to the operator, sent and unsent.
	Alerts struct{ *core }
	// Audit is the log of what admins, and commands on the terminal, have changed.
	Audit struct{ *core }
	// BulkRuns redeliver or cancel all deliveries that match a filter.
	BulkRuns struct{ *core }
	// Deliveries are the deliveries of all subscriptions, with their attempts.
	Deliveries struct{ *core }
	// EventTypes are the event types that were created over the API.
	EventTypes struct{ *core }
	// Events are the logs of the programs.
	Events struct{ *core }
	// Incidents are the subscriptions that fail or have failed.
	Incidents struct{ *core }
	// Portal has the links and sessions of partners in the portal.
	Portal struct{ *core }
	// Programs are the tenants.
	Programs struct{ *core }
	// Queues are the subscription queues that the dispatcher works on: waiting
	// events, due deliveries and the health of the endpoint.
	Queues struct{ *core }
	// Replays create new deliveries for a range of the log.
	Replays struct{ *core }
	// Sessions are the sessions of admins.
	Sessions struct{ *core }
	// Subscriptions are the partners' subscriptions.
	Subscriptions struct{ *core }
	// Tokens are the access tokens of the API.
	Tokens struct{ *core }
)

// Admins returns the handle of admins.
func (s *Store) Admins() Admins { return Admins{s.core} }

// Alerts returns the handle of alerts.
func (s *Store) Alerts() Alerts { return Alerts{s.core} }

// Audit returns the handle of the audit log.
func (s *Store) Audit() Audit { return Audit{s.core} }

// BulkRuns returns the handle of bulk runs.
func (s *Store) BulkRuns() BulkRuns { return BulkRuns{s.core} }

// Deliveries returns the handle of deliveries.
func (s *Store) Deliveries() Deliveries { return Deliveries{s.core} }

// EventTypes returns the handle of event types.
func (s *Store) EventTypes() EventTypes { return EventTypes{s.core} }

// Events returns the handle of events.
func (s *Store) Events() Events { return Events{s.core} }

// Incidents returns the handle of incidents.
func (s *Store) Incidents() Incidents { return Incidents{s.core} }

// Portal returns the handle of the portal.
func (s *Store) Portal() Portal { return Portal{s.core} }

// Programs returns the handle of programs.
func (s *Store) Programs() Programs { return Programs{s.core} }

// Queues returns the handle of subscription queues.
func (s *Store) Queues() Queues { return Queues{s.core} }

// Replays returns the handle of replays.
func (s *Store) Replays() Replays { return Replays{s.core} }

// Sessions returns the handle of sessions.
func (s *Store) Sessions() Sessions { return Sessions{s.core} }

// Subscriptions returns the handle of subscriptions.
func (s *Store) Subscriptions() Subscriptions { return Subscriptions{s.core} }

// Tokens returns the handle of access tokens.
func (s *Store) Tokens() Tokens { return Tokens{s.core} }
