package wording

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"service/test/harness"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inCode       = regexp.MustCompile("`[^`]*`")
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of a page's headings, as GitHub generates them, and its lines outside
// of code.
func anchors(text string) (all map[string]bool, prose []string) {
	all = make(map[string]bool)
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		prose = append(prose, line)
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			title = strings.ToLower(strings.TrimSpace(title))
			all[strings.ReplaceAll(notInAnchor.ReplaceAllString(title, ""), " ", "-")] = true
		}
	}
	return all, prose
}

var namedPage = regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(?:#[a-z0-9-]+)?`)

// linksOf returns the pages that a file links to or names, relative to the root.
func linksOf(t *testing.T, file string) (all []string) {
	t.Helper()
	switch ext := filepath.Ext(file); {
	case ext == ".md":
		_, prose := anchors(string(harness.Read(t, harness.Path(file))))
		for _, m := range markdownLink.FindAllStringSubmatch(inCode.ReplaceAllString(strings.Join(prose, ""), ""), -1) {
			path, anchor, _ := strings.Cut(m[1], "#")
			switch {
			case strings.Contains(m[1], ":"): // of another site
			case path == "":
				all = append(all, file+"#"+anchor)
			default:
				all = append(all, filepath.Join(filepath.Dir(file), path)+"#"+anchor)
			}
		}
	case slices.Contains([]string{".go", ".templ", ".yml", ".yaml"}, ext) && !strings.Contains(file, "testdata"):
		all = namedPage.FindAllString(string(harness.Read(t, harness.Path(file))), -1)
	}
	return all
}

// TestLinks checks that every relative link in a page leads to a file, and to a heading if it names
// one. It includes the pages that alert rules and messages of the service name.
func TestLinks(t *testing.T) {
	out, err := exec.Command("git", "-C", harness.Root(), "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		for _, target := range linksOf(t, file) {
			links++
			to, anchor, _ := strings.Cut(target, "#")
			if _, err := os.Stat(harness.Path(to)); err != nil {
				t.Errorf("%s: %s: %v", file, target, err)
			} else if anchor != "" && strings.HasSuffix(to, ".md") {
				if all, _ := anchors(string(harness.Read(t, harness.Path(to)))); !all[anchor] {
					t.Errorf("%s: %s: no such heading", file, target)
				}
			}
		}
	}
	if links < 300 {
		t.Errorf("got %d links, want 300 or more", links)
	}
}

// TestDecisions checks that the index contains every decision, with its title.
func TestDecisions(t *testing.T) {
	dir := harness.Path("docs", "decisions")
	index := string(harness.Read(t, filepath.Join(dir, "README.md")))
	records, err := filepath.Glob(filepath.Join(dir, "[0-9]*.md"))
	if err != nil || len(records) < 60 {
		t.Fatalf("got %d records, %v", len(records), err)
	}
	for _, path := range records {
		title, _, _ := strings.Cut(string(harness.Read(t, path)), "\n")
		number, title, ok := strings.Cut(strings.TrimPrefix(title, "# "), ". ")
		row := "| [" + number + "](" + filepath.Base(path) + ") | " + title + " | "
		if !ok || !strings.Contains(index, row) {
			t.Errorf("docs/decisions/README.md lacks the row %s", row)
		}
	}
	if rows := strings.Count(index, "\n| ["); rows != len(records) {
		t.Errorf("docs/decisions/README.md: got %d rows, want %d", rows, len(records))
	}
}

// fetched matches commands and addresses that get a build of the service from elsewhere.
var fetched = regexp.MustCompile(`docker (pull|run) |podman (pull|run) |go install |brew install|helm install|snap install|` +
	`ghcr\.io|docker\.io|/releases/(download|latest)`)

// TestInstallsExist checks that no page says to download a build: there is no release yet. The
// first release replaces this test with one for its addresses.
func TestInstallsExist(t *testing.T) {
	pages, err := filepath.Glob(harness.Path("docs", "*.md"))
	if err != nil || len(pages) < 10 {
		t.Fatalf("got %d pages, %v", len(pages), err)
	}
	for _, path := range append(pages, harness.Path("README.md"), harness.Path("packaging", "compose.yml")) {
		for n, line := range strings.Split(string(harness.Read(t, path)), "\n") {
			if found := fetched.FindString(line); found != "" {
				t.Errorf("%s:%d: %q gets what does not exist: %s", filepath.Base(path), n+1, found, line)
			}
		}
	}
}
