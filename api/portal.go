package api

import (
	"net/http"
	"time"

	"service/store"
	"service/webhook"
)

// portalLinkRecord is a link to the portal in the API.
type portalLinkRecord struct {
	ID        string             `json:"id"`
	ProgramID string             `json:"program_id"`
	URL       string             `json:"url"` // only in the response that created it
	Role      webhook.PortalRole `json:"role"`
	CreatedAt timestamp          `json:"created_at"`
	ExpiresAt timestamp          `json:"expires_at"`
}

// createPortalLink creates a link to a program's portal. No later response contains its URL.
func createPortalLink(req *request) (answer, error) {
	body, err := req.readJSON()
	if err != nil {
		return answer{}, err
	}
	n, invalid := webhook.ParsePortalLink(body, req.tenant.ID, time.Now())
	if invalid != nil {
		return answer{}, invalid
	}
	return req.create(func(w store.Write) (answer, error) {
		l, code, err := w.Programs().CreatePortalLink(n, req.actor())
		return answer{status: http.StatusCreated, data: portalLinkRecord{
			ID: l.ID, ProgramID: l.ProgramID, URL: req.api.baseURL + webhook.PortalLinkPath(code), Role: l.Role,
			CreatedAt: timestamp(l.CreatedAt), ExpiresAt: timestamp(l.ExpiresAt),
		}}, err
	})
}
