package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
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

// startExtension is the time for which systemd is asked to wait each time.
const startExtension = 30 * time.Second

// whileStarting runs do, which may take longer than systemd waits for a service to
// start, and asks systemd to wait until then.
func whileStarting(ctx context.Context, logger *slog.Logger, do func() error) error {
	ctx, done := context.WithCancel(ctx)
	var telling sync.WaitGroup
	defer telling.Wait()
	defer done()
	telling.Go(func() {
		tick := time.NewTicker(startExtension / 6)
		defer tick.Stop()
		for {
			if _, err := daemon.SdNotify(false, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startExtension.Microseconds())); err != nil {
				logger.Warn("systemd cannot be told", "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return do()
}
