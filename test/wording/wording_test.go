// Package wording checks the wording and line widths of the project: no word or phrase of a list
// occurs in comments, strings, templates, scripts, style sheets and Markdown, no line of Go and
// no line of comments is too wide, and Markdown is wrapped at 100 columns or not at all. A
// comment that contains "wording:" and the reason exempts its line.
package wording

import (
	"bufio"
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	root        = "../.."
	maxColumn   = 140 // of Go, and of comments elsewhere
	maxMarkdown = 100
	slack       = 10 // columns that a wrapped line of Markdown may leave empty
	exception   = "wording:"
)

// unwanted are words and phrases that made the project read as if translated.
// wording: they are listed here
var unwanted = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`anew`, `heed(s|ed|ing)?`, `lest`, `(is|are|was|were) told`, `beside`, `mean` + `while`, `at the most`, // wording: the list
	`also (after|across|if|when|while)`, `(\d|once|twice|times|bytes) an? (second|minute|hour|day|line)`, // wording: the list
	`for want of`, `whoever`, `whomever`, `in vain`, `came of`, `comes of`, `is to be had`, `aught`, // wording: the list
	`the page of (the|an?) (subscription|delivery|program|incident|event|event type|bulk run|run|token|channel)`, // wording: the list
	`the log has`, `limit of invalid tokens`, `the log of the (service|endpoint|source|kernel)`, // wording: the list
}, "|") + `)\b`)

// vague are phrases that comments of Go code used in place of a noun. Pages and records may use them.
var vague = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`(some|any|every)body`, `those too`, `what is left of`, `that (is|are) gone`, `the (least|most) that`, // wording: the list
}, "|") + `)\b`)

// lowerID matches id where prose says ID: after an article or the like, or in the plural. A comment may begin
// with the name of the variable or function that it describes.
var lowerID = regexp.MustCompile(`\b(?:[Aa]n|[Tt]he|[Ii]ts|[Tt]heir|whose|by|no|this|that|same|new|random) id\b|\b[a-zA-Z]+,? ids\b`)

// finding is a line that breaks a rule.
type finding struct {
	file string
	line int
	what string
}

func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.what) }

// TestWording names the file and line of everything that breaks a rule.
func TestWording(t *testing.T) {
	for _, name := range sources(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range check(name, text) {
			t.Error(f)
		}
	}
}

// extensions are the kinds of files that the test reads.
var extensions = []string{".go", ".templ", ".md", ".yaml", ".yml", ".js", ".mjs", ".css", ".sh", ".txtar"}

// sources returns the hand-written files, relative to the root.
func sources(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules" || name == "assets/dist" || name == "assets/vendor"):
			return filepath.SkipDir
		case entry.IsDir(), strings.HasSuffix(name, "_templ.go"), strings.HasPrefix(name, "packaging/THIRD_PARTY"):
			return nil
		}
		if slices.Contains(extensions, filepath.Ext(name)) || name == ".ci/run" || name == "Makefile" {
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// check returns the findings of one file.
func check(name string, text []byte) []finding {
	if filepath.Ext(name) == ".go" {
		return append(checkGo(name, text), checkWidth(name, text)...)
	}
	all := checkLines(name, text)
	if filepath.Ext(name) == ".md" {
		return append(append(all, checkWrapping(name, text)...), checkIDs(name, text)...)
	}
	return append(all, checkComments(name, text)...)
}

// comment matches the start of a comment line. directive matches the first line of a journey,
// which cannot be wrapped.
var comment, directive = regexp.MustCompile(`^\s*(//|/\*|\*|#) `), "// serve "

// checkComments checks the width of whole comment lines. Code may be wider, because long strings
// and selectors are not wrapped.
func checkComments(name string, text []byte) (all []finding) {
	for i, line := range strings.Split(string(text), "\n") {
		if n := utf8.RuneCountInString(line); n > maxColumn && comment.MatchString(line) && !strings.HasPrefix(line, directive) &&
			!strings.Contains(line, exception) {
			all = append(all, finding{name, i + 1, fmt.Sprintf("comment of %d columns, want %d at most", n, maxColumn)})
		}
	}
	return all
}

// checkGo checks comments and string literals: identifiers and keywords are not sentences.
func checkGo(name string, text []byte) (all []finding) {
	lines := bytes.Split(text, []byte("\n"))
	files := token.NewFileSet()
	file := files.AddFile(name, -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, scanner.ScanComments)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return all
		}
		if tok != token.COMMENT && tok != token.STRING {
			continue
		}
		first := file.Line(pos)
		found := unwanted.FindAllStringIndex(literal, -1)
		if tok == token.COMMENT {
			found = append(found, vague.FindAllStringIndex(literal, -1)...)
			found = append(found, lowerID.FindAllStringIndex(literal, -1)...)
		}
		for _, at := range found {
			line := first + strings.Count(literal[:at[0]], "\n")
			if !bytes.Contains(lines[line-1], []byte(exception)) {
				all = append(all, finding{name, line, fmt.Sprintf("%q", literal[at[0]:at[1]])})
			}
		}
	}
}

// checkWidth ignores raw strings, which quote other languages such as JSON or are struct tags,
// and directives such as go:generate, which cannot be wrapped.
func checkWidth(name string, text []byte) (all []finding) {
	raw := rawStrings(text)
	start := 0
	for i, line := range bytes.Split(text, []byte("\n")) {
		end := start + len(line)
		n := utf8.RuneCount(line)
		for _, r := range raw {
			if from, to := max(r[0], start), min(r[1], end); from < to {
				n -= utf8.RuneCount(text[from:to])
			}
		}
		if n > maxColumn && !bytes.HasPrefix(line, []byte("//go:")) && !bytes.Contains(line, []byte(exception)) {
			all = append(all, finding{name, i + 1, fmt.Sprintf("%d columns, want %d at most", n, maxColumn)})
		}
		start = end + 1
	}
	return all
}

// rawStrings returns the range of each raw string.
func rawStrings(text []byte) (all [][2]int) {
	file := token.NewFileSet().AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return all
		}
		if tok == token.STRING && literal[0] == '`' {
			all = append(all, [2]int{file.Offset(pos), file.Offset(pos) + len(literal)})
		}
	}
}

func checkLines(name string, text []byte) (all []finding) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for n := 1; lines.Scan(); n++ {
		if strings.Contains(lines.Text(), exception) {
			continue
		}
		for _, word := range unwanted.FindAllString(lines.Text(), -1) {
			all = append(all, finding{name, n, fmt.Sprintf("%q", word)})
		}
	}
	return all
}

var proseID = regexp.MustCompile(`(?:^|[^\w./-])([iI]ds?)(?:[^\w/=-]|$)`)

// checkIDs checks that prose says ID: id is the name of a field, in code.
func checkIDs(name string, text []byte) (all []finding) {
	fenced := false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		line = markdownLink.ReplaceAllString(inCode.ReplaceAllString(line, ""), "]")
		if m := proseID.FindStringSubmatch(line); m != nil && !fenced && !strings.HasPrefix(line, "    ") {
			all = append(all, finding{name, i + 1, fmt.Sprintf("%q in prose, want ID", m[1])})
		}
	}
	return all
}

var (
	listItem = regexp.MustCompile(`^\s*([-*+]|\d+\.)\s`)
	noProse  = regexp.MustCompile(`^\s*($|#|\||<|>|=+$|-+$|\[[^\]]+\]:)`)
)

// checkWrapping checks pairs of lines in a paragraph: the first is at most 100 columns wide, and
// has no room for the first word of the next.
func checkWrapping(name string, text []byte) (all []finding) {
	previous, fenced := "", false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			previous = ""
			continue
		}
		if fenced || noProse.MatchString(line) {
			previous = ""
			continue
		}
		// A block whose first line is indented by four spaces is code.
		if previous == "" && strings.HasPrefix(line, "    ") && !listItem.MatchString(line) {
			continue
		}
		if previous != "" && !listItem.MatchString(line) && !strings.HasSuffix(previous, "  ") {
			if what := odd(previous, line); what != "" {
				all = append(all, finding{name, i, what})
			}
		}
		previous = line
	}
	return all
}

// unbreakable matches the first word of a line, or code or a link at its start, which may contain
// spaces.
var unbreakable = regexp.MustCompile("^[^\\s`[]*(`[^`]*`\\S*|\\[[^\\]]*(\\](\\([^)]*\\))?)?\\S*)?")

// odd returns what is wrong with a line that the next one continues.
func odd(line, next string) string {
	width := utf8.RuneCountInString(line)
	word := unbreakable.FindString(strings.TrimSpace(next))
	switch {
	case width > maxMarkdown && strings.Contains(strings.TrimSpace(line), " "):
		return fmt.Sprintf("wrapped at %d columns, want %d at most, or one line", width, maxMarkdown)
	case width+1+utf8.RuneCountInString(word) <= maxMarkdown-slack:
		return fmt.Sprintf("wrapped at %d columns, where %q still fits", width, word)
	}
	return ""
}

// TestFindings plants examples that each rule must find, and others that it must accept.
func TestFindings(t *testing.T) {
	short := "A line that ends early,\nthough the next would fit.\n"
	wide := strings.Repeat("word ", 21) + "word\nand on.\n"
	for _, c := range []struct {
		name, file, text string
		want             []string
	}{
		{"comment", "a.go", "package a\n\n// It is read anew.\n", []string{`a.go:3: "anew"`}},                                          // wording: planted
		{"string", "a.go", "package a\n\nvar a = `x\nHeeded: at the most 3`\n", []string{`a.go:4: "Heeded"`, `a.go:4: "at the most"`}}, // wording: planted
		{"identifier", "a.go", "package a\n\nvar anew = 1\n", nil},                                                                     // wording: planted
		{"part of a word", "a.md", "The heedless lesser besides.\n", nil},
		{"exception", "a.go", "package a\n\nvar a = `lest` // wording: a quotation\n", nil},
		{"wide Go", "a.go", "package a\n\n// " + strings.Repeat("x", 138) + "\n", []string{"a.go:3: 141 columns, want 140 at most"}},
		{"template", "a.templ", "<p>whoever comes</p>\n", []string{`a.templ:1: "whoever"`}}, // wording: planted
		{"script", "a.mjs", "// It is read anew.\n", []string{`a.mjs:1: "anew"`}},           // wording: planted
		{"style sheet", "a.css", "/* Heed this. */\n", []string{`a.css:1: "Heed"`}},         // wording: planted
		{"wide comment", "a.js", "  // " + strings.Repeat("x", 136) + "\n", []string{"a.js:1: comment of 141 columns, want 140 at most"}},
		{"wide script", "a.js", strings.Repeat("x", 141) + "\n", nil},
		{"wrapped early", "a.md", short, []string{`a.md:1: wrapped at 23 columns, where "though" still fits`}},
		{"wrapped late", "a.md", wide, []string{"a.md:1: wrapped at 109 columns, want 100 at most, or one line"}},
		{"one line", "a.md", strings.Repeat("word ", 40) + "\n\nNext.\n", nil},
		{"a list", "a.md", "- one\n- two\n", nil},
		{"code", "a.md", "```\na\nb\n```\n\n    c\n    d\n", nil},
		{"even", "a.js", "// kept, also after a crash\n", []string{`a.js:1: "also after"`}},                                    // wording: planted
		{"per", "a.js", "// at most 6 a minute\n", []string{`a.js:1: "6 a minute"`}},                                           // wording: planted
		{"chain", "a.go", "package a\n\n// The page of a delivery.\n", []string{`a.go:3: "The page of a delivery"`}},           // wording: a case
		{"vague", "a.go", "package a\n\n// The most that counts.\nvar a = `those too`\n", []string{`a.go:3: "The most that"`}}, // wording: a case
		{"ID in a comment", "a.go", "package a\n\n// ids returns the ids of all, by id.\nvar a = `an id`\n", // wording: a case
			[]string{`a.go:3: "the ids"`, `a.go:3: "by id"`}},
		{"ID", "a.md", "The ids and [an id](a.md#the-id).\n", []string{`a.md:1: "ids" in prose, want ID`}},
		{"ID in code", "a.md", "`id` and `a.id`\n\n```\nthe id\n```\n", nil},
		{"table", "a.md", "| a | b |\n|---|---|\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, f := range check(c.file, []byte(c.text)) {
				got = append(got, f.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
