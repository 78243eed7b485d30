package web

import (
	"errors"
	"strings"

	"service/store"
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
	list    *listing
	entries []webhook.AuditEntry
	pager   pager
	next    string // the address of the next page, "" on the last
}

func (w *Web) auditList(r *request) (answer, error) {
	v, err := r.listing(webhook.AuditList)
	if err != nil {
		return answer{}, err
	}
	a := auditRecords{list: v}
	if v.fault == nil {
		if r.program != "" && v.query.Filters["program_id"] == nil {
			if v.query.Filters == nil {
				v.query.Filters = make(map[string][]string)
			}
			v.query.Filters["program_id"] = []string{r.program}
		}
		var next string
		a.entries, next, err = w.cfg.Store.AuditEntries(r.Context(), &v.query)
		if errors.As(err, &v.fault) {
			err = nil
		}
		if err != nil {
			return answer{}, err
		}
		newer := ""
		if v.fault == nil && v.query.Cursor != "" {
			if newer, err = w.cfg.Store.NewerAuditEntries(r.Context(), &v.query); err != nil {
				return answer{}, err
			}
		}
		a.pager = v.feed(newer, next)
		a.next = a.pager.older
	}
	p := answer{page: auditPage(w.frame(r, "Audit"), &a)}
	if v.fault != nil {
		p.status = 400
	}
	return p, nil
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
