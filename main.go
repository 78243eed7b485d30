// Command service sends webhooks: partners subscribe over a REST API, the
// platform publishes events, and every event reaches every subscription that
// asked for it, at least once.
//
// Package main is the front door and nothing more: the command line, the
// configuration, TLS, the admin socket, signals, and the wiring of the rooms.
// It alone reads flags and the environment and ends the process.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"service/internal/bench"
	"service/internal/terminal"
	"service/webhook"
)

// The exit statuses of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	// What the service makes is its owner's alone, what SQLite makes beside the
	// database too, which one of its drivers would let all read.
	syscall.Umask(0o077)
	ctx, cancel := context.WithCancel(context.Background())
	endings := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup means to go on
		endings = append(endings, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, endings...)
	// The first signal asks for an orderly end, the second does not ask. This
	// goroutine lives as long as the process.
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "service: ended at once, by a second signal")
		os.Exit(exitFailed)
	}()
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are what a command reads from and writes to: results to out, all
// else to err.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// cli is the command line. Each flag can also be given as an environment
// variable: SERVICE_ and the flag's name in capitals.
type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run everything: the API, the admin UI and the delivery of webhooks."`
	Token       tokenCmd       `cmd:"" help:"Make, list and revoke access tokens."`
	Key         keyCmd         `cmd:"" help:"Replace the key that secrets are sealed with."`
	Admin       adminCmd       `cmd:"" help:"Make, list and remove those who may sign in to the admin UI."`
	Backup      backupCmd      `cmd:"" help:"Make and check backups."`
	Restore     restoreCmd     `cmd:"" help:"Fill the data directory from a replica or a backup."`
	Release     releaseCmd     `cmd:"" help:"Send the deliveries that are held after a restore."`
	Standby     standbyCmd     `cmd:"" help:"Follow the replica of a running service, and take over when that has ended."`
	Promote     promoteCmd     `cmd:"" help:"Have the standby take over now."`
	Publish     publishCmd     `cmd:"" help:"Publish events from a file or from stdin."`
	Listen      listenCmd      `cmd:"" help:"Receive webhooks during development: print each delivery, verify its signature, answer it."`
	Config      configCmd      `cmd:"" help:"Show and check the configuration of serve."`
	Doctor      doctorCmd      `cmd:"" help:"Check all that the service needs, and say what to do. It changes nothing; exit 1 when a check fails."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask the configured listener whether the service is ready, for Docker: exit 0 when it is."`
	Completion  completionCmd  `cmd:"" help:"Print the completion of commands and flags for a shell."`
	Man         manCmd         `cmd:"" help:"Print the manual page: service man | man -l -"`
	Bench       benchCmd       `cmd:"" help:"Measure this machine: events a second from the publisher to the receiver, beside what the machine can do at all."`
	Version     versionCmd     `cmd:"" help:"Print the version."`

	ShowVersion versionFlag `name:"version" env:"-" help:"Print the version."`

	BenchPart benchPartCmd `cmd:"" name:"bench-part" hidden:""`
}

// run runs the command that args ask for and returns the exit status. The end
// of ctx asks the command to end in order.
func run(ctx context.Context, args []string, std streams) int {
	var c cli
	helped := false
	conf := new(configuration)
	parser, err := newParser(ctx, &c, std, conf, &helped)
	if err != nil {
		return fail(std, err)
	}
	command, err := parser.Parse(args)
	switch {
	case helped:
		return exitDone
	case err != nil:
		return fail(std, usageError{err})
	}
	target := command.Selected().Target.Addr().Interface()
	if _, tells := target.(*doctorCmd); tells || len(conf.faults) == 0 {
		err = command.Run()
	} else if all, ok := target.(interface{ check() error }); ok {
		err = all.check() // so that all that is wrong is told at once
	}
	return fail(std, conf.explain(err))
}

// newParser returns the parser of the command line, which sets helped when it
// was asked for help and has given it.
func newParser(ctx context.Context, c *cli, std streams, conf *configuration, helped *bool) (*kong.Kong, error) {
	name := ownName()
	parser, err := kong.New(c,
		kong.Name(name),
		kong.Description("A webhook service in one binary."),
		kong.DefaultEnvars("SERVICE"),
		kong.Vars{"scopes": webhook.JoinScopes(webhook.Scopes(), ", "), "cases": strings.Join(bench.Workloads(), ", "), "name": name},
		kong.Writers(std.out, std.err),
		kong.Exit(func(int) { *helped = true }), // kong exits after --help alone
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(describe),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, conf),
		kong.Resolvers(conf),
	)
	if err == nil {
		spellAll(parser.Model.Node, name)
	}
	return parser, err
}

// describe is the help of one flag: its meaning, its default and its variable.
func describe(v *kong.Value) string {
	var notes []string
	if v.HasDefault {
		notes = append(notes, "default "+v.Default)
	}
	for _, name := range v.Tag.Envs {
		notes = append(notes, "$"+name)
	}
	if len(notes) == 0 {
		return v.Help
	}
	return v.Help + " (" + strings.Join(notes, ", ") + ")"
}

// fail tells err, if any, in one line, and returns the exit status it means.
func fail(std streams, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(std.err, "%[1]s: %[2]s (see %[1]s --help)\n", ownName(), terminal.Line(spelled(err.Error(), ownName())))
		return exitUsage
	}
	fmt.Fprintf(std.err, "%s: %s\n", ownName(), terminal.Line(spelled(err.Error(), ownName())))
	return exitFailed
}

// usageError is a mistake in how a command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
