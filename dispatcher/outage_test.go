package dispatcher

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"service/store/sqlite"
	"service/webhook"
)

// An outage of the disk at the start of the dispatcher, or while an alert is due, is logged
// once when it begins and once when it ends.
func TestOutageLoggedOnce(t *testing.T) {
	const length = 10*storeRetryWait + storeRetryWait/2
	var full atomic.Bool
	fault := func(query string, write bool) sqlite.Fault {
		if write && full.Load() && query == "COMMIT" {
			return sqlite.FaultStatement
		}
		return sqlite.NoFault
	}
	dir := memoryDir(t)
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := &testbed{t: t, dir: dir, subscribers: make(map[netip.Addr]*subscriber), fault: fault, cfg: Config{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), RetryPolicy: exactRetryPolicy(),
			HealthPolicy: webhook.HealthPolicy{FailingAfter: 1},
			Alerts:       &AlertTarget{URL: "http://10.0.0.0/alerts", Secret: webhook.NewSigningSecret()},
		}}
		// wants runs an outage and checks that the log contains each line once.
		wants := func(lines ...string) {
			t.Helper()
			time.Sleep(length)
			full.Store(false)
			time.Sleep(10 * storeRetryWait)
			synctest.Wait()
			for _, line := range lines {
				if got := strings.Count(log.String(), line); got != 1 {
					t.Errorf("got %d lines with %q, want 1:\n%s", got, line, &log)
				}
			}
			log.Reset()
		}
		w.run(func() {
			w.end()
			w.openStore()
			full.Store(true)
			w.runDispatcher()
			wants("storage is not writable: deliveries start when it recovers", "storage recovered: starting deliveries")

			w.subscriber(nil).handler = func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusBadGateway) }
			w.subscribe(w.subscriber(respondWith(http.StatusBadGateway)), nil)
			w.publish("content_updated")
			time.Sleep(10 * time.Minute) // the alert has failed and waits for a retry
			full.Store(true)
			time.Sleep(time.Hour) // the retry is due
			wants("failed to read or record alerts: pausing them until storage recovers", "storage recovered: sending alerts again")
		})
	})
}
