package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// Names of the binary. The package uses the longer one because Debian has a command named
// service.
const (
	usualName    = "service"
	packagedName = "service-webhooks"
)

// ownName returns the name that this process was started as, if it is the packaged name,
// otherwise the usual name.
func ownName() string {
	if filepath.Base(os.Args[0]) == packagedName {
		return packagedName
	}
	return usualName
}

// spelled returns a text with its commands, such as service config show, changed to the
// given name of the binary.
func spelled(text, name string) string {
	if name == usualName || !strings.Contains(text, usualName+" ") {
		return text
	}
	return regexp.MustCompile(`\bservice (`+commandWords+`|help|--help)\b`).ReplaceAllString(text, name+" $1")
}

// commandWords are the first words of all commands, for a regular expression.
const commandWords = "serve|promote|publish|listen|token|program|portal-link|apply|audit|admin|backup|restore|release|" +
	"salvage|compact|" +
	"key|config|doctor|healthcheck|bench|completion|man|version"

// spellAll applies spelled to the help of a command and its subcommands.
func spellAll(n *kong.Node, name string) {
	n.Help, n.Detail = spelled(n.Help, name), spelled(n.Detail, name)
	for _, f := range n.Flags {
		f.Help = spelled(f.Help, name)
	}
	for _, child := range n.Children {
		spellAll(child, name)
	}
}

// nameFlag is for a binary installed under another name.
type nameFlag struct {
	Name string `default:"${name}" env:"-" placeholder:"NAME" help:"Name of the installed binary."`
}

func (n nameFlag) check() error {
	var f configErrors
	if n.Name == "" || strings.Trim(n.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		f.add("name", "must consist of a to z, digits, -, _ and ., not %q", n.Name)
	}
	return f.err()
}
