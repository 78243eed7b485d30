package harness

import (
	"net/http"
	"net/http/httptest"
	"sync"
)

// Hold is a handler that passes requests on, counts them, and can hold one of them while a test
// kills the client or the server. A test that killed after a delay would race with the requests.
type Hold struct {
	Pass   http.Handler
	Counts func(*http.Request) bool // which requests count; nil for all

	mu       sync.Mutex
	count    int
	at       int  // the number of the request to hold, 0 for none
	response bool // hold its response instead
	held     chan struct{}
	released chan struct{}
}

// Next holds the nth request from now, before Pass receives it, or its response if response is set.
// It returns a channel that is closed when the request is held, and a function that aborts the
// request, or lets it pass if it has not arrived.
func (h *Hold) Next(n int, response bool) (held <-chan struct{}, release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, released := h.count+n, make(chan struct{})
	h.at, h.response, h.held, h.released = at, response, make(chan struct{}), released
	return h.held, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.at == at {
			h.at = 0
		}
		close(released)
	}
}

// Count returns how many requests have arrived.
func (h *Hold) Count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

func (h *Hold) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	hold := false
	if h.Counts == nil || h.Counts(r) {
		h.count++
		hold = h.count == h.at
	}
	response, held, released := h.response, h.held, h.released
	h.mu.Unlock()
	if !hold {
		h.Pass.ServeHTTP(w, r)
		return
	}
	if response {
		h.Pass.ServeHTTP(httptest.NewRecorder(), r)
	}
	close(held)
	<-released
	panic(http.ErrAbortHandler)
}
