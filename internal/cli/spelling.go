package cli

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// Names of the binary. The package uses the longer name because Debian has a command named service.
const (
	usualName    = "service"
	packagedName = "service-webhooks"
)

// ownName returns the name of the installation: the packaged name if this process was started under
// it, otherwise the usual name. [commandName] is for text that a reader types.
func ownName() string {
	if filepath.Base(os.Args[0]) == packagedName {
		return packagedName
	}
	return usualName
}

// commandName returns what to type in a shell to run this program again: its name, or the path that
// it was started with if the name alone would run another program. ./service on Debian is such a
// case, because Debian has a command named service.
func commandName() string {
	base := filepath.Base(os.Args[0])
	if base == os.Args[0] {
		return base
	}
	found, err := exec.LookPath(base)
	if err != nil {
		return shellQuote(os.Args[0])
	}
	there, err := os.Stat(found)
	here, hereErr := os.Stat(os.Args[0])
	if err != nil || hereErr != nil || !os.SameFile(there, here) {
		return shellQuote(os.Args[0])
	}
	return base
}

// spelled returns a text with its commands, such as service config show, changed to the
// given name of the binary.
func spelled(text, name string) string {
	if name == usualName || !strings.Contains(text, usualName+" ") {
		return text
	}
	return regexp.MustCompile(`\bservice (`+commandWords+`|help|--help)\b`).ReplaceAllStringFunc(text, func(s string) string {
		return name + strings.TrimPrefix(s, usualName)
	})
}

// spelledLog is spelled for the parts of a log record that this program writes: the message and the
// error.
func spelledLog(_ []string, a slog.Attr) slog.Attr {
	switch x := a.Value.Any().(type) {
	case string:
		if a.Key == slog.MessageKey {
			a.Value = slog.StringValue(spelled(x, commandName()))
		}
	case error:
		if text := x.Error(); strings.Contains(text, usualName+" ") {
			a.Value = slog.StringValue(spelled(text, commandName()))
		}
	}
	return a
}

// commandWords are the first words of all commands, for a regular expression.
const commandWords = "serve|promote|publish|listen|filter|event|token|program|portal-link|apply|audit|admin|backup|restore|release|" +
	"salvage|compact|" +
	"key|config|doctor|healthcheck|bench|completion|man|version"

// spellAll applies spelled to the help of a command and its subcommands.
func spellAll(app *kong.Node, name string) {
	for _, n := range nodes(app) {
		n.Help, n.Detail = spelled(n.Help, name), spelled(n.Detail, name)
		for _, f := range n.Flags {
			f.Help = spelled(f.Help, name)
		}
	}
}

// nameFlag sets the name of a binary that is installed under another name.
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
