package store

import (
	"context"
	"errors"

	"service/store/people"
	"service/store/record"
	"service/store/sqlite"
	"service/webhook"
)

const selectOwnDelivery = "SELECT s.deleted_at IS NOT NULL FROM deliveries d CROSS JOIN subscriptions s ON s.id = d.subscription_id " +
	"WHERE d.id = ? AND s.program_id = ?"

// Share creates a link that shows a delivery, see [people.Writes.CreateShare]. The error is a
// *webhook.Error if the program has no such delivery or cannot be used, or if the subscription is
// deleted.
func (w DeliveryWrites) Share(programID, id string, by webhook.AuditEntry) (sh webhook.Share, code string, err error) {
	if err := w.t.use(programID, ""); err != nil {
		return sh, "", err
	}
	var deleted bool
	err = w.t.Scan(selectOwnDelivery, []any{record.ShortID(id), programID}, &deleted)
	if err != nil {
		return sh, "", sqlite.NoRows(err, webhook.NotFound("delivery"))
	}
	if deleted {
		return sh, "", webhook.NewError(webhook.CodeConflict, "The subscription is deleted, so its deliveries cannot be shared.")
	}
	return w.t.people.CreateShare(programID, id, by)
}

// Shared returns the delivery that a link shows, and false if no link with the code is open, the
// subscription is deleted, or retention has removed the delivery.
func (s Deliveries) Shared(ctx context.Context, code string) (d DeliveryView, sh webhook.Share, open bool, err error) {
	sh, open, err = s.Shares().Get(ctx, code)
	if err != nil || !open {
		return d, sh, false, err
	}
	d, err = s.View(ctx, sh.DeliveryID)
	var gone *webhook.Error
	if errors.As(err, &gone) {
		return d, sh, false, nil
	}
	if err != nil || d.ProgramID != sh.ProgramID {
		return d, sh, false, err
	}
	// A partner cannot revoke the links of a subscription that it has deleted.
	err = s.db.Scan(ctx, "SELECT deleted_at IS NULL FROM subscriptions WHERE id = ?", []any{d.SubscriptionID}, &open)
	return d, sh, open, sqlite.NoRows(err, nil)
}

// Shares returns the handle of links to deliveries.
func (s Deliveries) Shares() people.Shares { return people.Shares(s.people) }
