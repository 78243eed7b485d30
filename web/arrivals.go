package web

import (
	"errors"
	"net/http"
	"strings"

	"service/store/list"
	"service/web/ui"
	"service/webhook"
)

// arrived returns the number of rows of a list that were stored after a mark.
type arrived func(r *request, q *webhook.ListQuery, mark string) (list.Arrived, error)

// newRows returns the number of rows of a list that were stored since the visitor loaded its first
// page, and adds the mark for the next count to the links of the page. It returns nil for a list
// that does not start with the newest rows.
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

// showNewRows renders the part of a page with the number of new rows.
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
