package network

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"service/test/harness"
)

// destinations is dispatcher/client/testdata/destinations.txt, which explains its format.
type destinations struct {
	cases []destinationCase
	zone  map[string][]dnsTurn // by name without a final dot
}

type destinationCase struct {
	line     int
	url      string
	refused  bool
	attempts []string // expected results; the last one also for all later attempts
}

func (c *destinationCase) String() string { return fmt.Sprintf("line %d, %s", c.line, c.url) }

// dnsTurn is one answer of the name server for a name.
type dnsTurn struct {
	silent, fails, cut bool
	addrs              []netip.Addr
	alone              []netip.Addr // records under another name
	alias              string
	then               *dnsTurn // answer over TCP if cut
}

func readDestinations(t testing.TB) *destinations {
	t.Helper()
	f, err := os.Open(harness.Path("dispatcher/client/testdata/destinations.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := &destinations{zone: make(map[string][]dnsTurn)}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case words[0] == "at" && len(words) > 1:
			for turn := range strings.SplitSeq(strings.Join(words[2:], " "), "|") {
				answer, err := parseTurn(strings.Fields(turn))
				if err != nil {
					t.Fatalf("line %d: %v", n, err)
				}
				d.zone[words[1]] = append(d.zone[words[1]], *answer)
			}
		case len(words) == 2:
			d.cases = append(d.cases, destinationCase{n, words[1], words[0] == "refused", strings.Split(words[0], ",")})
		default:
			t.Fatalf("line %d: not in the format that the top of the file explains", n)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return d
}

func parseTurn(words []string) (*dnsTurn, error) {
	a := &dnsTurn{}
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "silent":
			a.silent = true
		case w == "servfail":
			a.fails = true
		case w == "cut":
			a.cut = true
		case w == "then":
			then, err := parseTurn(words[i+1:])
			a.then = then
			return a, err
		case strings.HasPrefix(w, "="):
			a.alias = w[1:]
		default:
			list := &a.addrs
			if w == "alone" && i+1 < len(words) {
				i++
				list, w = &a.alone, words[i]
			}
			addr, err := netip.ParseAddr(w)
			if err != nil {
				return nil, err
			}
			*list = append(*list, addr)
		}
	}
	return a, nil
}
