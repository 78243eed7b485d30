package webhook

import (
	"slices"
	"strings"
)

// Role is what an admin may do. Each role may also do what the ones before it may.
type Role string

// A viewer sees everything but secrets. An operator also acts on subscriptions,
// deliveries, events and replays. An owner also acts on tokens, admins and settings.
const (
	RoleViewer   Role = "viewer"
	RoleOperator Role = "operator"
	RoleOwner    Role = "owner"
)

// Roles returns every role, from the one that may do least.
func Roles() []Role { return []Role{RoleViewer, RoleOperator, RoleOwner} }

// Allows reports whether an admin with this role may do what needs a role. No admin may do
// what needs an unknown role, nor may one with an unknown role do anything.
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
