package api

import (
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"service/store"
	"service/store/sqlite"
	"service/test/harness"
)

// A program that makes too many requests gets an error at once for a third dry run and for lists
// beyond those that may wait. Its other reads do not wait for them.
func TestBusyProgram(t *testing.T) {
	// With four threads a program has two connections for lists, and both dry runs can be seen to
	// count.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	var slow atomic.Bool
	release, counting := make(chan struct{}), make(chan struct{}, 2)
	s := startStore(t, store.Config{Fault: func(query string, write bool) sqlite.Fault {
		list, count := strings.Contains(query, "INDEXED BY replays_by_subscription"), strings.HasPrefix(query, "SELECT count(*) FROM events e")
		if slow.Load() && !write && (list || count) {
			if count {
				counting <- struct{}{}
			}
			<-release
		}
		return sqlite.NoFault
	}})
	s.publishOne()
	subscription := subscriptionsPath + "/" + s.subscribe("content_updated")
	slow.Store(true)
	responses := make(chan response)
	begin := func(n int, method, body string) {
		for range n {
			go func() { responses <- s.send(method, subscription+"/replays", body) }()
		}
	}
	rejected := func(what string, status int, retryAfter string) {
		t.Helper()
		r := harness.Receive(t, what, responses)
		if got := r.header.Get("Retry-After"); r.status != status || got != retryAfter {
			t.Errorf("%s: got %d with Retry-After %q: %s; want %d with %q", what, r.status, got, r.body, status, retryAfter)
		}
	}
	dryRun := `{"from":"` + time.Now().Add(-time.Hour).UTC().Format(time.RFC3339) + `","only":"all","dry_run":true}`
	begin(3, "POST", dryRun)
	rejected("a third dry run", http.StatusConflict, retryDryRun)
	for range 2 {
		harness.Receive(t, "a dry run that counts", counting)
	}
	const lists = 64 // all that may wait
	begin(lists+1, "GET", "")
	rejected("a list too many", http.StatusServiceUnavailable, retryAfter)
	wantStatus(t, "a read by id", s.send("GET", subscription, ""), http.StatusOK)
	close(release)
	counted := 0
	for range 2 + lists {
		r := harness.Receive(t, "a request that was admitted", responses)
		wantStatus(t, "a request that was admitted", r, http.StatusOK)
		if strings.Contains(r.body, `"dry_run":true`) && strings.Contains(r.body, `"complete":true`) {
			counted++
		}
	}
	if counted != 2 {
		t.Errorf("got %d complete counts, want 2", counted)
	}
}
