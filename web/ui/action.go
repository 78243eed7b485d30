package ui

import (
	"strings"

	"service/webhook"
)

// actionVerbs are the verbs of actions whose API verb differs on pages.
var actionVerbs = map[string]string{
	"redeliver":         "resend",
	"update":            "edit",
	"password":          "change password of",
	"role":              "change role of",
	"rotate_secret":     "rotate secret of",
	"cancel_replay":     "cancel replay of",
	"revoke_invitation": "revoke invitation of",
}

// actionLabels are labels of actions that do not consist of verb and noun.
var actionLabels = map[webhook.Action]string{
	webhook.ActionSessionBegin:       "Sign in",
	webhook.ActionSessionEnd:         "Sign out",
	webhook.ActionRestoreRelease:     "Resume deliveries after restore",
	webhook.ActionSubscriptionTest:   "Send test event",
	webhook.ActionAuditExport:        "Export audit log",
	webhook.ActionAuditPrune:         "Prune audit log",
	webhook.ActionAuditContinue:      "Continue audit log after restore",
	webhook.ActionPortalLinkCreate:   "Create portal link",
	webhook.ActionPortalSessionBegin: "Open portal",
	webhook.ActionPortalSessionEnd:   "End portal access",
	webhook.ActionKeyRotate:          "Rotate encryption key",
}

// ActionLabel returns the label of an action on pages: Resend delivery, Edit subscription.
func ActionLabel(a webhook.Action) string {
	if label, ok := actionLabels[a]; ok {
		return label
	}
	noun, verb, _ := strings.Cut(string(a), ".")
	if v, ok := actionVerbs[verb]; ok {
		verb = v
	}
	return Label(verb + " " + noun)
}
