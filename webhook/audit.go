package webhook

import "time"

// Action is an audited action of an admin, an access token or the operator in a terminal.
type Action string

// The actions in the audit log. Their subject is the record that the name starts
// with; for an admin and a session it is the admin.
const (
	ActionSubscriptionCreate       Action = "subscription.create"
	ActionSubscriptionUpdate       Action = "subscription.update"
	ActionSubscriptionPause        Action = "subscription.pause"
	ActionSubscriptionResume       Action = "subscription.resume"
	ActionSubscriptionPing         Action = "subscription.ping"
	ActionSubscriptionProbe        Action = "subscription.probe"
	ActionSubscriptionTest         Action = "subscription.test"
	ActionSubscriptionRotateSecret Action = "subscription.rotate_secret"
	ActionSubscriptionReplay       Action = "subscription.replay"
	ActionSubscriptionCancelReplay Action = "subscription.cancel_replay"
	ActionSubscriptionDelete       Action = "subscription.delete"
	ActionSubscriptionExport       Action = "subscription.export"
	ActionDeliveryRedeliver        Action = "delivery.redeliver"
	ActionDeliveryCancel           Action = "delivery.cancel"
	ActionDeliveryShare            Action = "delivery.share"
	ActionDeliveryRevokeShare      Action = "delivery.revoke_share"
	ActionDeliveryExport           Action = "delivery.export"
	ActionEventPublish             Action = "event.publish"
	ActionEventExport              Action = "event.export"
	ActionEventErase               Action = "event.erase"
	ActionEventTypeCreate          Action = "event_type.create"
	ActionEventTypeUpdate          Action = "event_type.update"
	ActionEventTypeDelete          Action = "event_type.delete"
	ActionProgramCreate            Action = "program.create"
	ActionProgramUpdate            Action = "program.update"
	ActionTokenCreate              Action = "token.create"
	ActionTokenRevoke              Action = "token.revoke"
	ActionTokenExport              Action = "token.export"
	ActionAuditExport              Action = "audit.export"
	ActionAuditPrune               Action = "audit.prune"    // by retention, see [AuditPrune]
	ActionAuditContinue            Action = "audit.continue" // after a restore, see [AuditGap]
	ActionProgramDelete            Action = "program.delete"
	ActionPortalLinkCreate         Action = "portal_link.create"
	ActionPortalSessionBegin       Action = "portal_session.begin"
	ActionPortalSessionEnd         Action = "portal_session.end"
	ActionProgramExport            Action = "program.export"
	ActionProgramImport            Action = "program.import"
	ActionProgramMove              Action = "program.move"       // frozen here to move to another installation
	ActionProgramMoved             Action = "program.moved"      // the other installation has it
	ActionProgramMoveAbort         Action = "program.move_abort" // active here again
	ActionProgramArrive            Action = "program.arrive"     // complete here, but not active
	ActionProgramActivate          Action = "program.activate"   // complete here, and active
	ActionKeyRotate                Action = "key.rotate"
	ActionBackupCreate             Action = "backup.create"
	ActionAdminCreate              Action = "admin.create"
	ActionAdminPassword            Action = "admin.password"
	ActionAdminRole                Action = "admin.role"
	ActionAdminRemove              Action = "admin.remove"
	ActionAdminLink                Action = "admin.link"
	ActionAdminInvite              Action = "admin.invite"
	ActionAdminRevokeInvitation    Action = "admin.revoke_invitation"
	ActionPasskeyCreate            Action = "passkey.create"
	ActionPasskeyRemove            Action = "passkey.remove"
	ActionPasskeyRefuse            Action = "passkey.refuse"
	ActionSessionBegin             Action = "session.begin"
	ActionSessionEnd               Action = "session.end"
	ActionSessionRefuse            Action = "session.refuse"
	ActionRestoreRelease           Action = "restore.release"
	ActionAlertChannelCreate       Action = "alert_channel.create"
	ActionAlertChannelUpdate       Action = "alert_channel.update"
	ActionAlertChannelTest         Action = "alert_channel.test"
	ActionAlertChannelDelete       Action = "alert_channel.delete"
)

var actions = [...]Action{
	ActionSubscriptionCreate, ActionSubscriptionUpdate, ActionSubscriptionPause, ActionSubscriptionResume, ActionSubscriptionPing,
	ActionSubscriptionProbe, ActionSubscriptionTest, ActionSubscriptionRotateSecret, ActionSubscriptionReplay,
	ActionSubscriptionCancelReplay, ActionSubscriptionDelete, ActionSubscriptionExport,
	ActionDeliveryRedeliver, ActionDeliveryCancel, ActionDeliveryShare, ActionDeliveryRevokeShare,
	ActionDeliveryExport, ActionEventPublish, ActionEventExport, ActionEventErase,
	ActionEventTypeCreate, ActionEventTypeUpdate, ActionEventTypeDelete,
	ActionProgramCreate, ActionProgramUpdate, ActionProgramDelete, ActionProgramExport, ActionProgramImport,
	ActionPortalLinkCreate, ActionPortalSessionBegin, ActionPortalSessionEnd,
	ActionProgramMove, ActionProgramMoved, ActionProgramMoveAbort, ActionProgramArrive, ActionProgramActivate,
	ActionTokenCreate, ActionTokenRevoke, ActionTokenExport, ActionAuditExport, ActionAuditPrune, ActionAuditContinue, ActionKeyRotate,
	ActionBackupCreate,
	ActionAdminCreate, ActionAdminPassword, ActionAdminRole, ActionAdminRemove, ActionAdminLink, ActionAdminInvite,
	ActionAdminRevokeInvitation,
	ActionPasskeyCreate, ActionPasskeyRemove, ActionPasskeyRefuse, ActionSessionBegin, ActionSessionEnd, ActionSessionRefuse,
	ActionRestoreRelease,
	ActionAlertChannelCreate, ActionAlertChannelUpdate, ActionAlertChannelTest, ActionAlertChannelDelete,
}

// Actions returns every action.
func Actions() []Action { return actions[:] }

// Terminal is the actor of commands that were run on the service's own machine.
const Terminal = "terminal"

// Provider is the actor for changes that an OpenID Connect provider reported about an unknown
// account.
const Provider = "provider"

// Service is the actor for what the service itself does to complete an action.
const Service = "service"

// Prefixes of the ID in [AuditEntry.Actor].
const (
	ActorAdmin  = "admin:"
	ActorToken  = "token:"
	ActorPortal = "portal:"
)

// MaxAuditDetail is the maximum length of the detail of an [AuditEntry], in bytes.
const MaxAuditDetail = 1000

// AuditEntry is an entry of the audit log: who did what, when and from where.
//
// Entries are never changed, except that erasing a program erases Admin, Address, Detail and
// Salt of its entries. Entries are removed only from the beginning of the log.
type AuditEntry struct {
	Num       int64 // position in the log, from 1 and without gaps
	ID        string
	At        time.Time
	Actor     string // [Terminal], [Service], or a prefix with an ID; derived from Admin
	Admin     string // email, [Terminal], [Service], or the Actor of a token or a session of the portal
	Address   string // "" for the terminal
	RequestID string // "" for none
	Action    Action
	ProgramID string // "" for none
	SubjectID string // ID of the record that was acted on, "" for none
	Detail    string // text without secrets, partly from outside

	Salt     []byte    // of Digest, random; empty once the personal parts are erased
	Digest   AuditHash // see [AuditEntry.PersonalDigest]
	Previous AuditHash // Hash of the entry before
	Hash     AuditHash // see [AuditEntry.ChainHash]
}
