package web

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// inlineElements do not separate the text around them.
var inlineElements = []string{"a", "abbr", "b", "button", "code", "del", "em", "i", "ins", "kbd", "label", "small", "span", "strong", "svg",
	"time", "use", "wbr"}

// unreadElements contain no prose.
var unreadElements = []string{"code", "kbd", "pre", "script", "style", "svg", "template", "textarea"}

// strayRE finds a space before punctuation or just within parentheses.
var strayRE = regexp.MustCompile(`.{0,40}(?:[^\s.,:;] [.,:;](?:\W|$)|\( | \)).{0,20}`)

// strayIn returns the places with a stray space in a page's text, as a browser shows it.
func strayIn(page string) (found []string) {
	var text strings.Builder
	unread := ""
	for z := html.NewTokenizer(strings.NewReader(page)); ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			break
		}
		token := z.Token()
		switch {
		case unread != "":
			if kind == html.EndTagToken && token.Data == unread {
				unread = ""
			}
		case kind == html.TextToken:
			text.WriteString(strings.ReplaceAll(token.Data, "\n", " "))
		case kind == html.StartTagToken && slices.Contains(unreadElements, token.Data):
			unread = token.Data
			if token.Data == "code" || token.Data == "kbd" {
				text.WriteByte('_')
			}
		case !slices.Contains(inlineElements, token.Data):
			text.WriteByte('\n')
		}
	}
	for line := range strings.Lines(text.String()) {
		found = append(found, strayRE.FindAllString(strings.Join(strings.Fields(line), " "), -1)...)
	}
	return found
}

func TestStrayIn(t *testing.T) {
	for page, want := range map[string]int{
		"<p>ends <time>now</time>.</p><p>(<b>5</b>)</p>": 0,
		"<p>ends <time>now</time> .</p>":                 1,
		"<p>at\n<time>5</time>\n<span>, then</span></p>": 1,
		"<p>(\n<time>5</time> ago)":                      1,
		"<td>one</td>\n<td>: two</td><code>a . b</code>": 0,
		"<code>a</code> . b":                             1,
		"<p>the file .env":                               0,
	} {
		if got := strayIn(page); len(got) != want {
			t.Errorf("%q: got %q, want %d", page, got, want)
		}
	}
}

// The text of the golden pages contains no space before punctuation. [visitor.ask] checks the other
// pages.
func TestGoldenText(t *testing.T) {
	var files []string
	for _, pattern := range []string{"testdata/*.html", "ui/testdata/*.html"} {
		some, err := filepath.Glob(pattern)
		must(t, err)
		files = append(files, some...)
	}
	if len(files) < 2 {
		t.Fatal("there are no golden pages")
	}
	for _, file := range files {
		page, err := os.ReadFile(file)
		must(t, err)
		if found := strayIn(string(page)); found != nil {
			t.Errorf("%s: %q", file, found)
		}
	}
}
