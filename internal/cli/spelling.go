package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"
)

// The names that the binary is installed under. In the package it has a longer
// one, since Debian has a command called service.
const (
	usualName    = "service"
	packagedName = "service-webhooks"
)

// ownName is the name that this process was called by, as far as it is one of
// the two.
func ownName() string {
	if filepath.Base(os.Args[0]) == packagedName {
		return packagedName
	}
	return usualName
}

// spelled returns a text with the commands in it, such as service config show,
// as they have to be typed where the binary has that name.
func spelled(text, name string) string {
	if name == usualName || !strings.Contains(text, usualName+" ") {
		return text
	}
	return regexp.MustCompile(`\bservice (`+commandWords+`|help|--help)\b`).ReplaceAllString(text, name+" $1")
}

// commandWords are the first words of all commands.
const commandWords = "serve|standby|promote|publish|listen|token|admin|backup|restore|release|salvage|compact|key|config|doctor|healthcheck|bench|completion|man|version"

// spellAll spells the help of a command, and of all below it.
func spellAll(n *kong.Node, name string) {
	n.Help, n.Detail = spelled(n.Help, name), spelled(n.Detail, name)
	for _, f := range n.Flags {
		f.Help = spelled(f.Help, name)
	}
	for _, child := range n.Children {
		spellAll(child, name)
	}
}

// nameFlag is for a binary that was installed under another name.
type nameFlag struct {
	Name string `default:"${name}" env:"-" placeholder:"NAME" help:"The name that the binary is installed under."`
}

func (n nameFlag) check() error {
	var f configErrors
	if n.Name == "" || strings.Trim(n.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "" {
		f.add("name", "must have nothing but a to z, digits, -, _ and ., not %q", n.Name)
	}
	return f.err()
}
