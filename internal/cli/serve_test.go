package cli

import (
	"context"
	"strings"
	"testing"
)

// TestSignalWhileStarting checks that a signal during startup is a normal shutdown.
func TestSignalWhileStarting(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, run := range []string{"new", "existing"} {
		code, out, errs := callWith(ctx, strings.NewReader(""), "serve", "--data", dir, "--listen", "127.0.0.1:0")
		if code != exitDone || errs != "" || out != "" {
			t.Errorf("%s data: got status %d, want %d without output\n%s%s", run, code, exitDone, out, errs)
		}
	}
}
