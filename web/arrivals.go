package web

import (
	"errors"
	"net/http"
	"strings"

	"service/store"
	"service/web/ui"
	"service/webhook"
)

// arrived says how many rows of a list were stored after a mark.
type arrived func(r *request, q *webhook.ListQuery, mark string) (store.Arrived, error)

// newRows says how many rows of a list have come since the visitor saw its first page,
// and gives the links of the page the mark by which the next page can say it. It is nil
// for a list that does not begin with the newest.
func (h *site) newRows(r *request, v *ui.Listing, of arrived) (*ui.NewRows, error) {
	if v.Error != nil || !v.Query.Sort[0].Descending {
		return nil, nil
	}
	a, err := of(r, &v.Query, v.Since)
	if err != nil {
		return nil, err
	}
	if v.Since == "" {
		v.Since = a.Mark
	}
	return v.NewRows(a.Count, a.More), nil
}

// showNewRows is the part of a page that says how many rows are new.
func (h *site) showNewRows(l *webhook.List, of arrived) handler {
	return func(r *request) (response, error) {
		v, err := r.listing(l)
		if err != nil {
			return response{}, err
		}
		v.Path = strings.TrimSuffix(v.Path, ui.NewRowsPath)
		rows, err := h.newRows(r, v, of)
		if errors.As(err, &v.Error) || rows == nil && err == nil {
			return response{}, &problem{
				status: http.StatusBadRequest, title: "New rows cannot be counted",
				text: "Live updates need a list with the newest rows first.",
			}
		}
		if err != nil {
			return response{}, err
		}
		return response{page: ui.NewRowsLink(rows)}, nil
	}
}
