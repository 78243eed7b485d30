package dispatcher

import (
	"log/slog"
	"time"
)

// outage is a period in which the store cannot be read or written. It is logged once when
// it begins and once when it ends. It is not safe for concurrent use.
type outage struct {
	began time.Time // zero without an outage
}

// failed logs message with err if the outage begins.
func (o *outage) failed(logger *slog.Logger, message string, err error) {
	if o.began.IsZero() {
		o.began = time.Now()
		logger.Error(message, "error", err)
	}
}

// end logs message with the duration of the outage, if there is one.
func (o *outage) end(logger *slog.Logger, message string) {
	if !o.began.IsZero() {
		logger.Info(message, "lasted", time.Since(o.began).Round(time.Millisecond))
		*o = outage{}
	}
}
