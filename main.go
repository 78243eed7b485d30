// Command service sends webhooks. Partners subscribe through a REST API, the platform
// publishes events, and every event is delivered at least once to every subscription for it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"service/internal/cli"
)

func main() {
	// Only the owner may read new files, including those that SQLite creates.
	syscall.Umask(0o077)
	ctx, cancel := context.WithCancel(context.Background())
	stop := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		stop = append(stop, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stop...)
	// The first signal starts a graceful shutdown, the second exits immediately.
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "service: second signal received, exiting immediately")
		os.Exit(1)
	}()
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
