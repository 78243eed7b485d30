package sqlite

import (
	"log/slog"
	"time"
)

// outage is a period in which writes fail with storage errors. It is logged once
// when it begins and once when it ends, not for each write.
type outage struct {
	began, last time.Time // times of the first and the last failure; zero without an outage
	failures    int       // number of writes that failed
}

// outageQuiet is how long all writes must succeed before an outage counts as over,
// unless [Writer.EndOutage] ends it earlier. A full disk may still have room for a small
// write now and then.
const outageQuiet = 5 * time.Second

// record updates the outage after a commit. failures is the number of writes that failed
// with storage errors, and err is the last of these errors. The message tells the operator
// what the service does during the outage.
func (o *outage) record(failures int, err error, now time.Time, logger *slog.Logger) {
	switch {
	case failures > 0:
		if o.began.IsZero() {
			o.began = now
			logger.Error("storage is not writable: rejecting writes and pausing deliveries until it recovers", "error", err)
		}
		o.last = now
		o.failures += failures
	case !o.began.IsZero() && now.Sub(o.last) >= outageQuiet:
		o.end(now, logger)
	}
}

// end logs the end of an outage, if there is one.
func (o *outage) end(now time.Time, logger *slog.Logger) {
	if !o.began.IsZero() {
		logger.Info("storage is writable again", "failed_writes", o.failures, "lasted", now.Sub(o.began).Round(time.Millisecond))
		*o = outage{}
	}
}
