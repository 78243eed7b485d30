package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct{ nameFlag }

func (c *manCmd) Run(std Streams, ctx *kong.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	spellAll(ctx.Model.Node, c.Name)
	_, err := io.WriteString(std.Out, manPage(ctx.Model.Node, c.Name))
	return err
}

// manPage returns the manual page for man(1), generated from the command line.
func manPage(app *kong.Node, name string) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`.TH %s 1 "" "service %s" "Webhooks"`, roff(strings.ToUpper(name)), roff(version()))
	p(".SH NAME\n%s \\- %s", roff(name), roff("sends webhooks: API, admin UI and delivery in one binary"))
	p(".SH SYNOPSIS\n.B %s\n.I COMMAND\n[\\fIFLAG\\fR ...]", roff(name))
	p(".SH DESCRIPTION\n%s", roff("Partners subscribe through a REST API, the platform publishes events, "+
		"and every event is delivered at least once to every subscription for it. "+
		name+" serve runs everything, on one data directory. "+
		"The other commands ask the running server through the admin socket, a Unix socket in that directory. "+
		"If no server is running, they open the data themselves."))
	p(".SH COMMANDS")
	for _, c := range commandTree(app, nil) {
		if c.path == "" || len(c.commands) > 0 {
			continue
		}
		usage := ""
		for _, a := range c.node.Positional {
			name := strings.ToUpper(a.Name)
			if !a.Required {
				name = "[" + name + "]"
			}
			usage += " " + name
		}
		p(".SS %s", roff(name+" "+c.path+usage))
		p("%s", roff(c.node.Help))
		for _, a := range c.node.Positional {
			p(".TP\n\\fI%s\\fR\n%s", roff(strings.ToUpper(a.Name)), roff(a.Help))
		}
		for _, f := range c.flags {
			value := ""
			if !f.IsBool() {
				value = "=\\fI" + roff(f.FormatPlaceHolder()) + "\\fR"
				if f.PlaceHolder != "" {
					value = "=\\fI" + roff(f.PlaceHolder) + "\\fR"
				}
			}
			p(".TP\n\\fB%s\\fR%s\n%s", roff("--"+f.Name), value, roff(describe(f.Value)))
		}
	}
	p(".SH CONFIGURATION\n%s", roff("A flag takes precedence over its environment variable, "+
		"then the file set by --config or SERVICE_CONFIG, otherwise config.yml in "+placesOf(name).configName()+", then the default. "+
		"The file is YAML; its keys are the flags of "+name+" serve. "+
		"A secret can also be read from a file with one line: set the flag with the suffix -file or the variable with the suffix _FILE."))
	p(".SH FILES")
	at := placesOf(name)
	for _, f := range [][2]string{
		{at.data, "The data directory, unless set by --data: service.db, secret.key and other files of the service."},
		{filepath.Join(at.config, configFile), "The configuration, unless set by --config."},
		{filepath.Join(at.config, replicaFile), "The configuration of the replica, unless set by --litestream."},
		{filepath.Join(placesOf(packagedName).config, environmentFile),
			"Environment variables of the packaged service, one NAME=value per line."},
	} {
		p(".TP\n.I %s\n%s", roff(f[0]), roff(f[1]))
	}
	p(".SH EXIT STATUS")
	for _, s := range [][2]string{
		{"0", "Success."},
		{"1", "Failure. stderr has the reason in one line."},
		{"2", "Invalid usage or configuration. Nothing was changed."},
	} {
		p(".TP\n.B %s\n%s", s[0], s[1])
	}
	p(".SH EXAMPLES")
	for _, e := range [][2]string{
		{"Try it on temporary data:", " serve --demo"},
		{"Run it:", " serve"},
		{"Create a token:", " token create --program acme --user me --scope events.write"},
		{"Find problems:", " doctor"},
	} {
		p(".PP\n%s\n.PP\n.RS\n.nf\n%s\n.fi\n.RE", roff(e[0]), roff(name+e[1]))
	}
	return b.String()
}

// roff escapes text for roff, so that none of it is read as a request or an escape.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "\n", " ", "…", `\&...`, "±", `\(+-`, "’", `\(cq`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
