package client

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// filterIn returns the output of a header for text received in parts of the given sizes,
// repeated.
func filterIn(t *rapid.T, text string, sizes []int) (string, *header) {
	var h header
	h.start()
	var got strings.Builder
	for i := 0; text != ""; i++ {
		n := min(sizes[i%len(sizes)], len(text))
		got.Write(h.filter([]byte(text[:n])))
		text = text[n:]
	}
	if h.err != nil {
		t.Fatalf("got error %v", h.err)
	}
	return got.String(), &h
}

// drawHeader returns the lines of a response header, of at most 1,000 lines and
// maxHeaderRead bytes.
func drawHeader(t *rapid.T) []string {
	name := rapid.SampledFrom([]string{"A", "Set-Cookie", "content-length", "Retry-After", " folded", "no colon"})
	size := rapid.SampledFrom([]int{0, 1, 10, 400, 600, 2000, maxResponseHeader, 2 * maxResponseHeader})
	end := rapid.SampledFrom([]string{"\n", "\r\n"})
	lines := []string{"HTTP/1.1 200 " + strings.Repeat("x", size.Draw(t, "reason")) + end.Draw(t, "end")}
	total := len(lines[0])
	for range rapid.IntRange(0, 20).Draw(t, "lines") {
		line := name.Draw(t, "name") + ":" + strings.Repeat("v", size.Draw(t, "size")) + end.Draw(t, "end")
		for range rapid.SampledFrom([]int{1, 1, 1, 8, 100}).Draw(t, "times") {
			if total += len(line); total < maxHeaderRead-2 && len(lines) < 999 {
				lines = append(lines, line)
			}
		}
	}
	return append(lines, end.Draw(t, "end"))
}

// TestHeaderFilter checks that the parts in which a header arrives do not matter, that a
// header within the limits passes unchanged, and that of a larger one whole lines pass, up
// to the limits.
func TestHeaderFilter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := drawHeader(t)
		blank := lines[len(lines)-1]
		const body = "body\n\nbody"
		text := strings.Join(lines, "") + body
		got, h := filterIn(t, text, []int{len(text)})
		sizes := rapid.SliceOfN(rapid.IntRange(1, readBufferSize), 1, 5).Draw(t, "parts")
		if parts, _ := filterIn(t, text, sizes); parts != got {
			t.Fatalf("in parts of %d bytes: got %d bytes, otherwise %d", sizes, len(parts), len(got))
		}
		if h.reading || len(h.held) > 0 {
			t.Errorf("after the header: got reading %t and %d bytes held", h.reading, len(h.held))
		}
		within := len(text)-len(blank+body) <= maxResponseHeader && len(lines) <= maxResponseLines
		if within && got != text || h.cut == (got == text) {
			t.Fatalf("got %d of %d bytes, cut %t", len(got), len(text), h.cut)
		}
		head, ok := strings.CutSuffix(got, blank+body)
		if n := strings.Count(head, "\n"); !ok || len(head) > maxResponseHeader+maxFramingLines*maxFramingLine ||
			n > maxResponseLines+maxFramingLines {
			t.Fatalf("got %d bytes and %d lines, ending in %q", len(head), n, got[max(len(got)-20, 0):])
		}
		checkLines(t, slices.Collect(strings.Lines(head))[1:], lines[1:])
	})
}

// checkLines checks that got are some of the lines, in their order.
func checkLines(t *rapid.T, got, lines []string) {
	for i, line := range got {
		at := slices.Index(lines, line)
		if at < 0 {
			t.Fatalf("line %d, %.40q, is none of the header, or out of order", i+1, line)
		}
		lines = lines[at+1:]
	}
}
