package web

import (
	"encoding/hex"
	"strings"

	"service/store/list"
	"service/store/record"
	"service/web/ui"
	"service/webhook"
)

// auditPages are the pages of the audit log.
type auditPages struct{ *site }

// entry is the audit entry of an action of the admin who sent the request. The write that changes
// the data also records the entry:
//
//	w.store.Write(ctx, func(sw store.Write) error {
//		… do it with sw …
//		return sw.Audit(r.entry(action, programID, subjectID, detail))
//	})
//
// The subject is the ID of the changed record. The detail is text without secrets.
func (r *request) entry(action webhook.Action, programID, subjectID, detail string) webhook.AuditEntry {
	e := r.actor()
	e.Action, e.ProgramID, e.SubjectID, e.Detail = action, programID, subjectID, detail
	return e
}

// actor returns an audit entry with the admin or the portal session, the address and the ID of the
// request.
func (r *request) actor() webhook.AuditEntry {
	who := r.admin
	if r.portal.session.ID != "" {
		who = webhook.ActorPortal + r.portal.session.ID
	}
	return webhook.AuditEntry{Admin: who, Address: addressText(r), RequestID: r.id}
}

// auditRecords is a page of the audit log.
type auditRecords struct {
	list    *ui.Listing
	entries []webhook.AuditEntry
	labels  map[string]record.SubscriptionLabel // of the subscriptions in entries
	pager   ui.Pager
	newRows *ui.NewRows
	newest  webhook.AuditEntry // of the whole log; the zero value if that is empty
	failed  string             // the ID of this request if the rows could not be loaded, "" if they could
}

func (h *auditPages) list(r *request) (response, error) {
	v, err := r.listing(webhook.AuditList)
	if err != nil {
		return response{}, err
	}
	a := auditRecords{list: v}
	failed, status, err := h.loaded(r, v, func() error { return h.readList(r, &a) })
	if err != nil {
		return response{}, err
	}
	a.failed = failed
	f := h.frame(r, "Audit log")
	f.NewRows = a.newRows
	return response{page: auditPage(f, &a), status: status}, nil
}

// ofAuditProgram narrows a query to the selected program, unless the query names a program.
func ofAuditProgram(r *request, q *webhook.ListQuery) {
	if r.program != "" && q.Filters["program_id"] == nil {
		if q.Filters == nil {
			q.Filters = make(map[string][]string)
		}
		q.Filters["program_id"] = []string{r.program}
	}
}

// details returns the name of the subscription that an entry is about, "" for none, and the rest of
// its detail. The detail of an entry about a subscription begins with the URL at that time.
func (a *auditRecords) details(e *webhook.AuditEntry) (name, detail string) {
	label, ok := a.labels[e.SubjectID]
	if !ok || e.Detail == "" || nounOf(e.Action) != "subscription" {
		return "", e.Detail
	}
	if name = firstLineOf(strings.TrimSpace(label.Description)); name == "" {
		return "", e.Detail
	}
	_, detail, _ = strings.Cut(e.Detail, "; ")
	return name, detail
}

// arrived counts the entries of a list that were stored after a mark.
func (h *auditPages) arrived(r *request, q *webhook.ListQuery, mark string) (list.Arrived, error) {
	ofAuditProgram(r, q)
	return h.store.Audit().Arrived(r.Context(), q, mark)
}

// readList reads the rows of a page.
func (h *auditPages) readList(r *request, a *auditRecords) (err error) {
	q := &a.list.Query
	ofAuditProgram(r, q)
	var next string
	if a.newRows, err = h.newRows(r, a.list, h.arrived); err != nil {
		return err
	}
	if a.entries, next, err = h.store.Audit().Page(r.Context(), q); err != nil {
		return err
	}
	var subscriptions []string
	for i := range a.entries {
		if nounOf(a.entries[i].Action) == "subscription" {
			subscriptions = append(subscriptions, a.entries[i].SubjectID)
		}
	}
	if a.labels, err = h.store.Subscriptions().Labels(r.Context(), subscriptions); err != nil {
		return err
	}
	if a.newest, _, err = h.store.Audit().Newest(r.Context()); err != nil {
		return err
	}
	a.pager, err = feedPager(a.list, next, func() (string, error) { return h.store.Audit().Newer(r.Context(), q) })
	return err
}

// subjectPath returns the path of the page of an entry's subject, "" for none.
func subjectPath(e *webhook.AuditEntry) string {
	if e.SubjectID == "" {
		return ""
	}
	switch noun := nounOf(e.Action); noun {
	case "subscription":
		return subscriptionPath(e.SubjectID)
	case "delivery":
		if id, ok := webhook.BulkRunOfSubject(e.SubjectID); ok {
			return runPath(id)
		}
		return deliveryPath(e.SubjectID)
	case "event":
		return eventPath(e.ProgramID, e.SubjectID)
	case "token":
		return tokenPath(e.SubjectID)
	case "admin":
		switch e.Action {
		case webhook.ActionAdminRemove, webhook.ActionAdminInvite, webhook.ActionAdminRevokeInvitation:
		default:
			return adminPath(e.SubjectID)
		}
	case "program":
		if e.Action != webhook.ActionProgramDelete {
			return programPath(e.SubjectID)
		}
	case "event_type":
		if e.Action != webhook.ActionEventTypeDelete {
			return eventTypePath(e.SubjectID)
		}
	case "alert_channel":
		if e.Action != webhook.ActionAlertChannelDelete {
			return channelPath(e.SubjectID)
		}
	}
	return ""
}

// export sends the audit log as a file.
func (h *auditPages) export(r *request) (response, error) {
	return h.exportList(r, webhook.AuditList, &export{
		noun: "audit", action: webhook.ActionAuditExport,
		// The columns match webhook.AuditRecord, so that service audit verify can check a complete
		// export.
		columns: []string{"number", "id", "at", "actor", "admin", "address", "request_id", "action", "program_id", "subject_id", "detail",
			"salt", "digest", "previous_hash", "hash"},
		page: func(q *webhook.ListQuery) (rows [][]any, more bool, err error) {
			page, next, err := h.store.Audit().Page(r.Context(), ofProgram(q, r.program))
			for i := range page {
				e := &page[i]
				rows = append(rows, []any{e.Num, e.ID, e.At, e.Actor, e.Admin, e.Address, e.RequestID, string(e.Action), e.ProgramID, e.SubjectID,
					e.Detail, hex.EncodeToString(e.Salt), e.Digest.String(), e.Previous.String(), e.Hash.String()})
			}
			q.Cursor = next
			return rows, next != "", err
		},
	})
}
