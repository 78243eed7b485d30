package server

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"service/internal/terminal"
)

// notify tells systemd, when it has started the process and asks for it, that
// the service serves, then that it is alive, and when ctx ends that it is
// ending, for which it may take so long.
//
// It is alive as long as check returns in time, whatever it says: a store that
// cannot write for want of room says so and recovers by itself, and is not
// helped by a restart. One that says nothing any more is.
func notify(ctx context.Context, url string, check func(context.Context) error, ending time.Duration, logger *slog.Logger) error {
	tell := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			logger.Warn("systemd cannot be told", "error", err)
		}
	}
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("the watchdog of systemd cannot be heeded", "error", err)
	}
	tell(daemon.SdNotifyReady + "\nSTATUS=Serving " + url)
	// Where the unit's own bound (TimeoutStopSec=) is longer, that holds.
	defer tell(fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, ending.Microseconds()))
	if interval <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	well := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		inTime, cancel := context.WithTimeout(ctx, interval/3)
		err := check(inTime)
		late := inTime.Err() != nil
		cancel()
		switch {
		case late:
			continue
		case err != nil && well:
			tell("STATUS=Not ready: " + terminal.Line(err.Error()))
		case err == nil && !well:
			tell("STATUS=Serving " + url)
		}
		well = err == nil
		tell(daemon.SdNotifyWatchdog)
	}
}
