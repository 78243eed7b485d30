// Package cli is the command line: a file for each command, with its flags and what
// it prints. It is the only reader of flags, the environment and the terminal.
//
// A command without a server of its own asks the running one over package control,
// or opens the store itself when none runs.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

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

// Streams are what a command reads from and writes to: results to Out, everything
// else to Err.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// commands is the command line. Each flag can also be given as an environment
// variable: SERVICE_ and the flag's name in capitals.
type commands struct {
	Serve       serveCmd       `cmd:"" help:"Run everything: the API, the admin UI and the delivery of webhooks."`
	Token       tokenCmd       `cmd:"" help:"Make, list and revoke access tokens."`
	Key         keyCmd         `cmd:"" help:"Replace the key that secrets are sealed with."`
	Admin       adminCmd       `cmd:"" help:"Make, list and remove those who may sign in to the admin UI."`
	Backup      backupCmd      `cmd:"" help:"Make and check backups."`
	Compact     compactCmd     `cmd:"" help:"Rewrite the database without its free pages. The server must be stopped. It says how much space and time it needs."`
	Restore     restoreCmd     `cmd:"" help:"Fill the data directory from a replica or a backup."`
	Release     releaseCmd     `cmd:"" help:"Send the deliveries that are held after a restore."`
	Standby     standbyCmd     `cmd:"" help:"Follow the replica of a running service, and take over when that has ended."`
	Promote     promoteCmd     `cmd:"" help:"Have the standby take over now."`
	Salvage     salvageCmd     `cmd:"" help:"Publish the events that only the data directory of an old primary has, after a failover."`
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

// Run runs the command of args and returns the exit status of the process. When ctx
// ends, the command shuts down in order.
func Run(ctx context.Context, args []string, std Streams) int {
	var c commands
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
	if _, tells := target.(*doctorCmd); tells || len(conf.errs) == 0 {
		err = command.Run()
	} else if all, ok := target.(interface{ check() error }); ok {
		err = all.check() // so that all that is wrong is told at once
	}
	return fail(std, conf.explain(err))
}

// newParser returns the parser of the command line, which sets helped when it
// was asked for help and has given it.
func newParser(ctx context.Context, c *commands, std Streams, conf *configuration, helped *bool) (*kong.Kong, error) {
	name := ownName()
	parser, err := kong.New(c,
		kong.Name(name),
		kong.Description("A webhook service in one binary."),
		kong.DefaultEnvars("SERVICE"),
		kong.Vars{"scopes": webhook.JoinScopes(webhook.Scopes(), ", "), "cases": strings.Join(bench.Workloads(), ", "), "name": name},
		kong.Writers(std.Out, std.Err),
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
func fail(std Streams, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(std.Err, "%[1]s: %[2]s (see %[1]s --help)\n", ownName(), terminal.Line(spelled(err.Error(), ownName())))
		return exitUsage
	}
	fmt.Fprintf(std.Err, "%s: %s\n", ownName(), terminal.Line(spelled(err.Error(), ownName())))
	return exitFailed
}

// usageError is a mistake in how a command was called.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
