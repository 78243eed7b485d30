package web

import (
	"net/http"
	"strings"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// entry is what the audit is told of an action of the admin who sent the
// request, to be recorded in the write that does it:
//
//	w.cfg.Store.Write(ctx, func(sw store.Write) error {
//		… do it with sw …
//		return sw.Audit(r.entry(action, programID, subjectID, detail))
//	})
//
// The subject is the id of the record that it was done to. The detail is in
// words, without secrets.
func (r *request) entry(action webhook.Action, programID, subjectID, detail string) webhook.AuditEntry {
	return webhook.AuditEntry{Admin: r.admin, Address: addressText(r), Action: action, ProgramID: programID, SubjectID: subjectID, Detail: detail}
}

// audit records an action that no write of the store does, such as an export,
// or that takes several.
func (w *Web) audit(r *request, action webhook.Action, programID, subjectID, detail string) error {
	return w.cfg.Store.Write(r.Context(), func(sw store.Write) error {
		return sw.Audit(r.entry(action, programID, subjectID, detail))
	})
}

// auditRecords is a page of the audit.
type auditRecords struct {
	list    *ui.Listing
	entries []webhook.AuditEntry
	pager   ui.Pager
	next    string // the address of the next page, "" on the last
	failed  string // the id of this request when the rows could not be loaded, "" when they could
}

func (w *Web) auditList(r *request) (answer, error) {
	v, err := r.listing(webhook.AuditList)
	if err != nil {
		return answer{}, err
	}
	a := auditRecords{list: v}
	status := 0
	if v.Error == nil {
		if r.program != "" && v.Query.Filters["program_id"] == nil {
			if v.Query.Filters == nil {
				v.Query.Filters = make(map[string][]string)
			}
			v.Query.Filters["program_id"] = []string{r.program}
		}
		if a.failed, status, err = w.loaded(r, v, w.readAudit(r, &a)); err != nil {
			return answer{}, err
		}
	}
	if v.Error != nil {
		status = http.StatusBadRequest
	}
	return answer{page: auditPage(w.frame(r, "Audit"), &a), status: status}, nil
}

// readAudit fills a page.
func (w *Web) readAudit(r *request, a *auditRecords) (err error) {
	q := &a.list.Query
	var newer, next string
	if a.entries, next, err = w.cfg.Store.AuditEntries(r.Context(), q); err != nil {
		return err
	}
	if q.Cursor != "" {
		if newer, err = w.cfg.Store.NewerAuditEntries(r.Context(), q); err != nil {
			return err
		}
	}
	a.pager = a.list.FeedPages(newer, next)
	a.next = a.pager.Older
	return nil
}

// subjectPath is the page of what an entry is about, "" for none.
func subjectPath(e *webhook.AuditEntry) string {
	if e.SubjectID == "" {
		return ""
	}
	switch noun := nounOf(e.Action); noun {
	case "subscription":
		return subscriptionPath(e.SubjectID)
	case "delivery":
		if strings.HasPrefix(e.SubjectID, runPrefix) {
			return runPath(e.SubjectID)
		}
		return deliveryPath(e.SubjectID)
	case "event":
		return eventPath(e.ProgramID, e.SubjectID)
	case "token":
		return tokenPath(e.SubjectID)
	}
	return ""
}
