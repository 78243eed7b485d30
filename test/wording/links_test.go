package wording

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"service/test/harness"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inCode       = regexp.MustCompile("`[^`]*`")
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the anchors of a page's headings, as GitHub makes them, and its lines outside of
// code.
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

// TestLinks checks that every relative link in a page leads to a file, and to a heading if it names
// one. Alert rules and messages of the service name pages too.
func TestLinks(t *testing.T) {
	out, err := exec.Command("git", "-C", harness.Root(), "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	check := func(file, base, target string) {
		links++
		path, anchor, _ := strings.Cut(target, "#")
		to := filepath.Join(base, path)
		if path == "" {
			to = file
		}
		info, err := os.Stat(harness.Path(to))
		if err != nil {
			t.Errorf("%s: %s: %v", file, target, err)
			return
		}
		if anchor == "" || info.IsDir() || !strings.HasSuffix(to, ".md") {
			return
		}
		if all, _ := anchors(string(harness.Read(t, harness.Path(to)))); !all[anchor] {
			t.Errorf("%s: %s: no such heading", file, target)
		}
	}
	named := regexp.MustCompile(`\bdocs/[a-z0-9/-]+\.md(?:#[a-z0-9-]+)?`)
	for file := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		switch filepath.Ext(file) {
		case ".md":
			_, prose := anchors(string(harness.Read(t, harness.Path(file))))
			text := inCode.ReplaceAllString(strings.Join(prose, ""), "")
			for _, m := range markdownLink.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(m[1], ":") {
					check(file, filepath.Dir(file), m[1])
				}
			}
		case ".go", ".templ", ".yml", ".yaml":
			if strings.Contains(file, "testdata") {
				continue
			}
			for _, m := range named.FindAllString(string(harness.Read(t, harness.Path(file))), -1) {
				check(file, "", m)
			}
		}
	}
	if links < 300 {
		t.Errorf("got %d links, want 300 or more", links)
	}
}
