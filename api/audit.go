package api

import (
	"encoding/json"
	"io"

	"service/webhook"
)

func listAudit(req *request) (answer, error) {
	entries, next, err := req.api.store.Audit().Page(req.ctx, &req.query)
	return listAnswer(entries, webhook.NewAuditRecord, newFeedMeta(&req.query, next), err)
}

// exportAudit is audit, preceded by an entry that records the export.
func (cfg OwnerConfig) exportAudit(req *request) (answer, error) {
	if err := cfg.record(req, webhook.ActionAuditExport, "", "all, as NDJSON"); err != nil {
		return answer{}, err
	}
	return cfg.audit(req)
}

// audit sends every entry of the audit log, oldest first, one per line.
func (cfg OwnerConfig) audit(req *request) (answer, error) {
	return req.streamed(func(w io.Writer) error {
		lines := json.NewEncoder(w)
		return req.api.store.Audit().Each(req.ctx, func(e *webhook.AuditEntry) error { return lines.Encode(webhook.NewAuditRecord(e)) })
	}), nil
}
