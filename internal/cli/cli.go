// Package cli is the command line: one file per command, with its flags and output.
// Only this package reads flags, the environment and the terminal.
//
// Commands that need data ask the running server through package control. If no server
// is running, they open the store themselves.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"service/internal/terminal"
	"service/webhook"
)

// The exit statuses of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// Streams are the standard streams of a command. Results go to Out, everything else
// to Err.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// printJSON prints v as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printList prints records as a JSON array, or as a table with a header and a row for each; without
// any, none instead of a table.
func printList[T any](w io.Writer, asJSON bool, all []T, none, header string, row func(*T) string) error {
	switch {
	case asJSON:
		return printJSON(w, append([]T{}, all...)) // [], not null
	case len(all) == 0:
		_, err := fmt.Fprintln(w, spelled(none, commandName()))
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for i := range all {
		fmt.Fprintln(t, row(&all[i]))
	}
	return t.Flush()
}

// commands is the command line. The settings of serve can also be set by environment
// variables: SERVICE_ and the flag's name in upper case. See setVariables.
type commands struct {
	Serve       serveCmd       `cmd:"" group:"run" help:"Run the service, with the API, the admin UI and webhook delivery."`
	Promote     promoteCmd     `cmd:"" group:"run" help:"Make this standby the primary. Waits until the primary's lease has ended; --force does not wait."`
	Publish     publishCmd     `cmd:"" group:"publish" help:"Publish events from a file or stdin."`
	Listen      listenCmd      `cmd:"" group:"publish" help:"Receive or pull webhooks during development: print them, verify signatures, respond, forward."`
	Filter      filterCmd      `cmd:"" group:"publish" help:"Run filters over stored events before a subscription uses them."`
	Event       eventCmd       `cmd:"" group:"publish" help:"Erase payloads of events."`
	Token       tokenCmd       `cmd:"" group:"access" help:"Create, list and revoke access tokens."`
	Program     programCmd     `cmd:"" group:"access" help:"List, export, import, move and delete programs, the tenants of the service."`
	PortalLink  portalLinkCmd  `cmd:"" group:"access" help:"Print a one-time link to a program's portal, for a partner. Needs a running server."`
	Apply       applyCmd       `cmd:"" group:"access" help:"Bring event types, programs, subscriptions and tokens to the state that a file describes."`
	Audit       auditCmd       `cmd:"" group:"access" help:"List, export and verify the audit log."`
	Admin       adminCmd       `cmd:"" group:"access" help:"Create, list and remove admins, who sign in to the admin UI."`
	Backup      backupCmd      `cmd:"" group:"data" help:"Create and verify backups."`
	Restore     restoreCmd     `cmd:"" group:"data" help:"Restore the data directory from a replica or backup."`
	Release     releaseCmd     `cmd:"" group:"data" help:"Resume deliveries that are paused after a restore."`
	Salvage     salvageCmd     `cmd:"" group:"data" help:"Publish events that exist only in the old primary's data directory, after a failover."`
	Compact     compactCmd     `cmd:"" group:"data" help:"Shrink the database file by rewriting it without free pages. The server must be stopped."`
	Key         keyCmd         `cmd:"" group:"data" help:"Replace the key that encrypts secrets."`
	Config      configCmd      `cmd:"" group:"operations" help:"Show and check the configuration of serve."`
	Doctor      doctorCmd      `cmd:"" group:"operations" help:"Diagnose the configuration, data and environment. Changes nothing; exits with 1 if a check fails."`
	Healthcheck healthcheckCmd `cmd:"" group:"operations" help:"Check whether the service is ready, for example for Docker. Exits with 1 if it is not."`
	Bench       benchCmd       `cmd:"" group:"operations" help:"Measure events per second from publisher to receiver, and this machine's raw HTTP speed."`
	Completion  completionCmd  `cmd:"" group:"operations" help:"Print a completion script for bash, zsh or fish."`
	Man         manCmd         `cmd:"" group:"operations" help:"Print the manual page. To read it: service man | man -l -"`
	Version     versionCmd     `cmd:"" group:"operations" help:"Print the version."`

	ShowVersion versionFlag `name:"version" short:"v" env:"-" help:"Print the version."`

	BenchPart benchPartCmd `cmd:"" name:"bench-part" hidden:""`
}

// Run runs the command of args and returns the exit status of the process. When ctx ends, the
// command shuts down gracefully.
func Run(ctx context.Context, args []string, std Streams) int {
	var c commands
	helped := false
	switch {
	case len(args) == 0:
		args = []string{"--help"}
	case args[0] == "help":
		args = append(slices.Clone(args[1:]), "--help")
	}
	conf := new(configuration)
	placesOf(ownName()).loadEnvironment()
	parser, err := newParser(ctx, &c, std, conf, &helped)
	if err != nil {
		return fail(std, "", err)
	}
	command, err := parser.Parse(args)
	switch {
	case helped:
		return exitDone
	case err != nil:
		at := commandOf(err)
		return fail(std, pathOf(at), usageError{explainUsage(err, at)})
	}
	target := command.Selected().Target.Addr().Interface()
	if _, isDoctor := target.(*doctorCmd); isDoctor || len(conf.errs) == 0 {
		err = command.Run()
	} else if checker, ok := target.(interface{ check() error }); ok {
		err = checker.check() // reports the errors of the flags along with those of the file
	}
	return fail(std, pathOf(command.Selected()), conf.explain(err))
}

// newParser returns the parser of the command line. The parser sets helped after it has printed
// help.
func newParser(ctx context.Context, c *commands, std Streams, conf *configuration, helped *bool) (*kong.Kong, error) {
	name := ownName()
	return kong.New(c,
		kong.Name(commandName()),
		kong.DefaultEnvars("SERVICE"),
		kong.PostBuild(setVariables),
		kong.PostBuild(groupFlags),
		kong.Help(printHelp(std)),
		kong.Vars{
			"scopes": webhook.JoinScopes(webhook.Scopes(), ", "),
			"cases":  benchCases(),
			"name":   name,
			"data":   placesOf(name).data,
			"config": placesOf(name).configName(),
		},
		kong.Writers(std.Out, std.Err),
		kong.Exit(func(int) { *helped = true }), // kong exits only after --help
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ValueFormatter(describe),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, conf),
		kong.Resolvers(conf),
	)
}

// describe returns the help of a flag with its default and environment variable.
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

// fail prints err, if any, in one line and returns its exit status. command is the path of the
// command, such as "token create ", whose help an argument error refers to.
func fail(std Streams, command string, err error) int {
	if err == nil {
		return exitDone
	}
	var usage usageError
	isUsage := errors.As(err, &usage)
	text := terminal.Line(spelled(err.Error(), commandName()))
	if isUsage {
		text += fmt.Sprintf(" (see %s %s--help)", commandName(), command)
	}
	fmt.Fprintf(std.Err, "%s %s\n", painter(std.Err).paint(red, filepath.Base(os.Args[0])+":"), text)
	if isUsage {
		return exitUsage
	}
	return exitFailed
}

// usageError is an error in the arguments or settings of a command.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }
