package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	nameFlag
	Shell string `arg:"" optional:"" help:"bash, zsh or fish."`
}

// Help says how to install each script. kong does not wrap lines that begin with a space.
func (c *completionCmd) Help() string {
	return `To install it:

  bash: source <(service completion bash)
  zsh:  service completion zsh > "${fpath[1]}/_` + ownName() + `"
  fish: service completion fish > ~/.config/fish/completions/` + ownName() + `.fish`
}

func (c *completionCmd) Run(std Streams, ctx *kong.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	script := map[string]func([]commandNode, string) string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	switch {
	case c.Shell == "":
		return usagef("name the shell: bash, zsh or fish")
	case script == nil:
		return usagef("no completion for shell %q; the shells are bash, zsh and fish", c.Shell)
	}
	spellAll(ctx.Model.Node, c.Name)
	all := commandTree(ctx.Model.Node, nil)
	_, err := io.WriteString(std.Out, script(all, c.Name))
	return err
}

// commandNode is a command and its position on the command line.
type commandNode struct {
	path     string // such as "token create"; empty for the binary itself
	node     *kong.Node
	flags    []*kong.Flag // its own, without its parents' flags
	commands []*kong.Node // its subcommands
}

// commandTree returns a command and all of its subcommands, in the order of the help.
func commandTree(n *kong.Node, path []string) []commandNode {
	c := commandNode{path: strings.Join(path, " "), node: n}
	for _, f := range n.Flags {
		if !f.Hidden {
			c.flags = append(c.flags, f)
		}
	}
	var below []commandNode
	for _, child := range n.Children {
		if child.Hidden || child.Type != kong.CommandNode {
			continue
		}
		c.commands = append(c.commands, child)
		below = append(below, commandTree(child, append(path[:len(path):len(path)], child.Name))...)
	}
	return append([]commandNode{c}, below...)
}

// choices returns the values that the placeholder of a flag lists, if any.
func choices(f *kong.Flag) []string {
	if !strings.Contains(f.PlaceHolder, "|") {
		return nil
	}
	return strings.Split(f.PlaceHolder, "|")
}

// namesFile reports whether the value of a flag is a file or directory name.
func namesFile(f *kong.Flag) bool { return f.PlaceHolder == "FILE" || f.PlaceHolder == "DIR" }

// summary returns the first sentence of a help text.
func summary(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	first, _, _ = strings.Cut(first, ": ")
	return strings.TrimSuffix(first, ".")
}

// bashCompletion returns a script for bash 3.2 and newer. It does not need the
// bash-completion package.
func bashCompletion(all []commandNode, name string) string {
	var paths, names, values strings.Builder
	seen := make(map[string]bool)
	for _, c := range all {
		var words []string
		for _, child := range c.commands {
			words = append(words, child.Name)
			fmt.Fprintf(&paths, "      %q) path=%q ;;\n", c.path+"/"+child.Name, strings.TrimSpace(c.path+" "+child.Name))
		}
		for _, f := range c.flags {
			words = append(words, "--"+f.Name)
		}
		if c.path != "" {
			words = append(words, "--help")
		}
		if c.path == "completion" {
			words = append(words, "bash", "zsh", "fish")
		}
		fmt.Fprintf(&names, "    %q) words=%q ;;\n", c.path, strings.Join(words, " "))
		for _, f := range c.flags {
			value := c.path + "/--" + f.Name
			switch list := choices(f); {
			case f.IsBool() || seen[value]:
			case list != nil:
				fmt.Fprintf(&values, "    %q) COMPREPLY=($(compgen -W %q -- \"$cur\")); return ;;\n", value, strings.Join(list, " "))
			case namesFile(f):
				fmt.Fprintf(&values, "    %q) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", value)
			default:
				fmt.Fprintf(&values, "    %q) return ;;\n", value)
			}
			seen[value] = true
		}
	}
	return `# bash completion: source <(` + name + ` completion bash)
_service() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} path= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path/${COMP_WORDS[i]}" in
` + paths.String() + `    esac
  done
  COMPREPLY=()
  case "$path/$prev" in
` + values.String() + `  esac
  case "$path" in
` + names.String() + `  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _service ` + name + "\n"
}

// zshCompletion returns a script for zsh's compinit.
func zshCompletion(all []commandNode, name string) string {
	item := func(name, help string) string {
		return zshQuote(strings.ReplaceAll(name, ":", `\:`) + ":" + summary(help))
	}
	var paths, names, values strings.Builder
	for _, c := range all {
		fmt.Fprintf(&names, "    %s)\n      commands=(", zshQuote(c.path))
		for _, child := range c.commands {
			fmt.Fprintf(&names, "\n        %s", item(child.Name, child.Help))
			fmt.Fprintf(&paths, "      %s) path=%s ;;\n", zshQuote(c.path+"/"+child.Name), zshQuote(strings.TrimSpace(c.path+" "+child.Name)))
		}
		if c.path == "completion" {
			names.WriteString(" bash zsh fish")
		}
		names.WriteString(")\n      flags=(")
		for _, f := range c.flags {
			fmt.Fprintf(&names, "\n        %s", item("--"+f.Name, f.Help))
			value := zshQuote(c.path + "/--" + f.Name)
			switch list := choices(f); {
			case f.IsBool():
			case list != nil:
				fmt.Fprintf(&values, "    %s) compadd -- %s; return ;;\n", value, strings.Join(list, " "))
			case namesFile(f):
				fmt.Fprintf(&values, "    %s) _files; return ;;\n", value)
			default:
				fmt.Fprintf(&values, "    %s) return ;;\n", value)
			}
		}
		names.WriteString(") ;;\n")
	}
	return "#compdef " + name + `
# zsh completion: ` + name + ` completion zsh > "${fpath[1]}/_` + name + `"
_service() {
  local -a commands flags
  local spath= word
  for word in ${words[2,CURRENT-1]}; do
    case "$spath/$word" in
` + strings.ReplaceAll(paths.String(), ") path=", ") spath=") + `    esac
  done
  case "$spath/${words[CURRENT-1]}" in
` + values.String() + `  esac
  case "$spath" in
` + names.String() + `  esac
  if [[ ${words[CURRENT]} == -* ]]; then
    _describe -o flag flags
  elif (( $#commands )); then
    _describe command commands
  else
    _files
  fi
}
if [[ $funcstack[1] == _` + name + ` ]]; then _service "$@"; else compdef _service ` + name + `; fi
`
}

func zshQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// fishCompletion returns a script for fish 3 and newer.
func fishCompletion(all []commandNode, name string) string {
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
	}
	var paths, names strings.Builder
	for _, c := range all {
		here := quote("__service_at " + quote(c.path))
		for _, child := range c.commands {
			fmt.Fprintf(&names, "complete -c "+name+" -f -n %s -a %s -d %s\n", here, child.Name, quote(summary(child.Help)))
			fmt.Fprintf(&paths, "            case %s\n                set path %s\n",
				quote(c.path+"/"+child.Name), quote(strings.TrimSpace(c.path+" "+child.Name)))
		}
		if c.path == "completion" {
			fmt.Fprintf(&names, "complete -c "+name+" -f -n %s -a 'bash zsh fish'\n", here)
		}
		for _, f := range c.flags {
			fmt.Fprintf(&names, "complete -c "+name+" -n %s -l %s -d %s", here, f.Name, quote(summary(f.Help)))
			switch list := choices(f); {
			case f.IsBool():
			case list != nil:
				fmt.Fprintf(&names, " -x -a %s", quote(strings.Join(list, " ")))
			case namesFile(f):
				names.WriteString(" -r -F")
			default:
				names.WriteString(" -x")
			}
			names.WriteString("\n")
		}
	}
	return "# fish completion: " + name + " completion fish > ~/.config/fish/completions/" + name + ".fish" + `
function __service_at
    set -l path ''
    for word in (commandline -opc)[2..]
        switch "$path/$word"
` + paths.String() + `        end
    end
    test "$path" = "$argv[1]"
end
` + names.String()
}
