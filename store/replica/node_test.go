package replica

import (
	"errors"
	"net/http"
	"strings"
	"testing"
)

// A node proves that it can write the bucket, and that the bucket respects conditions.
func TestNode(t *testing.T) {
	t.Parallel()
	b := newBucket(t)
	dir := t.TempDir()
	cfg := b.config(t, dir)
	node := func(dir string) *Node {
		t.Helper()
		n, err := newLease(t, b, dir, defaultPeriod).NewNode()
		must(t, err)
		return n
	}
	n := node(dir)
	for range 2 {
		must(t, n.Write(t.Context(), NodeState{Reason: "no key"}))
	}
	wantError(t, "the next process", node(dir).Write(t.Context(), NodeState{CanTakeOver: true}), nil)
	wantError(t, "another node of this host", node(t.TempDir()).Write(t.Context(), NodeState{}), nil)
	all, err := Nodes(t.Context(), cfg)
	if err != nil || len(all) != 2 || all[0].Host == "" || all[0].SeenAt.IsZero() || all[0].CanTakeOver == all[1].CanTakeOver {
		t.Errorf("got %+v, %v, want two nodes, one of which can take over", all, err)
	}
	refuse := func(r *http.Request) bool { return r.Method == http.MethodPut }
	b.refuses.Store(&refuse)
	if err := n.Write(t.Context(), NodeState{}); err == nil || errors.Is(err, ErrUnconditional) {
		t.Errorf("refused writes: got %v, want another error", err)
	}
}

// A bucket that ignores conditions is detected, whichever it ignores.
func TestUnconditionalBucket(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"If-Match", "If-None-Match"} {
		b := newBucket(t)
		ignore := func(r *http.Request) {
			if strings.Contains(r.URL.Path, "/nodes/") {
				r.Header.Del(header)
			}
		}
		b.delay.Store(&ignore)
		n, err := newLease(t, b, t.TempDir(), defaultPeriod).NewNode()
		must(t, err)
		wantError(t, "without "+header, n.Write(t.Context(), NodeState{}), ErrUnconditional)
	}
}
