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

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// maxConfigFile bounds the configuration file, in bytes.
const maxConfigFile = 1 << 20

// configuration is where the settings of one call come from. A flag beats its
// environment variable, which beats the file, which beats the default. The file
// is YAML with the names of the flags of serve; the other commands take from it
// the flags that they share with serve.
//
// It belongs to one call of run, and is not safe for concurrent use.
type configuration struct {
	path    string // of the file, "" for none
	entries map[string]entry
	errs    configErrors      // of the file itself
	origins map[string]string // of the flags of the command: a variable, or a line of the file; what is not here was a flag, or is the default
	given   map[string]bool   // the flags of the command that are not at their default
	loaded  bool
}

// entry is one setting of the file.
type entry struct {
	line  int
	value string // lists with commas
	wrong bool   // which is told: the default stands in
}

// fileFlags are the flags that a configuration file may hold: those of serve,
// but for what is asked of one call alone.
func fileFlags(app *kong.Node) []*kong.Flag {
	var all []*kong.Flag
	for _, command := range app.Children {
		if command.Name != "serve" {
			continue
		}
		for _, flag := range command.Flags {
			if flag.Name != "config" && flag.Name != "demo" {
				all = append(all, flag)
			}
		}
	}
	return all
}

// load reads the file, once. What is wrong with it is in c.errs then.
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
		err = fmt.Errorf("%s is no configuration file: it has more than %d bytes", path, maxConfigFile)
	}
	return text, err
}

// parse reads the settings of the file.
func (c *configuration) parse(text []byte, known map[string]*kong.Flag, names []string) {
	at := func(line int, format string, args ...any) {
		c.errs = append(c.errs, configError{text: fmt.Sprintf("%s line %d: ", c.path, line) + fmt.Sprintf(format, args...)})
	}
	var document, second yaml.Node
	d := yaml.NewDecoder(strings.NewReader(string(text)))
	if err := d.Decode(&document); errors.Is(err, io.EOF) {
		return // nothing but comments
	} else if err != nil {
		c.errs = append(c.errs, configError{text: c.path + " cannot be read as YAML: " + strings.TrimPrefix(err.Error(), "yaml: ")})
		return
	}
	if err := d.Decode(&second); err == nil {
		at(second.Line, "there is a second document; all settings stand in one")
		return
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return
	}
	if root.Kind != yaml.MappingNode {
		at(root.Line, "there must be settings, a line each, such as retention: 30d")
		return
	}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		flag := known[key.Value]
		before, twice := c.entries[key.Value]
		switch {
		case flag == nil:
			at(key.Line, "%q is no setting; the nearest is %s", key.Value, nearest(key.Value, names))
			continue
		case twice:
			at(key.Line, "%s stands in line %d already", key.Value, before.line)
			continue
		}
		e := entry{line: key.Line}
		var wrong string
		if e.value, wrong = settingValue(value, flag); wrong != "" {
			at(key.Line, "%s: %s", key.Value, wrong)
			e.wrong = true
		}
		c.entries[key.Value] = e
	}
}

// settingValue reads the value of a flag as the command line would have it, or
// says what is wrong with it.
func settingValue(n *yaml.Node, flag *kong.Flag) (value, wrong string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return "", "has no value; leave the line out for the default"
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
	return "", "must be a value, not settings of its own"
}

// nearest returns the name that is the fewest changes of a letter away.
func nearest(s string, names []string) string {
	best, least := "", len(s)+1<<10
	for _, name := range names {
		if d := distance(s[:min(len(s), 100)], name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Validate is part of kong.Resolver.
func (c *configuration) Validate(*kong.Application) error { return nil }

// The ranks of where a setting can come from.
const (
	fromDefault = iota
	fromFile
	fromVariable
	fromFlag
)

// Resolve returns the value of a flag that is not on the command line, nil for
// that of its variable or its default. It is kong's to call, once for each.
func (c *configuration) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !c.loaded {
		path := ""
		for _, f := range ctx.Flags() {
			if f.Name == "config" {
				path, _ = ctx.FlagValue(f).(string)
			}
		}
		c.load(ctx.Model.Node, path)
		for _, f := range ctx.Flags() {
			if c.rank(ctx, f) != fromDefault {
				c.given[f.Name] = true
			}
		}
	}
	rank := c.rank(ctx, flag)
	// A secret and the file that holds it are one setting: the higher source
	// of the two has it.
	for _, f := range ctx.Flags() {
		if pairs(flag, f) && c.rank(ctx, f) > rank && rank != fromDefault {
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
		if e.wrong {
			return nil, nil
		}
		return e.value, nil
	}
	return nil, nil
}

// rank says where the value of a flag comes from.
func (c *configuration) rank(ctx *kong.Context, flag *kong.Flag) int {
	for _, p := range ctx.Path {
		if p.Flag == flag && !p.Resolved {
			return fromFlag
		}
	}
	if _, _, ok := variable(flag); ok {
		return fromVariable
	}
	// A flag of the same name that is another's setting has no such variable.
	if _, ok := c.entries[flag.Name]; ok && slices.Contains(flag.Envs, "SERVICE_"+strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))) {
		return fromFile
	}
	return fromDefault
}

// variable returns the environment variable that a flag is set by.
func variable(flag *kong.Flag) (name, value string, ok bool) {
	for _, name := range flag.Envs {
		if value, ok := os.LookupEnv(name); ok {
			return name, value, true
		}
	}
	return "", "", false
}

// pairs says whether one of two flags is a secret and the other the file that
// holds it.
func pairs(a, b *kong.Flag) bool { return a.Name == b.Name+"-file" || a.Name+"-file" == b.Name }

// explain adds to what a command said is wrong with its settings what is wrong
// with the file, and names each as it was given. Other errors it leaves alone.
func (c *configuration) explain(err error) error {
	var wrong configErrors
	if err != nil && !errors.As(err, &wrong) {
		return err
	}
	if len(c.errs)+len(wrong) == 0 {
		return err
	}
	all := slices.Concat(c.errs, wrong)
	for i := range all {
		if from := c.origins[all[i].flag]; from != "" {
			all[i] = configError{text: from + ": " + all[i].text}
		}
	}
	return all.err()
}

// shown are the flags of a command by their names, with where each comes from,
// secrets masked.
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
			s.Value = "set" // where a URL leads to may be a secret too
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

// isSecret says whether a flag is a secret: it then has another that names the
// file which holds it.
func isSecret(flags []*kong.Flag, flag *kong.Flag) bool {
	return slices.ContainsFunc(flags, func(f *kong.Flag) bool { return f.Name == flag.Name+"-file" })
}
