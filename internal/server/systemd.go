package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"service/internal/terminal"
)

// notify tells systemd, if systemd started the process, that the service is ready, with its status,
// and feeds the watchdog. When ctx ends, it announces a shutdown of up to stopTimeout, unless that is
// 0.
//
// It feeds the watchdog whenever check returns in time, even with an error. A store on a full disk
// returns an error and recovers by itself; only a store that hangs needs a restart.
func notify(
	ctx context.Context, status string, check func(context.Context) error, stopTimeout time.Duration, logger *slog.Logger,
) error {
	status = "STATUS=" + terminal.Line(status)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("invalid watchdog settings of systemd; ignoring the watchdog", "error", err)
	}
	sdNotify(logger, daemon.SdNotifyReady+"\n"+status)
	// If the unit's TimeoutStopSec= is longer, systemd uses TimeoutStopSec=.
	defer func() {
		// A standby stops at once, and a node whose lease ended continues in the other role.
		if stopTimeout > 0 && !errors.Is(context.Cause(ctx), errLeaseLost) {
			sdNotify(logger, fmt.Sprintf("%s\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, stopTimeout.Microseconds()))
		}
	}()
	if interval <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(interval / 3)
	defer tick.Stop()
	ready := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		checking, cancel := context.WithTimeout(ctx, interval/3)
		err := check(checking)
		timedOut := checking.Err() != nil
		cancel()
		switch {
		case timedOut:
			continue
		case err != nil && ready:
			sdNotify(logger, "STATUS=Not ready: "+terminal.Line(err.Error()))
		case err == nil && !ready:
			sdNotify(logger, status)
		}
		ready = err == nil
		sdNotify(logger, daemon.SdNotifyWatchdog)
	}
}

func sdNotify(logger *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		logger.Warn("failed to notify systemd", "error", err)
	}
}

// startExtension is the start timeout that each request asks systemd for.
const startExtension = 30 * time.Second

// whileStarting runs do, and extends systemd's start timeout until do returns.
func whileStarting(ctx context.Context, logger *slog.Logger, do func() error) error {
	ctx, done := context.WithCancel(ctx)
	var extending sync.WaitGroup
	defer extending.Wait()
	defer done()
	extending.Go(func() {
		tick := time.NewTicker(startExtension / 6)
		defer tick.Stop()
		for {
			sdNotify(logger, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", startExtension.Microseconds()))
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return do()
}
