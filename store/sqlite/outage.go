package sqlite

import (
	"log/slog"
	"time"
)

// outage is a time in which the disk refuses writes. It is logged when it
// begins and when it is over, and not for each write.
type outage struct {
	began, last time.Time // zero while there is none
	refused     int       // writes
}

// outageQuiet is how long all writes must succeed for an outage to be over: a
// full disk now and then still has room for a small write.
const outageQuiet = 5 * time.Second

// record updates the outage after a commit in which the disk refused so many
// writes, the last of them with err.
func (o *outage) record(refused int, err error, now time.Time, logger *slog.Logger) {
	switch {
	case refused > 0:
		if o.began.IsZero() {
			o.began = now
			logger.Error("the disk does not take what is to be written: it is refused, and deliveries are held, until it does", "error", err)
		}
		o.last = now
		o.refused += refused
	case !o.began.IsZero() && now.Sub(o.last) >= outageQuiet:
		o.end(now, logger)
	}
}

// end ends an outage.
func (o *outage) end(now time.Time, logger *slog.Logger) {
	if !o.began.IsZero() {
		logger.Info("the disk takes what is written again", "refused", o.refused, "lasted", now.Sub(o.began).Round(time.Millisecond))
		*o = outage{}
	}
}
