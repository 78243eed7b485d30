// Command service sends webhooks: partners subscribe over a REST API, the
// platform publishes events, and every event reaches every subscription that
// asked for it, at least once.
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
	// Files are readable by their owner alone, those that SQLite creates too.
	syscall.Umask(0o077)
	ctx, cancel := context.WithCancel(context.Background())
	stop := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		stop = append(stop, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, stop...)
	// The first signal asks for an orderly shutdown, the second ends the process.
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "service: ended at once, by a second signal")
		os.Exit(1)
	}()
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
