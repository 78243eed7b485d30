package webhook

import "time"

const (
	// InvitationLife is how long the link of an invitation works.
	InvitationLife = 72 * time.Hour
	// MaxInvitations is the maximum number of open invitations.
	MaxInvitations = 100
)

// Invitation lets a person become an admin with a fixed email address and role. The link
// has a code, of which the service stores the SHA-256. It works once.
type Invitation struct {
	ID        string
	Email     string
	Role      Role
	InvitedBy string // email of the owner who created it
	CreatedAt time.Time
	ExpiresAt time.Time
}
