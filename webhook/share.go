package webhook

import "time"

// Bounds of shared deliveries.
const (
	ShareLife = 7 * 24 * time.Hour
	MaxShares = 1000 // open ones per program; another one ends the oldest
)

// SharePath is the path of links to deliveries, without the code.
const SharePath = "/shared/"

// Share is a link that shows one delivery to anyone who has it, read-only, until it expires
// or is revoked. The link contains a code, of which the service stores the SHA-256.
type Share struct {
	ID         string
	ProgramID  string
	DeliveryID string
	CreatedAt  time.Time
	ExpiresAt  time.Time
}
