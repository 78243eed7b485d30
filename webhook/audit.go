package webhook

import "time"

// Action is something that an admin did, or the operator at the terminal.
type Action string

// The actions that the audit knows. Their subject is the record that their name
// begins with; of an admin and of a session it is the admin.
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
	ActionDeliveryExport           Action = "delivery.export"
	ActionEventPublish             Action = "event.publish"
	ActionEventExport              Action = "event.export"
	ActionTokenCreate              Action = "token.create"
	ActionTokenRevoke              Action = "token.revoke"
	ActionTokenExport              Action = "token.export"
	ActionAuditExport              Action = "audit.export"
	ActionKeyRotate                Action = "key.rotate"
	ActionBackupCreate             Action = "backup.create"
	ActionAdminCreate              Action = "admin.create"
	ActionAdminPassword            Action = "admin.password"
	ActionAdminRemove              Action = "admin.remove"
	ActionSessionBegin             Action = "session.begin"
	ActionSessionEnd               Action = "session.end"
	ActionRestoreRelease           Action = "restore.release"
	ActionAlertChannelCreate       Action = "alert_channel.create"
	ActionAlertChannelUpdate       Action = "alert_channel.update"
	ActionAlertChannelTest         Action = "alert_channel.test"
	ActionAlertChannelDelete       Action = "alert_channel.delete"
)

var actions = [...]Action{
	ActionSubscriptionCreate, ActionSubscriptionUpdate, ActionSubscriptionPause, ActionSubscriptionResume, ActionSubscriptionPing,
	ActionSubscriptionProbe, ActionSubscriptionTest, ActionSubscriptionRotateSecret, ActionSubscriptionReplay, ActionSubscriptionCancelReplay, ActionSubscriptionDelete, ActionSubscriptionExport,
	ActionDeliveryRedeliver, ActionDeliveryCancel, ActionDeliveryExport, ActionEventPublish, ActionEventExport,
	ActionTokenCreate, ActionTokenRevoke, ActionTokenExport, ActionAuditExport, ActionKeyRotate, ActionBackupCreate,
	ActionAdminCreate, ActionAdminPassword, ActionAdminRemove, ActionSessionBegin, ActionSessionEnd,
	ActionRestoreRelease,
	ActionAlertChannelCreate, ActionAlertChannelUpdate, ActionAlertChannelTest, ActionAlertChannelDelete,
}

// Actions returns every action there is.
func Actions() []Action { return actions[:] }

func actionWords() []string {
	var words []string
	for _, a := range actions {
		words = append(words, string(a))
	}
	return words
}

// Terminal is who the audit says did what was done by a command on the
// service's own machine.
const Terminal = "terminal"

// MaxAuditDetail bounds the detail of an [AuditEntry], in bytes.
const MaxAuditDetail = 1000

// AuditEntry says who did what, when, and from where. The audit is only
// appended to.
type AuditEntry struct {
	ID        string
	At        time.Time
	Admin     string // the email, or [Terminal]
	Address   string // "" for the terminal
	Action    Action
	ProgramID string // "" for none
	SubjectID string // of the record that it was done to, "" for none
	Detail    string // in words, without secrets; text from outside
}
