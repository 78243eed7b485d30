package webhook

import (
	"slices"
	"strings"
)

// Role is what an admin may do. Each role includes the ones before it.
type Role string

// A viewer sees everything but secrets. An operator can act on subscriptions, deliveries,
// events and replays as well, and an owner on tokens, admins and settings.
const (
	RoleViewer   Role = "viewer"
	RoleOperator Role = "operator"
	RoleOwner    Role = "owner"
)

// Roles returns every role, the least privileged first.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleOwner} }

// Allows reports whether role r includes need. Unknown roles include nothing, and no role
// includes them.
func (r Role) Allows(need Role) bool {
	has, needs := slices.Index(Roles(), r), slices.Index(Roles(), need)
	return needs >= 0 && has >= needs
}

// CheckRole returns what is wrong with a role.
func CheckRole(parameter string, r Role) []Validation {
	if slices.Contains(Roles(), r) {
		return nil
	}
	names := strings.Join(namesOf(Roles()), ", ")
	if r == "" {
		return []Validation{{InvalidRequired, "is required: " + names, parameter}}
	}
	return []Validation{{InvalidValue, "must be one of " + names, parameter}}
}
