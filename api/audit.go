package api

import "service/webhook"

// auditHandlers serve the audit log.
type auditHandlers struct{ api *API }

func (h auditHandlers) list(req *request) (answer, error) {
	entries, next, err := h.api.store.Audit().Page(req.ctx, &req.query)
	if err != nil {
		return answer{}, err
	}
	records := make([]webhook.AuditRecord, len(entries))
	for i := range entries {
		records[i] = webhook.NewAuditRecord(&entries[i])
	}
	return answer{data: records, meta: newFeedMeta(&req.query, next)}, nil
}
