package api

import "service/webhook"

// auditHandlers serve the audit log.
type auditHandlers struct{ api *API }

func (h auditHandlers) list(req *request) (answer, error) {
	entries, next, err := h.api.store.Audit().Page(req.ctx, &req.query)
	return listAnswer(entries, webhook.NewAuditRecord, newFeedMeta(&req.query, next), err)
}
