package api

import (
	"encoding/json"
	"io"

	"service/webhook"
)

// auditHandlers serve the audit log.
type auditHandlers struct{ api *API }

func (h auditHandlers) list(req *request) (answer, error) {
	entries, next, err := h.api.store.Audit().Page(req.ctx, &req.query)
	return listAnswer(entries, webhook.NewAuditRecord, newFeedMeta(&req.query, next), err)
}

// exportAudit is audit, preceded by an entry that records the export.
func (h ownerHandlers) exportAudit(req *request) (answer, error) {
	if err := h.record(req, webhook.ActionAuditExport, "", "all, as NDJSON"); err != nil {
		return answer{}, err
	}
	return h.audit(req)
}

// audit sends every entry of the audit log, oldest first, one per line.
func (h ownerHandlers) audit(req *request) (answer, error) {
	return req.streamed(func(w io.Writer) error {
		lines := json.NewEncoder(w)
		return h.api.store.Audit().Each(req.ctx, func(e *webhook.AuditEntry) error { return lines.Encode(webhook.NewAuditRecord(e)) })
	}), nil
}
