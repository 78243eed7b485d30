package cli

import (
	"bytes"
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
		var out, errs bytes.Buffer
		code := Run(ctx, []string{"serve", "--data", dir, "--listen", "127.0.0.1:0"}, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
		if code != exitDone || errs.Len() > 0 || out.Len() > 0 {
			t.Errorf("%s data: got status %d, want %d without output\n%s%s", run, code, exitDone, &out, &errs)
		}
	}
}
