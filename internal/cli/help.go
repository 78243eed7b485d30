package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// ownVariables are the environment variables that only commands other than serve read.
// docs/operations.md lists them.
var ownVariables = []string{
	"SERVICE_TOKEN", "SERVICE_TOKEN_FILE", // of publish and apply
	"SERVICE_SECRET", "SERVICE_SECRET_FILE", // of listen
	"SERVICE_ADMIN_PASSWORD_FILE", "SERVICE_BACKUP_PASSPHRASE_FILE", "SERVICE_EXPORT_PASSPHRASE_FILE",
}

// setVariables removes the environment variables of flags that are neither settings of
// serve nor in ownVariables. Other tools set SERVICE_NAME and SERVICE_URL, and flags such
// as --force should be given explicitly.
func setVariables(k *kong.Kong) error {
	known := slices.Clone(ownVariables)
	for _, flag := range serveNode(k.Model.Node).Flags {
		known = append(known, flag.Envs...)
	}
	for _, n := range nodes(k.Model.Node) {
		for _, flag := range n.Flags {
			flag.Envs = slices.DeleteFunc(flag.Envs, func(name string) bool { return !slices.Contains(known, name) })
			flag.Value.Tag.Envs = flag.Envs
		}
	}
	return nil
}

// nodes returns a command and all commands below it.
func nodes(n *kong.Node) []*kong.Node {
	all := []*kong.Node{n}
	for _, child := range n.Children {
		all = append(all, nodes(child)...)
	}
	return all
}

// serveNode returns the command serve, whose flags are the settings.
func serveNode(app *kong.Node) *kong.Node {
	return app.Children[slices.IndexFunc(app.Children, func(n *kong.Node) bool { return n.Name == "serve" })]
}

// groupFlags groups the flags of serve and the subcommands of every command. The help of other
// commands that accept all settings of serve refers to the help of serve.
func groupFlags(k *kong.Kong) error {
	for _, n := range nodes(k.Model.Node) {
		all := len(n.Flags) > 20
		for _, flag := range n.Flags {
			setting := flag.Group != nil // only the flags of serve name a group
			switch {
			case n.Parent == nil:
				flag.Group = &kong.Group{Key: "general", Title: "General:"} // after the command's own
			case !all && slices.Contains(commonFlags, flag.Name):
				flag.Group = &kong.Group{Key: "common", Title: "Data and configuration:"} // after the command's own
			case setting && n.Name == "serve":
				flag.Group.Title += ":"
			case setting:
				flag.Group, flag.Hidden = nil, !slices.Contains(settingsToFind, flag.Name)
			}
		}
		if all && n.Name != "serve" {
			n.Detail = strings.TrimSpace(n.Detail + "\n\nIt also takes every other setting of serve, as a flag, a variable or in the file " +
				"of --config: see service serve --help.")
		}
	}
	// Without a group of their own, subcommands would be listed under the key of their
	// parent's group.
	for _, command := range k.Model.Children {
		for _, child := range command.Children {
			child.Group = &kong.Group{Key: "commands", Title: "Commands:"}
		}
	}
	k.Model.HelpFlag.Help = "Print this help."
	return nil
}

// commonFlags are the flags that most commands have.
var commonFlags = []string{"config", "data", "secret-key-file"}

// settingsToFind are the settings that tell a command where to look.
var settingsToFind = []string{"config", "data", "secret-key-file", "listen", "litestream"}

// commandGroups are the groups of commands in the help, in order.
var commandGroups = []struct{ key, title string }{
	{"run", "Run"},
	{"publish", "Publish and receive"},
	{"access", "Programs, tokens and admins"},
	{"data", "Data"},
	{"operations", "Operations"},
}

// printHelp returns the help printer. Without a command it prints the commands by group,
// with examples. The help of a command is kong's.
func printHelp(std Streams) kong.HelpPrinter {
	return func(options kong.HelpOptions, ctx *kong.Context) error {
		if ctx.Selected() != nil {
			spellAll(ctx.Model.Node, commandName())
			if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
				return err
			}
			_, err := fmt.Fprint(std.Out, exampleHelp(ctx.Selected(), painter(std.Out)))
			return err
		}
		_, err := fmt.Fprint(std.Out, commandHelp(ctx.Model.Node, painter(std.Out)))
		return err
	}
}

// commandHelp returns the help of the binary without a command.
func commandHelp(app *kong.Node, c colors) string {
	const column = 13 // width of the commands' names
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("%s sends webhooks: API, admin UI and delivery in one binary.\n", app.Name)
	p("Usage: %s COMMAND [FLAGS]", app.Name)
	for _, g := range commandGroups {
		p("\n%s", c.paint(bold, g.title))
		for _, command := range app.Children {
			if command.Hidden || command.Group == nil || command.Group.Key != g.key {
				continue
			}
			text := summary(command.Help)
			if below := commandNames(command); len(below) > 0 {
				text += " (" + strings.Join(below, ", ") + ")"
			}
			lines := strings.Split(strings.TrimSuffix(wrap(text, "", 80-column-3), "\n"), "\n")
			p("  %-*s %s", column, command.Name, lines[0])
			for _, line := range lines[1:] {
				p("  %-*s %s", column, "", line)
			}
		}
	}
	p("\n%s", c.paint(bold, "Examples"))
	p("  Try it on temporary data:")
	p("    %s serve --demo", app.Name)
	p("  Create a token for publishing:")
	p("    %s token create --program acme --user me --scope events.write", app.Name)
	p("\nFlags of a command: %s COMMAND --help", app.Name)
	p("Manual: %s man | man -l -", app.Name)
	p("API reference, while the service runs: https://127.0.0.1:8443/docs")
	return b.String()
}

// commandNames returns the names of the subcommands of n.
func commandNames(n *kong.Node) []string {
	var names []string
	for _, child := range n.Children {
		if !child.Hidden && child.Type == kong.CommandNode {
			names = append(names, child.Name)
		}
	}
	return names
}

// commandOf returns the command that a parser error is about.
func commandOf(err error) *kong.Node {
	var parse *kong.ParseError
	if !errors.As(err, &parse) || parse.Context == nil {
		return nil
	}
	at := parse.Context.Model.Node
	for _, step := range parse.Context.Path {
		if step.Command != nil {
			at = step.Command
		}
	}
	return at
}

// pathOf returns the words of a command, each followed by a space: "token create ". It is empty
// for the binary itself.
func pathOf(n *kong.Node) string {
	if n == nil || n.Parent == nil {
		return ""
	}
	return pathOf(n.Parent) + n.Name + " "
}

// explainUsage adds to a parser error what is missing or unknown, and which choices exist.
func explainUsage(err error, at *kong.Node) error {
	if at == nil {
		return err
	}
	names, text := commandNames(at), err.Error()
	if flag, _, noValue := strings.Cut(text, `: expected `); noValue && strings.HasSuffix(text, `"EOL" (<EOL>)`) {
		return fmt.Errorf("%s needs a value", flag)
	}
	expected, isMissing := strings.CutPrefix(text, "expected ")
	word, isUnknown := strings.CutPrefix(text, "unexpected argument ")
	switch {
	case isMissing && len(names) == 0:
		arguments := strings.Fields(strings.ToUpper(strings.NewReplacer(`"`, "", "<", "", ">", "").Replace(expected)))
		if len(arguments) == 1 {
			return fmt.Errorf("missing argument: %s", arguments[0])
		}
		return fmt.Errorf("missing arguments: %s", strings.Join(arguments, ", "))
	case isMissing:
		text = pathOf(at) + "needs a command"
	case isUnknown && len(names) > 0:
		word, meant, suggested := strings.Cut(word, ", did you mean ")
		text = fmt.Sprintf("%s%s is not a command", pathOf(at), word)
		if suggested {
			return fmt.Errorf("%s; did you mean %s", text, meant)
		}
	default:
		return err
	}
	if len(names) == 1 {
		return fmt.Errorf("%s; the command is %s", text, names[0])
	}
	return fmt.Errorf("%s; the commands are %s", text, strings.Join(names, ", "))
}
