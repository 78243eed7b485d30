package api

import (
	"net/http"

	"service/store"
	"service/webhook"
)

// shareRecord is a link to a delivery in the API.
type shareRecord struct {
	ID         string    `json:"id"`
	DeliveryID string    `json:"delivery_id"`
	URL        string    `json:"url"`
	CreatedAt  timestamp `json:"created_at"`
	ExpiresAt  timestamp `json:"expires_at"`
}

// revokedShares is the number of revoked links.
type revokedShares struct {
	Revoked int `json:"revoked"`
}

// shareDelivery creates a read-only link to a delivery. Only this response contains the URL.
func shareDelivery(req *request) (answer, error) {
	return req.create(func(w store.Write) (answer, error) {
		sh, code, err := w.Deliveries().Share(req.program(), req.delivery.ID, req.actor())
		r := shareRecord{sh.ID, sh.DeliveryID, req.api.baseURL + webhook.SharePath + code, timestamp(sh.CreatedAt), timestamp(sh.ExpiresAt)}
		return answer{status: http.StatusCreated, data: r}, err
	})
}

// revokeShares ends all links to a delivery.
func revokeShares(req *request) (answer, error) {
	var did revokedShares
	err := req.api.store.Write(req.ctx, func(w store.Write) (err error) {
		did.Revoked, err = w.Shares().RevokeAll(req.program(), req.delivery.ID, req.actor())
		return err
	})
	return answer{data: did}, err
}
