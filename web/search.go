package web

import (
	"net/http"
	"strings"

	"service/store"
)

// searchPages find records by id.
type searchPages struct{ *site }

// maxFound is how many records of a kind the search by id lists.
const maxFound = 10

// show leads to the record whose id was typed, whole or its beginning.
func (h *searchPages) show(r *request) (response, error) {
	q := strings.TrimSpace(r.URL.Query().Get("q"))
	found, err := h.store.Find(r.Context(), q, maxFound)
	if err != nil {
		return response{}, err
	}
	if len(found) == 1 {
		return response{location: foundPath(&found[0])}, nil
	}
	f := h.frame(r, "Find by id")
	f.Find = q
	a := response{page: foundPage(f, found)}
	if q != "" && len(found) == 0 {
		a.status = http.StatusNotFound
	}
	return a, nil
}

// foundPath is the page of what was found.
func foundPath(f *store.Found) string {
	switch f.Kind {
	case store.FoundSubscription:
		return subscriptionPath(f.ID)
	case store.FoundDelivery:
		return deliveryPath(f.ID)
	case store.FoundEvent:
		return eventPath(f.ProgramID, f.ID)
	default:
		return tokenPath(f.ID)
	}
}
