package webhook

import "time"

const (
	// InvitationLife is the time from an invitation to the expiry of its link.
	InvitationLife = 72 * time.Hour
	// MaxInvitations is the maximum number of open invitations.
	MaxInvitations = 100
)

// Invitation lets a person become an admin with a fixed email address and role. The link
// contains a code, of which the service stores the SHA-256, and works once.
type Invitation struct {
	ID        string
	Email     string
	Role      Role
	InvitedBy string // email of the owner who created it
	CreatedAt time.Time
	ExpiresAt time.Time
}
