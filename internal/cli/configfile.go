package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"service/internal/server"
	"service/internal/terminal"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// maxConfigFile bounds the configuration file, in bytes.
const maxConfigFile = 1 << 20

// configuration resolves the settings of one command. A flag takes precedence over its environment
// variable, then the file, then the default. The file is YAML, keyed by the flag names of serve;
// other commands use the flags that they share with serve.
//
// It belongs to one call of Run and is not safe for concurrent use.
type configuration struct {
	path    string // of the file; empty for none
	found   bool   // no flag or variable named the file
	entries map[string]entry
	errs    configErrors      // in the file itself
	origins map[string]string // by flag: the variable or the line of the file that set it; no entry for the command line and defaults
	given   map[string]bool   // the flags of the command that are not at their default
	loaded  bool
}

// entry is one setting of the file.
type entry struct {
	line    int
	value   string // lists are joined with commas
	invalid bool   // reported in errs; the default is used
}

// fileFlags returns the flags that a configuration file may set: those of serve except
// --config and --demo.
func fileFlags(app *kong.Node) []*kong.Flag {
	return slices.DeleteFunc(slices.Clone(serveNode(app).Flags), func(flag *kong.Flag) bool {
		return flag.Name == "config" || flag.Name == "demo"
	})
}

// load reads the file and adds its errors to c.errs.
func (c *configuration) load(app *kong.Node, path string) {
	c.loaded, c.path = true, path
	c.entries, c.origins, c.given = make(map[string]entry), make(map[string]string), make(map[string]bool)
	if path == "" {
		return
	}
	text, err := readConfig(path)
	if err != nil {
		c.errs = append(c.errs, configError{flag: "config", text: err.Error()})
		return
	}
	known := make(map[string]*kong.Flag)
	var names []string
	for _, flag := range fileFlags(app) {
		known[flag.Name] = flag
		names = append(names, flag.Name)
	}
	c.parse(text, known, names)
}

func readConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err == nil && len(text) > maxConfigFile {
		err = fmt.Errorf("%s is not a configuration file: it is larger than %d bytes", path, maxConfigFile)
	}
	return text, err
}

// parse reads the settings in text.
func (c *configuration) parse(text []byte, known map[string]*kong.Flag, names []string) {
	at := func(line int, format string, args ...any) {
		c.errs = append(c.errs, configError{text: fmt.Sprintf("%s line %d: ", c.path, line) + fmt.Sprintf(format, args...)})
	}
	var document, second yaml.Node
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return // only comments
	} else if err != nil {
		c.errs = append(c.errs, configError{text: c.path + " is not valid YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")})
		return
	}
	if err := d.Decode(&second); err == nil {
		at(second.Line, "unexpected second YAML document; put all settings into one")
		return
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return
	}
	if root.Kind != yaml.MappingNode {
		at(root.Line, "must be settings, one per line, such as retention: 30d")
		return
	}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		flag := known[key.Value]
		before, twice := c.entries[key.Value]
		switch {
		case flag == nil:
			at(key.Line, "unknown setting %q (did you mean %s?)", key.Value, terminal.Nearest(key.Value, names))
			continue
		case twice:
			at(key.Line, "%s is already set in line %d", key.Value, before.line)
			continue
		}
		e := entry{line: key.Line}
		var problem string
		if e.value, problem = settingValue(value, flag); problem != "" {
			at(key.Line, "%s: %s", key.Value, problem)
			e.invalid = true
		}
		c.entries[key.Value] = e
	}
}

// settingValue returns a YAML value in the syntax of the command line, or describes the problem
// with it.
func settingValue(n *yaml.Node, flag *kong.Flag) (value, problem string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", "has no value; remove the line to use the default"
		}
		if flag.IsBool() && n.Value != "true" && n.Value != "false" {
			return "", fmt.Sprintf("must be true or false, not %q", n.Value)
		}
		return n.Value, ""
	case yaml.SequenceNode:
		var parts []string
		for _, item := range n.Content {
			if item.Kind == yaml.AliasNode {
				item = item.Alias
			}
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return "", "must be a list of plain values"
			}
			parts = append(parts, item.Value)
		}
		if flag.IsBool() || !flag.IsSlice() && !strings.Contains(flag.Default, ",") {
			return "", "must be one value, not a list"
		}
		return strings.Join(parts, ","), ""
	}
	return "", "must be a value, not a mapping"
}

// Validate is part of kong.Resolver.
func (c *configuration) Validate(*kong.Application) error { return nil }

// The sources of a setting, in increasing precedence.
const (
	fromDefault = iota
	fromFile
	fromVariable
	fromFlag
)

// Resolve implements kong.Resolver. It returns the value of a flag that is not on the
// command line, or nil to use its variable or default.
func (c *configuration) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !c.loaded {
		c.load(ctx.Model.Node, c.choose(ctx))
		for _, f := range ctx.Flags() {
			if c.rank(ctx, f) != fromDefault {
				c.given[f.Name] = true
			}
		}
	}
	rank := c.rank(ctx, flag)
	// A secret and the file that contains it are one setting: the source of higher precedence wins.
	for _, f := range ctx.Flags() {
		if isSecretPair(flag, f) && c.rank(ctx, f) > rank && rank != fromDefault {
			delete(c.given, flag.Name)
			return "", nil
		}
	}
	switch rank {
	case fromVariable:
		name, value, _ := variable(flag)
		c.origins[flag.Name] = name
		if flag.IsBool() && !slices.Contains([]string{"true", "false", "1", "0", "yes", "no"}, strings.ToLower(value)) {
			c.errs = append(c.errs, configError{flag: flag.Name, text: fmt.Sprintf("must be true or false, not %q", value)})
			return "false", nil
		}
	case fromFile:
		e := c.entries[flag.Name]
		c.origins[flag.Name] = fmt.Sprintf("%s line %d: %s", c.path, e.line, flag.Name)
		if e.invalid {
			return nil, nil
		}
		return e.value, nil
	}
	return nil, nil
}

// choose returns the path of the file for a command, "" for none. The demo uses a file only if a
// flag or variable names it.
func (c *configuration) choose(ctx *kong.Context) (path string) {
	demo := false
	for _, f := range ctx.Flags() {
		switch f.Name {
		case "config":
			named, _ := ctx.FlagValue(f).(string)
			path, c.found = placesOf(ownName()).find(named, configFile)
		case "demo":
			demo, _ = ctx.FlagValue(f).(bool)
		}
	}
	if demo && c.found {
		return ""
	}
	return path
}

// rank returns the source of the value of a flag.
func (c *configuration) rank(ctx *kong.Context, flag *kong.Flag) int {
	for _, p := range ctx.Path {
		if p.Flag == flag && !p.Resolved {
			return fromFlag
		}
	}
	if _, _, ok := variable(flag); ok {
		return fromVariable
	}
	// Another command may have a flag of the same name with another meaning, such as listen
	// --listen, which does not read the variable.
	ownVariable := "SERVICE_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
	if _, ok := c.entries[flag.Name]; ok && slices.Contains(flag.Envs, ownVariable) {
		return fromFile
	}
	return fromDefault
}

// variable returns the environment variable that sets a flag, if any.
func variable(flag *kong.Flag) (name, value string, ok bool) {
	for _, name := range flag.Envs {
		if value, ok := os.LookupEnv(name); ok {
			return name, value, true
		}
	}
	return "", "", false
}

// isSecretPair reports whether one flag is a secret and the other names the file that contains it.
func isSecretPair(a, b *kong.Flag) bool {
	return a.Name == b.Name+"-file" || a.Name+"-file" == b.Name
}

// explain adds the errors of the file to the configuration errors of a command, and
// prefixes each with its source. It returns other errors unchanged.
func (c *configuration) explain(err error) error {
	var invalid configErrors
	if err != nil && !errors.As(err, &invalid) {
		return err
	}
	if len(c.errs)+len(invalid) == 0 {
		return err
	}
	all := slices.Concat(c.errs, invalid)
	if i := len(c.errs) - 1; c.found && i >= 0 {
		all[i].text += "; --config off ignores " + c.path
	}
	for i := range all {
		if from := c.origins[all[i].flag]; from != "" {
			all[i] = configError{text: from + ": " + all[i].text}
		}
	}
	return all.err()
}

// shown returns the settings of a command with the source of each. Secrets are masked.
func (c *configuration) shown(ctx *kong.Context) []server.Setting {
	var all []server.Setting
	flags := fileFlags(ctx.Model.Node)
	for _, flag := range ctx.Flags() {
		if !slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == flag.Name }) {
			continue
		}
		s := server.Setting{Name: flag.Name, Source: "default"}
		switch x := flag.Target.Interface().(type) {
		case string:
			s.Value = x
		case []string:
			s.Value = strings.Join(x, ", ")
		case bool:
			s.Value = strconv.FormatBool(x)
		}
		if isSecret(ctx.Flags(), flag) && s.Value != "" {
			s.Value = "set" // a URL may contain a secret
		}
		switch from := c.origins[flag.Name]; {
		case from != "":
			s.Source = strings.TrimSuffix(from, ": "+flag.Name)
		case c.given[flag.Name]:
			s.Source = "flag"
		}
		all = append(all, s)
	}
	return all
}

// isSecret reports whether a flag is a secret. A secret has a second flag, for the file that
// contains it.
func isSecret(flags []*kong.Flag, flag *kong.Flag) bool {
	return slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == flag.Name+"-file" })
}
