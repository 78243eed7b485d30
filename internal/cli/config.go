package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"service/internal/terminal"
)

type configCmd struct {
	Show     configShowCmd     `cmd:"" help:"Print each setting of serve, and where it comes from; secrets are masked."`
	Validate configValidateCmd `cmd:"" help:"Check the whole configuration of serve, and tell all that is wrong with it. Nothing is touched."`
	Example  configExampleCmd  `cmd:"" help:"Print a configuration file with every setting of serve, its meaning and its default, in comments."`
}

type configShowCmd struct {
	serveFlags
	JSON bool `name:"json" help:"Print a JSON array."`
}

// shownSetting is a setting as config show prints it.
type shownSetting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // flag, default, the variable, or the file and its line
}

func (c *configShowCmd) Run(std Streams, conf *configuration, ctx *kong.Context) error {
	all := []shownSetting{}
	for _, s := range conf.shown(ctx) {
		all = append(all, shownSetting{s.Name, s.Value, s.Source})
	}
	if c.JSON {
		e := json.NewEncoder(std.Out)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(all)
	}
	t := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
	for _, s := range all {
		value := terminal.Escape(s.Value)
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, value, terminal.Escape(s.Source))
	}
	return t.Flush()
}

type configValidateCmd struct{ serveFlags }

func (c *configValidateCmd) Run(std Streams, ctx *kong.Context) error {
	for _, warning := range unknownVariables(ctx.Model.Node, os.Environ()) {
		fmt.Fprintf(std.Err, "%s: warning: %s\n", ownName(), terminal.Line(warning))
	}
	if err := c.check(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(std.Out, "The configuration is right.")
	return err
}

// unknownVariables returns a warning for each variable of the environment that has
// our prefix and is not one of any command.
func unknownVariables(app *kong.Node, environ []string) []string {
	var names, warnings []string
	var collect func(*kong.Node)
	collect = func(n *kong.Node) {
		for _, flag := range n.Flags {
			names = append(names, flag.Envs...)
		}
		for _, child := range n.Children {
			collect(child)
		}
	}
	collect(app)
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "SERVICE_") && !slices.Contains(names, name) {
			warnings = append(warnings, fmt.Sprintf("the variable %s sets nothing; the nearest is %s", name, nearest(name, names)))
		}
	}
	return warnings
}

// check says what is wrong with the settings of serve. It touches nothing.
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

// exampleConfig is a configuration file with every setting that there is, each
// a comment.
func exampleConfig(app *kong.Node) string {
	var b strings.Builder
	b.WriteString(`# The configuration of the service: service serve --config FILE, or SERVICE_CONFIG=FILE.
# A flag of the command line beats its environment variable, which beats this file, which beats the default.
# Lists can be written as [a, b]; durations as 250ms, 10s, 30m, 12h or 30d.
# service config validate --config FILE checks it; service config show --config FILE shows what holds, and why.
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

// wrap breaks text into lines of at most width characters, where it has blanks,
// each with the prefix.
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
