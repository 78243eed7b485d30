package cli

import (
	"fmt"
	"io"
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

// manPage is the manual of the binary, for man(1). It is made of the command
// line itself, so it cannot tell of another one.
func manPage(app *kong.Node, name string) string {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p(`.TH %s 1 "" "service %s" "Webhooks"`, roff(strings.ToUpper(name)), roff(version()))
	p(".SH NAME\n%s \\- %s", roff(name), roff("sends webhooks: an API, an admin UI and the delivery, in one binary"))
	p(".SH SYNOPSIS\n.B %s\n.I COMMAND\n[\\fIFLAG\\fR ...]", roff(name))
	p(".SH DESCRIPTION\n%s", roff("Partners subscribe over a REST API, the platform publishes events, and every event reaches every subscription that asked for it, at least once. "+
		name+" serve runs everything, on one data directory. The other commands ask the running server over a socket in that directory, or open the data themselves when none runs."))
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
	p(".SH CONFIGURATION\n%s", roff("A flag beats its environment variable, which beats the file named by --config or SERVICE_CONFIG, which beats the default. "+
		"The file is YAML, with the names of the flags of "+name+" serve. A secret can also be the one line of a file, named by the flag or the variable with -file or _FILE at its end."))
	p(".SH FILES")
	for _, f := range [][2]string{
		{"./data", "The data directory, unless --data names another: service.db, secret.key, and what else the service keeps."},
		{"/etc/service-webhooks/config.yml", "The configuration of the packaged service, whose data directory is /var/lib/service-webhooks."},
	} {
		p(".TP\n.I %s\n%s", roff(f[0]), roff(f[1]))
	}
	p(".SH EXIT STATUS")
	for _, s := range [][2]string{{"0", "Done."}, {"1", "Failed; stderr says why, in one line."}, {"2", "Wrong usage, or a wrong configuration; nothing was touched."}} {
		p(".TP\n.B %s\n%s", s[0], s[1])
	}
	p(".SH EXAMPLES")
	for _, e := range [][2]string{
		{"Look at it, on throw-away data:", " serve --demo"},
		{"Run it:", " serve --config /etc/service/config.yml"},
		{"Make a token:", " token create --program acme --user me --scope events.write"},
		{"Find out what is wrong:", " doctor"},
	} {
		p(".PP\n%s\n.PP\n.RS\n.nf\n%s\n.fi\n.RE", roff(e[0]), roff(name+e[1]))
	}
	return b.String()
}

// roff renders text so that no part of it is taken for a request or an escape.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "\n", " ", "…", `\&...`, "’", `\(cq`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
