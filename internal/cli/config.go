package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"service/internal/server"
	"service/internal/terminal"
)

type configCmd struct {
	Show     configShowCmd     `cmd:"" help:"Print each setting of serve and its source. Secrets are masked."`
	Validate configValidateCmd `cmd:"" help:"Check the configuration of serve and report all errors. Changes nothing."`
	Example  configExampleCmd  `cmd:"" help:"Print a configuration file with every setting and its default, commented out."`
}

type configShowCmd struct {
	serveFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

func (c *configShowCmd) Run(std Streams, conf *configuration, ctx *kong.Context) error {
	return printList(std.Out, c.JSON, conf.shown(ctx), "", "SETTING\tVALUE\tFROM", func(s *server.Setting) string {
		return s.Name + "\t" + cmp.Or(terminal.Escape(s.Value), "-") + "\t" + terminal.Escape(s.Source)
	})
}

type configValidateCmd struct{ serveFlags }

func (c *configValidateCmd) Run(std Streams, ctx *kong.Context) error {
	for _, warning := range unknownVariables(ctx.Model.Node, os.Environ()) {
		fmt.Fprintf(std.Err, "%s: warning: %s\n", ownName(), terminal.Line(warning))
	}
	if err := c.check(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(std.Out, "The configuration is valid.")
	return err
}

// unknownVariables returns a warning for each environment variable that begins with
// SERVICE_ and that no command reads.
func unknownVariables(app *kong.Node, environ []string) []string {
	var names, warnings []string
	for _, n := range nodes(app) {
		for _, flag := range n.Flags {
			names = append(names, flag.Envs...)
		}
	}
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "SERVICE_") && !slices.Contains(names, name) {
			warnings = append(warnings, fmt.Sprintf("unknown variable %s (did you mean %s?)", name, terminal.Nearest(name, names)))
		}
	}
	return warnings
}

// check returns the errors in the settings of serve. It changes nothing.
func (c *serveFlags) check() error {
	_, err := c.settings(io.Discard)
	return err
}

type configExampleCmd struct{ nameFlag }

func (c *configExampleCmd) Run(std Streams, ctx *kong.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	_, err := io.WriteString(std.Out, spelled(exampleConfig(ctx.Model.Node), c.Name))
	return err
}

// exampleConfig returns a configuration file with every setting, commented out.
func exampleConfig(app *kong.Node) string {
	var b strings.Builder
	b.WriteString("# All settings. The service reads the file that --config or SERVICE_CONFIG names, otherwise\n# config.yml in " +
		placesOf(ownName()).configName() + `, if it exists.
# Precedence: command line, environment variable, this file, default.
# Lists: [a, b]. Durations: 250ms, 10s, 30m, 12h, 30d.
# Check a file: service config validate --config FILE
# Show each setting and its source: service config show --config FILE
`)
	flags := fileFlags(app)
	for _, flag := range flags {
		fmt.Fprintf(&b, "\n%s", wrap(flag.Help, "# ", 110))
		value := flag.Default
		switch {
		case flag.IsBool():
			value = "false"
		case value == "" && flag.IsSlice():
			value = "[]"
		case value == "":
			value = `""`
		}
		fmt.Fprintf(&b, "#%s: %s\n", flag.Name, value)
	}
	return b.String()
}

// wrap breaks text at spaces into lines of at most width bytes, and puts prefix before
// each line.
func wrap(text, prefix string, width int) string {
	var b strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			b.WriteString(prefix + line + "\n")
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	b.WriteString(prefix + line + "\n")
	return b.String()
}
