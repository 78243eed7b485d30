package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"service/store"
	"service/webhook"
)

// AuditPage is a page of the audit log.
type AuditPage struct {
	Entries []webhook.AuditRecord `json:"entries"`
	Next    string                `json:"next"` // cursor of the next page, "" on the last
}

// AuditPage returns a page of the audit log. The query is one of [webhook.AuditList].
func (t AuditedStore) AuditPage(ctx context.Context, values url.Values) (y AuditPage, err error) {
	q, invalid := webhook.AuditList.Parse(values)
	if invalid != nil {
		return y, invalid
	}
	entries, next, err := t.Store.Audit().Page(ctx, &q)
	y = AuditPage{make([]webhook.AuditRecord, len(entries)), next}
	for i := range entries {
		y.Entries[i] = webhook.NewAuditRecord(&entries[i])
	}
	return y, err
}

// EachAudit calls fn with every entry of the audit log, oldest first. If export is set, an
// entry records that, and is the last or one of the last.
func (t AuditedStore) EachAudit(ctx context.Context, export bool, fn func(*webhook.AuditRecord) error) error {
	if export {
		err := t.Write(ctx, func(w store.Write) error {
			return w.Audit(t.entry(webhook.ActionAuditExport, "", "", "all, as NDJSON"))
		})
		if err != nil {
			return err
		}
	}
	return t.Store.Audit().Each(ctx, func(e *webhook.AuditEntry) error {
		r := webhook.NewAuditRecord(e)
		return fn(&r)
	})
}

// handleAudit adds the handlers for service audit.
func (s *Server) handleAudit(m *http.ServeMux) {
	m.HandleFunc("GET /audit", s.respond(func(r *http.Request) (any, error) {
		return s.Store.AuditPage(r.Context(), r.URL.Query())
	}))
	m.HandleFunc("GET /audit/entries", func(w http.ResponseWriter, r *http.Request) { s.sendAudit(w, r, false) })
	m.HandleFunc("POST /audit/export", func(w http.ResponseWriter, r *http.Request) { s.sendAudit(w, r, true) })
}

// auditEnd is the last line of a stream of entries, which tells a complete one from one that
// was cut off.
type auditEnd struct {
	End   bool   `json:"end"`
	Error string `json:"error,omitempty"`
}

// sendAudit responds with the entries of the audit log, one a line.
func (s *Server) sendAudit(w http.ResponseWriter, r *http.Request, export bool) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	err := s.Store.EachAudit(r.Context(), export, func(e *webhook.AuditRecord) error { return lines.Encode(e) })
	end := auditEnd{End: true}
	var fault *webhook.AuditFault
	var refused *webhook.Error
	switch {
	case errors.As(err, &fault), errors.As(err, &refused):
		end.Error = err.Error()
	case err != nil:
		s.Logger.Error("request on the admin socket failed", "request", r.Method+" "+r.URL.Path, "error", err)
		end.Error = "The server failed. Its log has the error."
	}
	lines.Encode(end) // an error means that the client is gone
}

// AuditPage calls [AuditedStore.AuditPage] in the running server.
func (c *Client) AuditPage(ctx context.Context, values url.Values) (y AuditPage, err error) {
	return y, c.call(ctx, http.MethodGet, "/audit?"+values.Encode(), nil, &y)
}

// EachAudit calls [AuditedStore.EachAudit] in the running server.
func (c *Client) EachAudit(ctx context.Context, export bool, fn func(*webhook.AuditRecord) error) error {
	method, path := http.MethodGet, "/audit/entries"
	if export {
		method, path = http.MethodPost, "/audit/export"
	}
	return c.stream(ctx, method, path, nil, func(response io.Reader) error {
		lines := json.NewDecoder(bufio.NewReader(response))
		for {
			var line struct {
				webhook.AuditRecord
				auditEnd
			}
			switch err := lines.Decode(&line); {
			case err != nil:
				return fmt.Errorf("invalid response of the running server: %w", err)
			case line.Error != "":
				return errors.New(line.Error)
			case line.End:
				return nil
			}
			if err := fn(&line.AuditRecord); err != nil {
				return err
			}
		}
	})
}
