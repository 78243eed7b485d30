// Package people stores the users of the service: admins with their sessions, passkeys and
// identities, the links and sessions of partners, and the audit log.
//
// It changes them in the transactions of its caller, so that an audit entry is stored together with
// the change it records, or neither is.
package people

import (
	"time"

	"crypto/sha256"

	"context"
	"service/store/list"
	"service/store/sqlite"
)

// Reads is the source of the handles, which are conversions of it.
type Reads struct {
	lists *list.Reader
	now   func() time.Time
}

// NewReads returns the reads of a database by a clock.
func NewReads(lists *list.Reader, now func() time.Time) Reads { return Reads{lists, now} }

type (
	// Admins are the accounts that may sign in to the admin UI.
	Admins Reads
	// Audit is the log of changes by admins, and by commands on the terminal.
	Audit Reads
	// Portal contains the links and sessions of partners in the portal.
	Portal Reads
	// Sessions are the sessions of admins.
	Sessions Reads
	// Shares are the links that show a delivery to a partner.
	Shares Reads
)

// Writes are the changes of one transaction. They are valid as long as the transaction, and so are
// the handles, which are conversions of Writes.
type Writes struct {
	t   *sqlite.Tx
	now func() time.Time
}

// NewWrites returns the changes of a transaction by a clock.
func NewWrites(t *sqlite.Tx, now func() time.Time) Writes { return Writes{t, now} }

type (
	// AdminWrites change accounts and invitations.
	AdminWrites Writes
	// PasskeyWrites change the passkeys of admins.
	PasskeyWrites Writes
	// PortalWrites change the links and sessions of partners in the portal.
	PortalWrites Writes
	// SessionWrites begin and end sessions of admins.
	SessionWrites Writes
	// ShareWrites end links to deliveries.
	ShareWrites Writes
)

// scan returns the function that reads a row with a context.
func (s Reads) scan(ctx context.Context) sqlite.ScanRow {
	scan, _ := s.lists.DB.Reads(ctx)
	return scan
}

// bySecret reads the row of a secret, whose SHA-256 is the argument of the query, and reports whether
// there is one. The caller checks whether it has expired.
func bySecret[T any](scan sqlite.ScanRow, query, secret string, read func(scan func(...any) error) (T, error)) (T, bool, error) {
	hash := sha256.Sum256([]byte(secret))
	row, err := read(func(dest ...any) error { return scan(query, []any{hash[:]}, dest...) })
	return row, err == nil, sqlite.NoRows(err, nil)
}
